//go:build race

package server

// underRace is set where the race detector makes allocations larger than they are.
const underRace = true
