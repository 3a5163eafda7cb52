#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Generate again what is generated, and say what changed. Works on a copy: the working tree is not touched.
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-$(test/go.sh)}
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
mkdir "$copy/before"
tar --exclude='./.*' --exclude=./bin -cf - . | tar -xf - -C "$copy/before"
cp -r "$copy/before" "$copy/after"
# What is generated is emptied first: a generator that writes nothing is seen.
mapfile -t generated < <(cd "$copy/after" && grep -rlE --include='*.[ch]' --include='*.txt' --include='*.md' '^( \*|#|<!--) Generated from' .)
if [ ${#generated[@]} = 0 ]; then
	echo "check-generated: found nothing that says it is generated" >&2
	exit 1
fi
for file in "${generated[@]}"; do
	: >"$copy/after/$file"
done
make -s -C "$copy/after" GO="$go" generate
rm -r "$copy/after/.cache"
diff -r "$copy/before" "$copy/after"
echo "check-generated: ${generated[*]}"
