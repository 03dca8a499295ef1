//go:build race

package cli

// underRace is set where the race detector makes allocations larger than they are.
const underRace = true
