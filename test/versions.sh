#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Write the newest release of Go's current minor version into go.mod, and the newest versions of the tools into test/versions. Prints what
# changed. The module proxy must be reachable.
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-$(test/go.sh)}
empty=$(mktemp -d) # a directory without a module
trap 'rm -rf "$empty"' EXIT

set_version() { # NAME VERSION
	sed -i "s|^$1=.*|$1=$2|" test/versions
}
newest() { # MODULE
	(cd "$empty" && "$go" list -m -f '{{.Version}}' "$1@latest")
}
minor=$(sed -n 's/^toolchain \(go1\.[0-9]*\).*/\1/p' go.mod)
all=$(cd "$empty" && "$go" list -m -versions golang.org/toolchain)
release=$(tr ' ' '\n' <<<"$all" | sed -n "s/^v0\.0\.1-\($minor\.[0-9]*\)\.linux-amd64$/\1/p" | sort -V | tail -1)
for arch in amd64 arm64; do
	module=$(cd "$empty" && "$go" mod download -json "golang.org/toolchain@v0.0.1-$release.linux-$arch")
	sum=$(sed -n 's/.*"Sum": "\(.*\)".*/\1/p' <<<"$module")
	set_version "go_sum_$arch" "${sum:?the Go command printed no sum of $release for $arch}"
done
sed -i "s/^toolchain .*/toolchain $release/" go.mod kubernetes/go.mod
while read -r name module; do
	version=$(newest "$module")
	set_version "$name" "$version"
done <<END
golangci_lint github.com/golangci/golangci-lint/v2
govulncheck golang.org/x/vuln
vulndb golang.org/x/vulndb
nfpm github.com/goreleaser/nfpm/v2
END
git diff --stat -- go.mod kubernetes/go.mod test/versions
