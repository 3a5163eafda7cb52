#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Print the Go command to use: the first in PATH, else the one that deps.sh fetched. Go 1.21 and
# newer fetch the toolchain that go.mod names by themselves.
root=$(cd "$(dirname "$0")/.." && pwd)
for go in "$(command -v go)" /usr/local/go/bin/go "$root/.cache/go/bin/go"; do
	[ -x "$go" ] || continue
	minor=$("$go" env GOVERSION 2>/dev/null | sed -n 's/^go1\.\([0-9]*\).*/\1/p')
	if [ "${minor:-0}" -ge 21 ]; then
		echo "$go"
		exit 0
	fi
done
# Said again, with what to do, by whoever tries to run it.
echo go
