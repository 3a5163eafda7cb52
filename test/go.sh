#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Print the Go command to use: the release that go.mod names, fetched by the first Go in PATH that can (1.21 or newer) or by deps.sh.
# Without a network, print that first Go.
root=$(cd "$(dirname "$0")/.." && pwd) || exit
release=$(sed -n 's/^toolchain //p' "$root/go.mod") || exit
first=
for go in "$(command -v go)" /usr/local/go/bin/go "$root/.cache/go/bin/go"; do
	[ -x "$go" ] || continue
	minor=$("$go" env GOVERSION 2>/dev/null | sed -n 's/^go1\.\([0-9]*\).*/\1/p')
	[ "${minor:-0}" -ge 21 ] || continue
	goroot=$(cd "$root" && GOTOOLCHAIN=$release "$go" env GOROOT 2>/dev/null) && [ -x "$goroot/bin/go" ] && echo "$goroot/bin/go" && exit
	first=${first:-$go}
done
# The caller reports a missing Go, with the remedy.
echo "${first:-go}"
