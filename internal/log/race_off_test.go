//go:build !race

package log

const listOperations = 30_000
