#!/usr/bin/env bash
# Runs Apache Kafka, the release that pom.xml names, on a machine that has a JDK and Maven.
#
#   kafka.sh classpath                     prints the class path, resolving it first if it must
#   kafka.sh version                       prints the release
#   kafka.sh format DIR PORT CPORT [name=value ...]
#                                          writes DIR/server.properties and formats DIR/data; the settings
#                                          given here are kept in DIR/extra.properties for later starts
#   kafka.sh serve DIR PORT CPORT          runs a node that is broker and controller, with a static voter,
#                                          in the foreground (exec): PLAINTEXT://127.0.0.1:PORT for clients,
#                                          CONTROLLER://127.0.0.1:CPORT for controllers; TERM stops it cleanly
#   kafka.sh tool CLASS [ARG ...]          runs a main class; a name without dots is looked up in Kafka's
#                                          tools (TopicCommand, ConsoleConsumer, DumpLogSegments, ...)
#   kafka.sh java [ARG ...]                runs java with the class path and the flags of tools
#
# STELE_REFERENCE_POM         another pom.xml, for a class path of other programs of the same release
# STELE_REFERENCE_CACHE       where the jars go (default ~/.cache/stele-reference)
# STELE_REFERENCE_CLUSTER_ID  the cluster id that format uses (default: a random one)
# STELE_REFERENCE_FORMAT      more arguments of format's StorageTool, such as --feature group.version=0
# STELE_REFERENCE_SERVER_JVM  JVM flags of serve (default: small, quick to start); a benchmark sets its own
# STELE_REFERENCE_TOOL_JVM    JVM flags of tools
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
pom=${STELE_REFERENCE_POM:-$here/pom.xml}
cache=${STELE_REFERENCE_CACHE:-${HOME:-/root}/.cache/stele-reference}
tool_jvm=${STELE_REFERENCE_TOOL_JVM:--Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto}
server_jvm=${STELE_REFERENCE_SERVER_JVM:--Xms96m -Xmx384m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto}

die() {
	echo "kafka.sh: $*" >&2
	exit 1
}

need() {
	command -v "$1" >/dev/null 2>&1 || die "$1 is not installed; $2"
}

# lib prints the folder with the jars. The folder's name holds the hash of pom.xml, so a changed pom
# resolves anew, and it appears by one rename, so that a half-done resolve is never used.
lib() {
	local key dir tmp
	need java "install a JDK, 17 or newer (Debian: apt-get install openjdk-17-jdk-headless)"
	key=$(sha256sum "$pom" | cut -c1-16)
	dir=$cache/$key
	if [ ! -d "$dir/lib" ]; then
		need mvn "install Maven (Debian: apt-get install maven)"
		mkdir -p "$cache"
		(
			flock 9
			[ -d "$dir/lib" ] && exit 0
			echo "kafka.sh: resolving $pom into $dir (once)" >&2
			tmp=$(mktemp -d "$cache/resolve.XXXXXX")
			mkdir -p "$tmp/project"
			cp "$pom" "$tmp/project/pom.xml"
			if ! mvn -q -B -f "$tmp/project/pom.xml" dependency:copy-dependencies \
				-DincludeScope=runtime -DoutputDirectory="$tmp/lib" >"$tmp/mvn.log" 2>&1; then
				tail -20 "$tmp/mvn.log" >&2
				rm -rf "$tmp"
				die "Maven could not resolve $pom; see above"
			fi
			mkdir -p "$dir"
			mv -T "$tmp/lib" "$dir/lib"
			rm -rf "$tmp"
		) 9>"$cache/.lock" || exit 1
	fi
	echo "$dir/lib"
}

classpath() {
	local jars
	jars=$(lib) || exit 1
	# Sorted and spelled out: a wildcard would be expanded in an order that the file system chooses.
	printf '%s\n' "$jars"/*.jar | LC_ALL=C sort | paste -sd:
}

properties() {
	local dir=$1 port=$2 cport=$3
	mkdir -p "$dir"
	cat >"$dir/server.properties" <<-EOF
		process.roles=broker,controller
		node.id=1
		controller.quorum.voters=1@127.0.0.1:$cport
		controller.listener.names=CONTROLLER
		listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$cport
		advertised.listeners=PLAINTEXT://127.0.0.1:$port
		log.dirs=$dir/data
		offsets.topic.replication.factor=1
		transaction.state.log.replication.factor=1
		transaction.state.log.min.isr=1
		share.coordinator.state.topic.replication.factor=1
		share.coordinator.state.topic.min.isr=1
		group.initial.rebalance.delay.ms=0
	EOF
	if [ -f "$dir/extra.properties" ]; then
		cat "$dir/extra.properties" >>"$dir/server.properties"
	fi
}

cluster_id() {
	# 16 random bytes in URL-safe base64. The first letter is fixed: an id that starts with a dash would
	# be taken for an option.
	echo "S$(head -c 16 /dev/urandom | base64 | tr '+/' '-_' | cut -c2-21)A"
}

# logged adds the log configuration at a level to java.
logged() {
	echo "-Dlog4j2.configurationFile=file:$here/log4j2.properties -Dstele.reference.level=$1"
}

command=${1:-}
[ $# -gt 0 ] && shift
case $command in
classpath)
	classpath
	;;
version)
	sed -n 's:.*<kafka.version>\(.*\)</kafka.version>.*:\1:p' "$pom"
	;;
format)
	[ $# -ge 3 ] || die "usage: kafka.sh format DIR PORT CPORT [name=value ...]"
	dir=$(mkdir -p "$1" && cd "$1" && pwd) port=$2 cport=$3
	shift 3
	: >"$dir/extra.properties"
	[ $# -eq 0 ] || printf '%s\n' "$@" >"$dir/extra.properties"
	properties "$dir" "$port" "$cport"
	cp=$(classpath)
	# shellcheck disable=SC2046,SC2086
	exec java $tool_jvm $(logged warn) -cp "$cp" kafka.tools.StorageTool format \
		-t "${STELE_REFERENCE_CLUSTER_ID:-$(cluster_id)}" -c "$dir/server.properties" ${STELE_REFERENCE_FORMAT:-}
	;;
serve)
	[ $# -eq 3 ] || die "usage: kafka.sh serve DIR PORT CPORT"
	[ -d "$1/data" ] || die "$1/data does not exist; run kafka.sh format first"
	dir=$(cd "$1" && pwd)
	properties "$dir" "$2" "$3"
	cp=$(classpath)
	# shellcheck disable=SC2046,SC2086
	exec java $server_jvm $(logged info) -cp "$cp" kafka.Kafka "$dir/server.properties"
	;;
tool)
	[ $# -ge 1 ] || die "usage: kafka.sh tool CLASS [ARG ...]"
	class=$1
	shift
	case $class in
	*.*) ;;
	StorageTool) class=kafka.tools.StorageTool ;;
	ConsoleConsumer | ConsoleShareConsumer) class=org.apache.kafka.tools.consumer.$class ;;
	ConsumerGroupCommand | ShareGroupCommand) class=org.apache.kafka.tools.consumer.group.$class ;;
	ReassignPartitionsCommand) class=org.apache.kafka.tools.reassign.$class ;;
	*) class=org.apache.kafka.tools.$class ;;
	esac
	cp=$(classpath)
	# shellcheck disable=SC2046,SC2086
	exec java $tool_jvm $(logged warn) -cp "$cp" "$class" "$@"
	;;
java)
	cp=$(classpath)
	# shellcheck disable=SC2046,SC2086
	exec java $tool_jvm $(logged warn) -cp "$cp" "$@"
	;;
*)
	sed -n '2,/^set -/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
	exit 2
	;;
esac
