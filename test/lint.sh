#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# lint.sh [--strict] [--since COMMIT]: formatting and linters, each of which ends in ok, FAIL or skip. Without --strict, a linter that is not
# installed is skipped. With --since, the two slow linters, golangci-lint and clang-tidy, read only the packages and files that changed since
# COMMIT; "nightly" is the commit of the last whole run, in docs/evidence/nightly.md.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."
. test/versions
go=${GO:-$(test/go.sh)}
PATH=$(dirname "$go"):$PATH # golangci-lint runs `go`
export GOGC=400 # compiler and linters take a fifth less of the processors' time, and more memory
strict='' since=''
while [ $# -gt 0 ]; do
	case $1 in
	--strict) strict=--strict ;;
	--since)
		since=${2:?}
		shift
		;;
	*)
		echo "usage: lint.sh [--strict] [--since COMMIT]" >&2
		exit 2
		;;
	esac
	shift
done
if [ "$since" = nightly ]; then
	since=$(awk -F'[|`]' '$2 == " lint " && $7 ~ / 0 failed/ { print $4 }' docs/evidence/nightly.md)
	[ -n "$since" ] || echo "lint: docs/evidence/nightly.md records no lint without failures: everything is linted"
fi
if [ -n "$since" ] && ! git cat-file -e "$since^{commit}" 2>/dev/null; then
	echo "lint: commit $since is not in this clone: everything is linted"
	since=
fi
tools=$PWD/.cache/tools/golangci-lint-$golangci_lint
passed=0 failed=0 skipped=0

check() { # NAME COMMAND…
	local name=$1 output
	shift
	if output=$("$@" 2>&1); then
		echo "ok   $name"
		passed=$((passed + 1))
	else
		echo "FAIL $name"
		printf '%s\n' "$output"
		failed=$((failed + 1))
	fi
}

missing() { # NAME WHY
	if [ "$strict" = --strict ]; then
		echo "FAIL $1: $2"
		failed=$((failed + 1))
	else
		echo "skip $1: $2"
		skipped=$((skipped + 1))
	fi
}

have() { command -v "$1" >/dev/null; }
nothing_said() { # fail if the command says anything
	local output
	if output=$("$@") && [ -z "$output" ]; then
		return 0
	fi
	printf '%s\n' "$output"
	return 1
}

tidy() { # it counts what it does not show, too
	clang-tidy --quiet "$@" 2>&1 | { grep -v '^[0-9]* warnings\? generated\.$' || true; }
}
files() { # PATTERN…: of the tree as it is, with what is not committed yet
	git ls-files -co --exclude-standard -- "$@" | while read -r f; do [ ! -f "$f" ] || echo "$f"; done
}
c_files() { files '*.c' '*.h' | xargs grep -L 'Generated from'; }
# test/gpu needs the CUDA toolkit; the tests beside testdata compile it.
c_sources() { files '*.c' | grep -vE '^test/gpu/|/testdata/'; }
scripts() {
	files | xargs -d '\n' awk '
		FNR > 3 { nextfile }
		/^#!.*[\/ ](ba|da)?sh( |$)/ || /^# shellcheck shell=/ { print FILENAME; nextfile }'
}
# lines ARRAY COMMAND…: the array becomes the lines of the command's output.
lines() {
	local output
	output=$("${@:2}")
	mapfile -t "$1" < <(printf %s "$output")
}
go_files=() c_files=() c_sources=() scripts=() differing=() new=()
lines go_files files '*.go'
lines c_files c_files
lines c_sources c_sources
lines scripts scripts

# changed: of the files on standard input, those that differ from $since; all without one.
if [ -n "$since" ]; then
	lines differing git diff --name-only "$since" --
	lines new git ls-files -o --exclude-standard
fi
changed() {
	if [ -n "$since" ]; then
		grep -Fxf /dev/fd/3 3< <(printf '%s\n' "${differing[@]}" "${new[@]}") || [ $? = 1 ]
	else
		cat
	fi
}
# The sources to read again: those that changed, and those that include a header that did.
tidy_sources() {
	local headers
	headers=$(printf '%s\n' "${c_files[@]}" | { grep '\.h$' || true; } | changed | sed 's|.*/||' | paste -sd'|')
	{
		printf '%s\n' "${c_sources[@]}" | changed
		[ -z "$headers" ] || grep -lE "#include \"([^\"]*/)?(${headers//./\\.})\"" "${c_sources[@]}" || [ $? = 1 ]
	} | sort -u
}
# go_packages MODULE: the packages of it with changed files, relative to it
go_packages() {
	local file
	printf '%s\n' "${go_files[@]}" | grep -v /testdata/ | changed | while read -r file; do
		case $1:$file in
		kubernetes:kubernetes/*) dirname "./${file#kubernetes/}" ;;
		kubernetes:* | .:kubernetes/*) ;;
		*) dirname "./$file" ;;
		esac
	done | sort -u
}

for list in go_files c_files c_sources scripts; do
	declare -n found=$list
	if [ ${#found[@]} = 0 ]; then
		echo "lint: found none of $list: this must be a clone, with git" >&2
		exit 1
	fi
done

goroot=$("$go" env GOROOT)
check "gofmt" nothing_said "$goroot/bin/gofmt" -l "${go_files[@]}"
check "go generate changes nothing" test/check-generated.sh
if [ "$strict" = --strict ]; then # it fetches modules that only the tests of others need
	check "go mod tidy changes nothing" nothing_said "$go" mod tidy -diff
	check "go mod tidy of kubernetes changes nothing" nothing_said "$go" -C kubernetes mod tidy -diff
fi

if [ -n "$since" ]; then
	lines packages go_packages .
	lines packages_kubernetes go_packages kubernetes
	lines c_sources tidy_sources
	echo "since $since: ${#packages[@]} packages, ${#packages_kubernetes[@]} of kubernetes, ${#c_sources[@]} C sources"
else
	packages=(./...) packages_kubernetes=(./...)
fi
if [ "$strict" = --strict ] && [ ! -x "$tools/golangci-lint" ]; then
	echo "building golangci-lint $golangci_lint"
	said=$(GOBIN=$tools "$go" install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@"$golangci_lint" 2>&1) || echo "$said"
fi
if [ -x "$tools/golangci-lint" ]; then
	[ ${#packages[@]} = 0 ] || check "golangci-lint" "$tools/golangci-lint" run "${packages[@]}"
	[ ${#packages_kubernetes[@]} = 0 ] || check "golangci-lint of kubernetes" env -C kubernetes CGO_ENABLED=0 GOFLAGS=-trimpath \
		"$tools/golangci-lint" run --build-tags cluster,scale,grpcnotrace "${packages_kubernetes[@]}"
else
	# golangci-lint has vet, too.
	[ ${#packages[@]} = 0 ] || check "go vet" "$go" vet -tags engines,faults,hostile,prometheus,upgrade "${packages[@]}"
	[ ${#packages_kubernetes[@]} = 0 ] || check "go vet of kubernetes" env CGO_ENABLED=0 GOFLAGS=-trimpath \
		"$go" -C kubernetes vet -tags cluster,scale,grpcnotrace "${packages_kubernetes[@]}"
	missing "golangci-lint" "GOBIN=$tools go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$golangci_lint"
fi

if have clang-format; then
	check "clang-format" clang-format --dry-run -Werror "${c_files[@]}"
else
	missing "clang-format" "not installed (test/deps.sh --ci)"
fi
if have clang-tidy; then
	[ ${#c_sources[@]} = 0 ] || check "clang-tidy" tidy "${c_sources[@]}" -- -std=c11 -D_GNU_SOURCE -Iinterceptor -Itest/interceptor/programs \
		-Itest/fakecuda -Itest/conformance
else
	missing "clang-tidy" "not installed (test/deps.sh --ci)"
fi
if have shellcheck; then
	check "shellcheck" shellcheck -x "${scripts[@]}"
else
	missing "shellcheck" "not installed (test/deps.sh --ci)"
fi

# Every source file says its licence in its first lines.
unlicensed() {
	local f
	for f in "${go_files[@]}" "${c_files[@]}" "${scripts[@]}"; do
		head -5 "$f" | grep -q 'SPDX-License-Identifier: Apache-2.0' || echo "no SPDX line: $f"
	done
}
check "SPDX lines" nothing_said unlicensed
check "the mutants apply" test/mutants/run.sh -n

echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
