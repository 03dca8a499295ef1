#!/usr/bin/env bash
# Runs every native fuzz target in turn, FUZZTIME each (default 10s).
set -euo pipefail
cd "$(dirname "$0")/.."
: "${FUZZTIME:=10s}"

go list ./... | while read -r package; do
  go test -list '^Fuzz' "$package" | grep '^Fuzz' | while read -r target; do
    printf '%s %s\n' "$package" "$target"
    go test -run '^$' -fuzz "^$target\$" -fuzztime "$FUZZTIME" -fuzzminimizetime 2s "$package"
  done || [ $? -eq 1 ] # a package without targets
done
