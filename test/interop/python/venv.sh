#!/usr/bin/env bash
# Prints the folder of a virtual environment with what requirements.txt names, made first if it must be: wheels
# only, in a folder of the user. Its name holds the hash of the requirements, so that changed ones are installed
# anew, and it appears by one rename, so that a half-done one is never used.
#
# STELE_INTEROP_CACHE  where it goes (default ~/.cache/stele-interop)
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${STELE_INTEROP_CACHE:-${HOME:-/root}/.cache/stele-interop}
dir=$cache/python-$( (/usr/bin/python3 --version && cat "$here/requirements.txt") | sha256sum | cut -c1-16)

if [ ! -d "$dir" ]; then
	mkdir -p "$cache"
	(
		flock 9
		[ -d "$dir" ] && exit 0
		echo "venv.sh: installing Python clients into $dir (once)" >&2
		tmp=$(mktemp -d "$cache/python.XXXXXX")
		trap 'rm -rf "$tmp"' EXIT
		/usr/bin/python3 -m venv "$tmp/env" >&2
		"$tmp/env/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: --no-deps \
			-r "$here/requirements.txt" >&2
		mv -T "$tmp/env" "$dir"
	) 9>"$cache/python.lock"
fi
echo "$dir"
