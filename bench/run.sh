#!/usr/bin/env bash
# make bench: Stele and Apache Kafka side by side on this machine, in one run.
#
#   bench/run.sh [-rows REGEXP] [-rounds N] [-seconds S] [-quick] [-all] [-json FILE] [-list] [-print] [-no-kafka] [-cpuprofile DIR]
#
# Needs a JDK and Maven for Apache Kafka (test/reference/kafka.sh brings its jars). Kafka runs with the JVM flags of
# its own start script. docs/performance.md says what is measured, and how.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
CGO_ENABLED=0 "${GO:-go}" build -trimpath -o "$out/stele" ./cmd/stele
"${GO:-go}" build -o "$out/bench" ./bench
"$out/bench" -stele "$out/stele" "$@"
