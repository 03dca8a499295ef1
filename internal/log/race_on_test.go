//go:build race

package log

// listOperations is how many operations the test of A1 is to reach: a million under the race detector.
const listOperations = 1_000_000
