#!/bin/sh
# Runs the tests over planted bugs, each of which some test or seed must catch; fails if one survives.
#
#   test/sim/mutants.sh            every mutant
#   TURN=n test/sim/mutants.sh     three of them, others for each n
#   test/sim/mutants.sh NAME...    only these
#
# A mutant is a line below: its name, then the packages whose tests may catch it. In the code it is a
# condition that builds without the tag "mutants" know as a constant false.
set -u
cd "$(dirname "$0")/../.."

mutants='
group-commit-keeps-clock    ./internal/group ./test/sim
group-generation-unchecked  ./internal/group ./test/sim
group-revert-forgets-one    ./internal/group ./test/sim
group-revokes-at-once       ./internal/group
coordinator-answers-uncommitted ./internal/coordinator ./test/sim/cluster
txn-epoch-unchecked         ./internal/txn
txn-revert-keeps-last       ./internal/txn
server-produce-overtakes    ./internal/server
log-cuts-under-readers      ./internal/log
log-lazy-largest            ./internal/log
record-deltas-unchecked     ./internal/record
replica-joiner-uncounted    ./internal/replica
quorum-vote-unwritten       ./internal/quorum
quorum-log-unsynced         ./test/sim/control
quorum-snapshot-misses-one  ./test/sim/control
quorum-wiped-voter-votes    ./test/sim/control
quorum-proposal-stale       ./test/sim/control
quorum-active-early         ./test/sim/control
quorum-answers-unasked      ./test/sim/control
quorum-answers-uncommitted  ./test/sim/control
controller-stale-epoch      ./test/sim/control ./internal/controller
controller-keeps-uncommitted ./test/sim/control
replica-watermark-early         ./test/sim/cluster
replica-truncates-to-watermark  ./test/sim/cluster
log-epochs-not-cut              ./test/sim/cluster
replica-fenced-accepted         ./test/sim/cluster
replica-stale-broker-epoch      ./test/sim/cluster
replica-reads-above-watermark   ./test/sim/cluster
log-reuses-offset               ./test/sim/cluster
replica-two-fetchers            ./test/sim/cluster
log-start-back                  ./test/sim/cluster
replica-acks-early              ./test/sim/cluster
replica-skips-divergence        ./test/sim/cluster
replica-joins-early             ./internal/replica
log-producers-not-cut           ./test/sim/cluster
broker-applies-unregistered     ./test/sim/cluster
'

if [ $# -eq 0 ] && [ -n "${TURN:-}" ]; then
	# shellcheck disable=SC2046 # one word is one name
	set -- $(echo "$mutants" | awk -v turn="$TURN" 'NF { name[n++] = $1 } END { for (i = 0; i < 3; i++) print name[(turn * 3 + i) % n] }')
fi
wanted=" $* "
chosen() { case $wanted in "  " | *" $1 "*) return 0 ;; esac; return 1; }
mutants=$(echo "$mutants" | while read -r name packages; do
	[ -n "$name" ] && chosen "$name" && echo "$name $packages"
done)
if [ -z "$mutants" ]; then
	echo "mutants: none of that name:$wanted" >&2
	exit 2
fi

survived=0
run() {
	# What rapid finds here is meant to be found: it leaves no file of it behind.
	quiet=
	grep -qs 'pgregory.net/rapid' "$2"/*_test.go && quiet=-rapid.nofailfile
	# The cluster simulator goes on to other seeds until one has caught the mutant.
	[ "$2" = ./test/sim/cluster ] && [ -n "$1" ] && {
		STELE_MUTANT=$1 SEEDS=200 go test -tags mutants -count=1 -timeout 1h "$2" >"$log" 2>&1
		return
	}
	STELE_MUTANT=$1 go test -tags mutants -count=1 -timeout 2m "$2" $quiet >"$log" 2>&1
}
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# Without a mutant the tagged build must pass, or being caught means nothing.
for package in $(echo "$mutants" | awk 'NF { for (i = 2; i <= NF; i++) print $i }' | sort -u); do
	if ! run "" "$package"; then
		cat "$log"
		echo "mutants: $package fails without any mutant: mend it first" >&2
		exit 1
	fi
done

while read -r name packages; do
	[ -n "$name" ] || continue
	by=
	for package in $packages; do
		if ! run "$name" "$package"; then
			if grep -q 'build failed\|setup failed' "$log"; then
				cat "$log"
				exit 1
			fi
			by="$by $package($(grep -c '^ *--- FAIL' "$log"))"
		fi
	done
	if [ -z "$by" ]; then
		echo "SURVIVED  $name"
		survived=1
	else
		echo "caught    $name by$by"
	fi
done <<END
$mutants
END
exit $survived
