#!/usr/bin/env bash
# make bench: Stele and Apache Kafka side by side on this machine, in one run.
#
#   bench/run.sh [-only startup,restart,memory,load] [-json FILE] [-mb N] [-no-kafka] [-cpuprofile DIR]
#
# Needs a JDK and Maven for Apache Kafka (test/reference/kafka.sh brings its jars). Kafka runs with the JVM flags of
# its own start script.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
CGO_ENABLED=0 "${GO:-go}" build -trimpath -o "$out/stele" ./cmd/stele
"${GO:-go}" build -o "$out/bench" ./bench
"$out/bench" -stele "$out/stele" "$@"
