#!/usr/bin/env bash
# Sends the same requests to Apache Kafka and to Stele, and compares the answers; see README.md.
#
#   test/differential/run.sh [go test arguments]
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")"
../interop/install.sh
# Without a package argument go test shows the table of a green run as well.
exec "${GO:-go}" test -tags interop -count=1 -timeout 15m "$@"
