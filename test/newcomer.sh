#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# newcomer.sh: what README.md has people type, from `git clone` to a Docker container with a quota, on a Debian 13 that has nothing
# but what debootstrap leaves, sudo and Docker; each command is timed. Of three things others stand in: the address that is cloned is this
# clone; `systemctl` is a script, since nothing here is init; and without a GPU and an image of PyTorch, the container is Debian's own files with the
# simulated driver, and its `python train.py` asks that how large the card is. The last line is "N passed, N failed, N skipped".
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "$(id -u)" != 0 ]; then
	echo "newcomer: it makes mounts, cgroups and a Docker: run this as root" >&2
	exit 1
fi
. test/debian.sh
test/deps.sh --need newcomer debootstrap git
base=${XDG_CACHE_HOME:-$HOME/.cache}/gpuslice/newcomer/trixie-1
work=$(mktemp -d /tmp/gpuslice-newcomer.XXXXXX)
trap 'rm -rf --one-file-system "$work"' EXIT

debian_made "$base" trixie sudo,docker.io,docker-cli,ca-certificates

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

debian_run "$base" "$work" "${work##*.}"
find /sys/fs/cgroup -depth -type d -path "*newcomer-${work##*.}*" -exec rmdir {} + 2>/dev/null || true
echo "$p passed, $f failed, 0 skipped"
[ "$f" = 0 ]
