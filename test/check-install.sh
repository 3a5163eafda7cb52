#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Install below an empty directory, look at what is there, install again, uninstall: the configuration is kept and
# nothing else is left.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
installed=(make --no-print-directory DESTDIR="$root" PREFIX=/opt/gpuslice)
wrong() {
	echo "check-install: $*" >&2
	exit 1
}

"${installed[@]}" install
version=$("$root/opt/gpuslice/bin/gpusliced" --version | awk '{print $NF}')
"$root/opt/gpuslice/bin/gpuslice" version | grep -qF "$version" || wrong "gpuslice version is not gpusliced's, $version"
"$root/opt/gpuslice/bin/gpuslice-hook" --version | grep -qF "$version" || wrong "gpuslice-hook's version is not $version"
"$root/opt/gpuslice/bin/gpuslice-runtime" --version >/dev/null || wrong "gpuslice-runtime finds no runtime"
library=$root/opt/gpuslice/lib/gpuslice
cmp bin/libgpuslice.so "$library/$version/libgpuslice.so"
cmp bin/libgpuslice.so "$library/libgpuslice.so"
if grep -rn '/usr/local' "$root/etc" "$root/lib/systemd"; then
	wrong "another prefix than the one asked for"
fi
command -v systemd-analyze >/dev/null || wrong "no systemd-analyze: test/deps.sh --ci"
# It resolves the unit's ExecStart below the root, and wants the targets that every systemd has.
cp -r --parents /lib/systemd/system "$root"
if ! said=$(systemd-analyze verify --man=no --root="$root" /lib/systemd/system/gpusliced.service 2>&1) || [ -n "$said" ]; then
	wrong "systemd-analyze: $said"
fi
find "$root/lib/systemd/system" -mindepth 1 ! -name gpusliced.service -delete

echo '# edited' >>"$root/etc/gpuslice/config.toml"
"${installed[@]}" install >/dev/null
grep -q '^# edited' "$root/etc/gpuslice/config.toml" || wrong "the configuration was overwritten"
"${installed[@]}" uninstall
left=$(find "$root" ! -type d)
[ "$left" = "$root/etc/gpuslice/config.toml" ] || wrong "left behind: $left"
echo "check-install: ok"
