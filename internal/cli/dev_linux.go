package cli

import "syscall"

// devProcess makes a node end with the command that started it, however that ends; and keeps an interrupt at the terminal,
// which is meant for that command, away from it.
func devProcess() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
