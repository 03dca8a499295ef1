#!/usr/bin/env bash
# Installs what `make interop` needs on a Debian machine, as root: kcat, confluent-kafka for Python (with
# librdkafka), a JDK and Maven, npm, and what builds the librdkafka of a JavaScript client; and, in folders of the user,
# Apache Kafka and the clients of PyPI and npm. What is there already is left alone.
set -euo pipefail

want=()
command -v kcat >/dev/null 2>&1 || want+=(kcat)
/usr/bin/python3 -c 'import confluent_kafka' >/dev/null 2>&1 || want+=(python3 python3-confluent-kafka)
/usr/bin/python3 -c 'import ensurepip, venv' >/dev/null 2>&1 || want+=(python3-venv)
command -v javac >/dev/null 2>&1 || want+=(openjdk-17-jdk-headless)
command -v mvn >/dev/null 2>&1 || want+=(maven)
command -v npm >/dev/null 2>&1 || want+=(nodejs npm)
command -v g++ >/dev/null 2>&1 || want+=(g++)
command -v make >/dev/null 2>&1 || want+=(make)
command -v python3 >/dev/null 2>&1 || want+=(python3)
[ -f /usr/include/zlib.h ] || want+=(zlib1g-dev)
[ -f /usr/include/zstd.h ] || want+=(libzstd-dev)

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

# Resolve Apache Kafka and the clients of other registries now, so that no test waits for them.
here=$(dirname "${BASH_SOURCE[0]}")
"$here/../reference/kafka.sh" classpath >/dev/null
for pom in "$here"/apps/*/pom.xml; do
	STELE_REFERENCE_POM=$pom "$here/../reference/kafka.sh" classpath >/dev/null
done
"$here/node/resolve.sh" >/dev/null
"$here/python/venv.sh" >/dev/null
(cd "$here/goclients" && GOFLAGS='' GOWORK=off "${GO:-go}" mod download)
