//go:build !race

package storage

const stride = 1
