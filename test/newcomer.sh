#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2312 # an empty value fails a comparison or is printed
#
# newcomer.sh [SUITE…]: type what README.md prints in its `console newcomer` blocks, and then its first command with Docker, as a user with sudo on
# a system (bookworm and trixie, or SUITE) that debootstrap has just made, with that system's own Docker. Each command is timed. Three things have
# stand-ins: the address that is cloned is this clone; `systemctl` is a script, since nothing here is init; and without a GPU and an image of
# PyTorch, the container has the system's own files, and its `python train.py` prints the size of the card. The last line is
# "N passed, N failed, N skipped".
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "$(id -u)" != 0 ]; then
	echo "newcomer: it makes mounts, cgroups and a Docker: run this as root" >&2
	exit 1
fi
. test/debian.sh
test/deps.sh --need newcomer debootstrap git
[ $# -gt 0 ] || set -- bookworm trixie
work=$(mktemp -d /tmp/gpuslice-newcomer.XXXXXX)
trap 'rm -rf --one-file-system "$work"' EXIT

# As this machine reaches what it installs.
mkdir -p "$work/test/apt" "$work/test/ssl"
cp -rL /etc/apt/apt.conf.d "$work/test/apt/"
cp -rL /etc/ssl/certs "$work/test/ssl/"
cp -L /etc/resolv.conf /etc/hosts "$work/test/"
"${GO:-$(test/go.sh)}" env GOPROXY GOSUMDB >"$work/test/go"
git clone -q --bare . "$work/test/gpuslice.git"
# shellcheck disable=SC2016 # it is a fence
{
	sed -n '/^```console newcomer$/,/^```$/s/^\$ //p' README.md
	grep -m1 '^\$ docker run ' README.md | cut -c3- # what the page promises
} >"$work/test/commands"
cp test/newcomer/* "$work/test/"

passed=0 failed=0
for suite; do
	docker=docker.io
	[ "$suite" = bookworm ] || docker+=,docker-cli
	base=${XDG_CACHE_HOME:-$HOME/.cache}/gpuslice/newcomer/$suite-2
	debian_made "$base" "$suite" "sudo,ca-certificates,$docker"
	mkdir "$work/$suite"
	ln -s ../test "$work/$suite/test"
	echo "== $suite"
	debian_run "$base" "$work/$suite" "${work##*.}-$suite"
	passed=$((passed + p)) failed=$((failed + f))
	find /sys/fs/cgroup -depth -type d -path "*newcomer-${work##*.}*" -exec rmdir {} + 2>/dev/null || true
done
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]
