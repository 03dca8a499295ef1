//go:build !linux

package cli

import "syscall"

// devProcess keeps an interrupt at the terminal, which is meant for the command that started it, away from a node.
func devProcess() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
