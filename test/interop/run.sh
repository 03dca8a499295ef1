#!/usr/bin/env bash
# make interop: other people's clients and Apache Kafka's own tools against a running Stele.
#
#   test/interop/run.sh [go test arguments]
#
# STELE_INTEROP_TARGET=kafka runs the same tests against Apache Kafka itself, which shows that the tests are
# right before they judge anything else.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")"
./install.sh
# Six at a time on any machine: clients wait more than they work.
# Without a package argument go test shows the tables of a green run as well.
(cd codec && "${GO:-go}" test -tags interop -count=1 -timeout 5m "$@")
exec "${GO:-go}" test -tags interop -count=1 -timeout 25m -parallel 6 "$@"
