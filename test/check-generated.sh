#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Generate again what is generated, and say what changed. Works on a copy: the working tree is not touched.
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-$(test/go.sh)}
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
mkdir "$copy/before" "$copy/after"
git ls-files -co --exclude-standard -z | tar --null --ignore-failed-read -T - -cf - 2>/dev/null | tar -xf - -C "$copy/before"
cp -r "$copy/before/." "$copy/after"
(cd "$copy/after" && "$go" generate ./...)
diff -r "$copy/before" "$copy/after"
