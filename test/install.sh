#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# install.sh install|uninstall, with PREFIX, DESTDIR, SYSCONFDIR, UNITDIR and VERSION in the environment. The
# Makefile calls it.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${PREFIX:?}" "${VERSION:?}" "${SYSCONFDIR:?}" "${UNITDIR:?}"
root=${DESTDIR:-}
programs=(gpuslice gpusliced gpuslice-hook gpuslice-runtime)
[ ! -e bin/containerd-shim-gpuslice-v1 ] || programs+=(containerd-shim-gpuslice-v1)

edited=$(mktemp)
trap 'rm -f "$edited"' EXIT
# with_prefix FILE: the file with PREFIX in the place of the default one, in $edited.
with_prefix() { sed "s|/usr/local/|$PREFIX/|g" "$1" >"$edited"; }

# put MODE SOURCE TARGET: a new file under the old name. Whoever has the old one open or mapped keeps it;
# writing into it would change the code of programs that run.
put() {
	install -d "$(dirname "$3")"
	install -m "$1" "$2" "$3.new.$$"
	mv -f "$3.new.$$" "$3"
	echo "  $3"
}

case ${1:-} in
install)
	for p in "${programs[@]}"; do
		put 0755 "bin/$p" "$root$PREFIX/bin/$p"
	done
	# The path names the version: containers that run keep theirs through an upgrade, so older ones stay.
	library=$root$PREFIX/lib/gpuslice/$VERSION/libgpuslice.so
	if cmp -s bin/libgpuslice.so "$library"; then
		echo "  $library (is there)"
	else
		put 0644 bin/libgpuslice.so "$library"
	fi
	ln -sfn "$VERSION/libgpuslice.so" "$root$PREFIX/lib/gpuslice/libgpuslice.so.new.$$"
	mv -fT "$root$PREFIX/lib/gpuslice/libgpuslice.so.new.$$" "$root$PREFIX/lib/gpuslice/libgpuslice.so"

	config=$root$SYSCONFDIR/gpuslice/config.toml
	if [ -e "$config" ]; then
		echo "  $config (kept)"
	else
		with_prefix configs/config.toml
		put 0644 "$edited" "$config"
	fi
	with_prefix configs/gpusliced.service
	put 0644 "$edited" "$root$UNITDIR/gpusliced.service"
	if [ -z "$root" ]; then
		if [ "$(id -u)" = 0 ] && ! getent group gpuslice >/dev/null; then
			groupadd --system gpuslice && echo "  group gpuslice"
		fi
		[ ! -d /run/systemd/system ] || systemctl daemon-reload
		echo "Next: systemctl enable --now gpusliced && gpuslice doctor"
	fi
	;;
uninstall)
	if [ -z "$root" ] && [ -d /run/systemd/system ]; then
		systemctl disable --now gpusliced 2>/dev/null || true
	fi
	for p in "${programs[@]}" containerd-shim-gpuslice-v1; do
		rm -f "$root$PREFIX/bin/$p"
	done
	rm -f "$root$UNITDIR/gpusliced.service"
	# A bind in a container that runs keeps the file itself; new containers are no longer made.
	rm -rf "$root$PREFIX/lib/gpuslice"
	echo "Kept: $root$SYSCONFDIR/gpuslice, $root/var/lib/gpuslice and the group gpuslice"
	;;
*)
	echo "usage: install.sh install|uninstall" >&2
	exit 64
	;;
esac
