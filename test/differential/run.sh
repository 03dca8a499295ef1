#!/usr/bin/env bash
# Sends the same requests to Apache Kafka and to Stele, and compares the answers; see README.md.
#
#   test/differential/run.sh [go test arguments]
#
# TURN=n runs two seeds, one that is always the same and one by turns; without it there is one run, of a new seed.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")"
../interop/install.sh
# Without a package argument go test shows the table of a green run as well.
run() { "${GO:-go}" test -tags interop -count=1 -timeout 15m "$@"; }
if [ -z "${TURN:-}" ]; then
	run "$@"
	exit
fi
for seed in 1 $((1000 + TURN)); do
	STELE_DIFFERENTIAL_SEED=$seed run "$@"
done
