//go:build !failpoints

package vfs

// Failpoint marks a place where a kill test may end the process. Without the build tag failpoints it does
// nothing and costs nothing.
func Failpoint(string) {}
