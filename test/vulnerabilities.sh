#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Fail if a program reaches a known vulnerability of Go's library or of a module that test/vulnerabilities.accepted does not name. The database
# is a Go module, pinned in test/versions: a new entry fails no unrelated change. The last line is "N passed, N failed, 0 skipped", of modules.
set -euo pipefail
cd "$(dirname "$0")/.."
. test/versions
go=${GO:-$(test/go.sh)}
goroot=$("$go" env GOROOT)
PATH=$goroot/bin:$PATH # govulncheck runs `go`
tools=$PWD/.cache/tools/govulncheck-$govulncheck
[ -x "$tools/govulncheck" ] || GOBIN=$tools "$go" install "golang.org/x/vuln/cmd/govulncheck@$govulncheck"
module=$("$go" mod download -json "golang.org/x/vulndb@$vulndb")
entries=$(sed -n 's/.*"Dir": "\(.*\)".*/\1/p' <<<"$module")/data/osv
db=$(mktemp -d)
trap 'rm -rf "$db"' EXIT
python3 test/vulnerabilities.py --index "$entries" "$db"
passed=0 failed=0
check() { # DIRECTORY FLAG…
	local where=$1
	shift
	if (cd "$where" && CGO_ENABLED=1 "$tools/govulncheck" -format json -db "file://$db" "$@") >"$db/found" &&
		python3 test/vulnerabilities.py test/vulnerabilities.accepted "$db/found" "$db/seen"; then
		passed=$((passed + 1))
	else
		echo "FAIL govulncheck of $where"
		failed=$((failed + 1))
	fi
}
check . ./cmd/...
check kubernetes -tags grpcnotrace ./cmd/...
while read -r id _; do
	[[ $id == GO-* ]] || continue
	grep -q "^$id$" "$db/seen" || {
		echo "FAIL test/vulnerabilities.accepted names $id, which no program reaches any more: remove its line"
		failed=$((failed + 1))
	}
done <test/vulnerabilities.accepted
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]
