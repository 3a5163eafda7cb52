#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2312 # an empty value fails a comparison or is printed
#
# user.sh [PACKAGE…]: run Go tests as a user without privileges, in a copy of the tree: those of PACKAGE…, or of the packages that ask for root
# (test/needs) and of the enforcer's, which acts otherwise without capabilities. Tests that need root are skipped, and none fails. As root, after
# `make test-programs`. The last line is "N passed, N failed, N skipped", where skips for want of root are no failures.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "$(id -u)" != 0 ]; then
	echo "user: it becomes another user: run this as root, or run make test" >&2
	exit 1
fi
GO=${GO:-$(test/go.sh)}
[ $# -gt 0 ] || mapfile -t packages < <(git ls-files 'enforcer/*_test.go' | cat - <(git grep -l 'needs\.Root(' -- '*.go') | xargs -n 1 dirname | sort -u | sed 's|^|./|')
[ $# = 0 ] || packages=("$@")
"$GO" list -deps -test "${packages[@]}" >/dev/null # downloads the modules that are missing: the user cannot write to root's cache
work=$(mktemp -d /tmp/gpuslice-user.XXXXXX)
trap 'rm -rf --one-file-system "$work"' EXIT
uid=12345
chmod 755 "$work"
mkdir "$work"/{home,tree,new,overlay,cache,modules}
git ls-files -z | tar --null -T - -cf - | tar -C "$work/tree" -xf -
cp -a bin "$work/tree/"
{ cat /etc/passwd && echo "ordinary:x:$uid:$uid::$work/home:/bin/bash"; } >"$work/passwd"
{ cat /etc/group && echo "ordinary:x:$uid:"; } >"$work/group"
chown -R "$uid:$uid" "$work/tree" "$work/home" "$work/cache"
cat >"$work/inside" <<'INSIDE'
set -euo pipefail
work=$1 uid=$2 cache=$3 modules=$4 go=$5
shift 5
# The overlay gives this user the packages that root has compiled, and keeps their own.
mount -t overlay -o "lowerdir=$cache,upperdir=$work/new,workdir=$work/overlay" none "$work/cache"
find "$work/cache" -maxdepth 1 -exec chown "$uid:$uid" {} +
mount --bind "$modules" "$work/modules"
mount --bind "$work/passwd" /etc/passwd
mount --bind "$work/group" /etc/group
cd "$work/tree"
exec setpriv --reuid="$uid" --regid="$uid" --clear-groups env -i HOME="$work/home" USER=ordinary LANG=C.UTF-8 PATH=/usr/local/bin:/usr/bin:/bin \
	GO="${go/#$modules/$work/modules}" GOTOOLCHAIN=local GOCACHE="$work/cache" GOMODCACHE="$work/modules" GOFLAGS="${GOFLAGS:-}" \
	CGO_CFLAGS="${CGO_CFLAGS:-}" PACKAGES="$*" test/run.sh
INSIDE
unshare --mount bash "$work/inside" "$work" "$uid" "$("$GO" env GOCACHE)" "$("$GO" env GOMODCACHE)" "$GO" "${packages[@]}" </dev/null
