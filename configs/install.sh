#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# install.sh install|uninstall, with BIN, PREFIX, DESTDIR, SYSCONFDIR, UNITDIR, ZSHDIR and VERSION in the environment. The Makefile and
# packages/build.sh call it. It uninstalls nothing that is in use, unless FORCE is set.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${BIN:?}" "${PREFIX:?}" "${VERSION:?}" "${SYSCONFDIR:?}" "${UNITDIR:?}"
root=${DESTDIR:-}
libdir=$root$PREFIX/lib/gpuslice
share=$PREFIX/share
. configs/library.sh

# MODE, source, target. In files with an "@" names below /usr/local become names below PREFIX.
files=()
for program in gpuslice gpusliced gpuslice-leased gpuslice-broker gpuslice-hook gpuslice-runtime containerd-shim-gpuslice-v1; do
	files+=("0755 $BIN/$program $PREFIX/bin/$program")
done
files+=(
	"0644 @configs/gpusliced.service $UNITDIR/gpusliced.service"
	"0644 @configs/gpuslice-leased.service $UNITDIR/gpuslice-leased.service"
	"0644 configs/sysusers.conf $PREFIX/lib/sysusers.d/gpuslice.conf"
	"0644 @bin/share/gpuslice.1 $share/man/man1/gpuslice.1"
	"0644 @bin/share/gpuslice.toml.5 $share/man/man5/gpuslice.toml.5"
	"0644 @docs/man/gpusliced.8 $share/man/man8/gpusliced.8"
	"0644 @docs/man/gpuslice-leased.8 $share/man/man8/gpuslice-leased.8"
	"0644 @docs/man/gpuslice-hook.8 $share/man/man8/gpuslice-hook.8"
	"0644 @docs/man/gpuslice-runtime.8 $share/man/man8/gpuslice-runtime.8"
	"0644 configs/shared.toml $share/gpuslice/shared.toml"
	"0644 api/openapi.yaml $share/gpuslice/openapi.yaml"
	"0644 bin/share/gpuslice.bash $share/bash-completion/completions/gpuslice"
	"0644 bin/share/gpuslice.zsh ${ZSHDIR:-$share/zsh/site-functions}/_gpuslice"
	"0644 bin/share/gpuslice.fish $share/fish/vendor_completions.d/gpuslice.fish"
)

edited=$(mktemp)
trap 'rm -f "$edited"' EXIT

# put MODE SOURCE TARGET: a new file under the old name. Processes that have the old one open or mapped keep it: writing into it would
# change the code of running programs.
put() {
	local source=$2
	if [[ $source == @* ]]; then
		sed "s|/usr/local/|$PREFIX/|g" "${source#@}" >"$edited"
		source=$edited
	fi
	install -d "$(dirname "$root$3")"
	install -m "$1" "$source" "$root$3.new.$$"
	mv -f "$root$3.new.$$" "$root$3"
	echo "  $root$3"
}

case ${1:-} in
install)
	for file in "${files[@]}"; do
		read -r mode source target <<<"$file"
		put "$mode" "$source" "$target"
	done
	gpuslice_add "$BIN/libgpuslice.so" "$libdir" "$VERSION"
	config=$SYSCONFDIR/gpuslice/config.toml
	if [ -e "$root$config" ]; then
		echo "  $root$config (kept)"
	else
		put 0644 @configs/config.toml "$config"
	fi
	if [ -z "$root" ]; then
		if [ "$EUID" = 0 ] && ! getent group gpuslice >/dev/null; then
			groupadd --system gpuslice && echo "  group gpuslice"
		fi
		if [ -d /run/systemd/system ]; then
			systemctl daemon-reload
			echo "Next: systemctl enable --now gpusliced && gpuslice doctor"
		else
			echo "Next: have your supervisor run $PREFIX/bin/gpusliced (docs/operate/daemon.md, \"Hosts without systemd\"), then gpuslice doctor"
		fi
	fi
	;;
uninstall)
	if [ -z "$root" ]; then
		# Containers would lose their runtime: their engine could not stop them.
		"$PREFIX/bin/gpuslice" in-use ${FORCE:+--force}
		if [ -d /run/systemd/system ]; then
			systemctl disable --now gpuslice-leased gpusliced 2>/dev/null || true
		fi
		"$PREFIX/bin/gpuslice" in-use --daemon ${FORCE:+--force}
		# An engine could start nothing with a configured runtime that is gone.
		"$PREFIX/bin/gpuslice" uninstall all || echo "Look at the engines' configurations yourself: is gpuslice still named there?" >&2
	fi
	for file in "${files[@]}"; do
		rm -f "$root${file##* }"
	done
	gpuslice_remove "$libdir"
	echo "Kept: $root$SYSCONFDIR/gpuslice, $root/var/lib/gpuslice and the group gpuslice"
	;;
*)
	echo "usage: install.sh install|uninstall" >&2
	exit 64
	;;
esac
