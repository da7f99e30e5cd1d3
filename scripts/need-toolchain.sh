#!/bin/sh
# Sees to the tools that compiling a model needs: clang-19, llc-19 and ld.lld-19.
# Installs them with apt-get where that is allowed, and otherwise stops with the
# command to type.
set -eu

if ! command -v go >/dev/null 2>&1; then
	echo "Go is missing: see https://go.dev/doc/install (the version is in go.mod)" >&2
	exit 1
fi

missing=
command -v clang-19 >/dev/null 2>&1 || missing="$missing clang-19"
command -v llc-19 >/dev/null 2>&1 || missing="$missing llvm-19"
command -v ld.lld-19 >/dev/null 2>&1 || missing="$missing lld-19"
[ -z "$missing" ] && exit 0

install="apt-get update && apt-get install -y --no-install-recommends$missing"
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
	echo "installing$missing" >&2
	# A stale list of one source must not stop the others: only the installation counts.
	apt-get update -qq >/dev/null 2>&1 || true
	# shellcheck disable=SC2086
	if DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null; then
		exit 0
	fi
	echo "that failed; try by hand:" >&2
	echo "  $install" >&2
	exit 1
fi
echo "missing:$missing" >&2
echo "install with:" >&2
echo "  sudo sh -c '$install'" >&2
exit 1
