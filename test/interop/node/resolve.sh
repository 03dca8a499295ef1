#!/usr/bin/env bash
# Prints the folder that holds node_modules with the JavaScript clients of package-lock.json and the node that runs
# them, installing it first if it must. It is outside the tree and named by what it is made of.
#
# The clients need a newer node than Debian has; it comes from the registry like they do. One of them is librdkafka
# with a binding: the binary that it would download is compiled here instead.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${STELE_REFERENCE_CACHE:-${HOME:-/root}/.cache/stele-reference}
dir=$cache/node-$(cat "$here/package-lock.json" "${BASH_SOURCE[0]}" | sha256sum | cut -c1-16)

if [ ! -d "$dir" ]; then
	mkdir -p "$cache"
	(
		flock 9
		[ -d "$dir" ] && exit 0
		echo "resolve.sh: installing the JavaScript clients into $dir (once; a minute or two)" >&2
		tmp=$(mktemp -d "$cache/node.XXXXXX")
		cp "$here/package.json" "$here/package-lock.json" "$here/.npmrc" "$tmp/"
		if ! (
			cd "$tmp"
			npm ci --ignore-scripts --no-audit --no-fund
			node=$(echo "$tmp"/node_modules/node-linux-*)
			# From here on with the new node and its headers. Dynamic linking takes the system's libraries; the
			# static way would download their sources.
			export PATH=$node/bin:$tmp/node_modules/.bin:$PATH npm_config_nodedir=$node CKJS_LINKING=dynamic
			cd node_modules/@confluentinc/kafka-javascript
			node-pre-gyp rebuild --build-from-source
			node -e 'if (!require(".").features.includes("zstd")) throw new Error("librdkafka was built without zstd")'
			# The runtime path of the binary is relative to itself; what it was built from is not needed any more.
			rm -rf build/Release/obj.target deps
			ln -s "$(basename "$node")" "$tmp/node_modules/node-here"
		) >"$tmp/install.log" 2>&1; then
			tail -30 "$tmp/install.log" >&2
			echo "resolve.sh: could not install the JavaScript clients; see above and $tmp/install.log" >&2
			exit 1
		fi
		mv -T "$tmp" "$dir"
	) 9>"$cache/.node.lock" || exit 1
fi
echo "$dir"
