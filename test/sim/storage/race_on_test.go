//go:build race

package storage

// The race detector makes a goroutine's work several times as long: it sees every n-th point.
const stride = 9
