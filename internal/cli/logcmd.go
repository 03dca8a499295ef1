package cli

import "github.com/spf13/cobra"

func newLog(e *env) *cobra.Command { return &cobra.Command{Use: "log", Hidden: true} }
