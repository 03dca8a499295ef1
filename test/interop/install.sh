#!/usr/bin/env bash
# Installs what `make interop` needs on a Debian machine, as root: kcat, confluent-kafka for Python (with
# librdkafka), a JDK and Maven. What is there already is left alone.
set -euo pipefail

want=()
command -v kcat >/dev/null 2>&1 || want+=(kcat)
/usr/bin/python3 -c 'import confluent_kafka' >/dev/null 2>&1 || want+=(python3 python3-confluent-kafka)
command -v javac >/dev/null 2>&1 || want+=(openjdk-17-jdk-headless)
command -v mvn >/dev/null 2>&1 || want+=(maven)

if [ ${#want[@]} -gt 0 ]; then
	if ! command -v apt-get >/dev/null 2>&1 || [ "$(id -u)" -ne 0 ]; then
		echo "install.sh: missing ${want[*]}; run this as root on Debian, or install them by hand" >&2
		exit 1
	fi
	echo "install.sh: installing ${want[*]}" >&2
	export DEBIAN_FRONTEND=noninteractive
	apt-get update -qq
	apt-get install -y -qq --no-install-recommends "${want[@]}" >/dev/null
fi

version=$(javac -version 2>&1 | sed 's/[^0-9]*\([0-9]*\).*/\1/')
if [ "$version" -lt 17 ]; then
	echo "install.sh: javac is version $version; Apache Kafka 4 needs 17 or newer" >&2
	exit 1
fi

# Resolve Apache Kafka now, so that no test waits for it.
"$(dirname "${BASH_SOURCE[0]}")/../reference/kafka.sh" classpath >/dev/null
