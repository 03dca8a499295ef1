#!/usr/bin/env bash
# make chaos: real processes under kill -9, a full disk, directories and requests that mean no good. Needs root.
#
#   test/chaos/run.sh [go test arguments]     e.g. -run TestKillLoop -v
#
# MINUTES=n     how long (default 5): once through everything, then the loops again, each with a seed of its own,
#               while another turn fits. Under 2 minutes a part by turns, which part the seed decides.
# ROUNDS=n      how often three nodes are hurt under an admin workload (default 30 from 10 minutes on, else 5)
# CHAOS_SEED=n  begins with this seed, to repeat a failure
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
[ "$(id -u)" = 0 ] || { echo "test/chaos/run.sh: run it as root: it mounts file systems" >&2; exit 1; }

minutes=${MINUTES:-5}
seed=${CHAOS_SEED:-$((RANDOM * 32768 + RANDOM))}
deadline=$((SECONDS + minutes * 60))

turn() {
	echo "=== seed $1: ${*:2}"
	CHAOS_SEED=$1 "${GO:-go}" test -tags chaos ./test/chaos -count=1 -timeout 20m -v "${@:2}"
}

if [ $# -gt 0 ]; then
	turn "$seed" "$@"
	exit
fi
if [ "$minutes" -lt 2 ]; then
	case $((seed % 6)) in
	0) turn "$seed" -run TestKillLoop ;;
	1) turn "$seed" -run 'TestFullDisk|TestE072|TestSoftLimit|TestS064|TestTheMetadata' ;;
	4) turn "$seed" -run TestE073 ;;
	2) turn "$seed" -run 'TestStart|TestMemory' ;;
	5) ROUNDS=${ROUNDS:-5} turn "$seed" -run 'TestReplaceADeadVoter|TestAdminUnderFire' ;;
	3) turn "$seed" -run 'TestCrowd|TestFloods|TestB058' ;;
	esac
	exit
fi
# Of the kills under flush.messages=1, and of the rounds of three nodes, a part by turns: a hundred and more take MINUTES.
export KILLS=${KILLS:-$((minutes >= 10 ? 200 : 40))} ROUNDS=${ROUNDS:-$((minutes >= 10 ? 30 : 5))}
turn "$seed"
while [ $((deadline - SECONDS)) -gt 90 ]; do
	seed=$((seed + 1))
	turn "$seed" -run 'TestKillLoop|TestE073|TestFullDisk|TestAdminUnderFire'
done
