#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2312 # an empty value fails a comparison or is printed
#
# newcomer.sh [--record] [SUITE…]: type the commands of README.md, docs/use, and engines.md and install.md of docs/operate on a new system (bookworm and
# resolute, or SUITE), as a user with sudo, with the Docker and Podman of that system. A block that cannot be typed gives the reason in its mark
# (test/doccommands). Stand-ins: the cloned repository is this clone, `systemctl` is a script, the driver is the simulated one, the image has the
# files of the system, and `python train.py` and `nvidia-smi` print the size of the card.
# A line with the prefix "point" is a promise of the first hour; --record writes these into docs/evidence/newcomer.md. The last line is
# "N passed, N failed, N skipped".
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "$(id -u)" != 0 ]; then
	echo "newcomer: it makes mounts, cgroups and a Docker: run this as root" >&2
	exit 1
fi
. test/debian.sh
test/deps.sh --need newcomer debootstrap git
record=
if [ "${1:-}" = --record ]; then
	record=docs/evidence/newcomer.md
	shift
fi
[ $# -gt 0 ] || set -- bookworm resolute
# gpuslice finds a listening daemon in the network namespace, which all walks share.
mkdir -p "${XDG_CACHE_HOME:-$HOME/.cache}/gpuslice/newcomer"
exec 8>"${XDG_CACHE_HOME:-$HOME/.cache}/gpuslice/newcomer/lock"
flock 8
work=$(mktemp -d /tmp/gpuslice-newcomer.XXXXXX)
trap 'rm -rf --one-file-system "$work"' EXIT

# As this machine reaches what it installs.
mkdir -p "$work/test/apt" "$work/test/ssl" "$work/test/pages"
cp -rL /etc/apt/apt.conf.d "$work/test/apt/"
cp -rL /etc/ssl/certs "$work/test/ssl/"
cp -L /etc/resolv.conf /etc/hosts "$work/test/"
"${GO:-$(test/go.sh)}" env GOPROXY GOSUMDB >"$work/test/go"
git clone -q --bare . "$work/test/gpuslice.git"
cp test/newcomer/* "$work/test/"

# Pages are typed in the order of README.md. The blocks of README.md above its section on installation come after that section.
mapfile -t use < <({ sed -n '/^## Documentation/,$p' README.md | grep -o 'docs/use/[a-z-]*\.md' && ls docs/use/*.md; } | awk '!seen[$0]++')
awk -F'\t' '$2 == "newcomer"' <(awk -f test/newcomer/lines.awk README.md) >"$work/test/pages/0"
awk -F'\t' '$2 != "newcomer"' <(awk -f test/newcomer/lines.awk README.md) >"$work/test/pages/1"
awk -f test/newcomer/lines.awk "${use[@]}" >"$work/test/pages/2"
awk -f test/newcomer/lines.awk docs/operate/engines.md docs/operate/install.md >"$work/test/pages/3"

passed=0 failed=0 skipped=0
for suite; do
	docker=docker.io
	[ "$suite" != trixie ] || docker+=,docker-cli
	base=${XDG_CACHE_HOME:-$HOME/.cache}/gpuslice/newcomer/$suite-3
	debian_made "$base" "$suite" "sudo,ca-certificates,podman,netavark,$docker"
	mkdir "$work/$suite"
	ln -s ../test "$work/$suite/test"
	echo "== $suite"
	debian_run "$base" "$work/$suite" "${work##*.}-$suite"
	s=$(sed -n 's/ skipped in all$//p' "$work/$suite/log")
	passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + ${s:-0}))
	find /sys/fs/cgroup -depth -type d -path "*newcomer-${work##*.}*" -exec rmdir {} + 2>/dev/null || true
	if [ -n "$record" ]; then
		name=$(sed -n 's/^PRETTY_NAME="\(.*\)"$/\1/p' "$base/usr/lib/os-release")
		{
			grep -v "^| $name |" "$record"
			sed -n "s#^point \([1-6]\): \(.*\)#| $name | \1 | \2 |#p" "$work/$suite/log" | sort -u
			echo "| $name | | \`$(git rev-parse --short=12 HEAD)\`, $(date +%F): $p passed, $f failed, ${s:-0} skipped |"
		} >"$work/record"
		cat "$work/record" >"$record"
	fi
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
