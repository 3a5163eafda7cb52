#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# flaky.sh [--times N] [PACKAGE…]: run each Go suite N (10) times beside two busy loops, then N times on one core as well.
# The packages are directories, of ./... and kubernetes/... by default. Logs of failing runs are kept in .cache/flaky.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
go=${GO:-$(test/go.sh)}
usage="usage: test/flaky.sh [--times N] [PACKAGE…]"
times=10
while [ $# -gt 0 ]; do
	case $1 in
	--times)
		times=${2:-}
		shift $(($# > 1 ? 2 : 1))
		;;
	-*)
		echo "$usage" >&2
		exit 2
		;;
	*) break ;;
	esac
done
if ! [[ $times =~ ^[1-9][0-9]*$ ]]; then
	echo "$usage" >&2
	exit 2
fi

logs=$root/.cache/flaky
rm -rf "$logs"
mkdir -p "$logs"
dir=$(mktemp -d)
loops=()
cleanup() {
	[ ${#loops[@]} = 0 ] || kill "${loops[@]}" 2>/dev/null || true
	rm -rf "$dir"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# directories MODULE [PACKAGE…]: list the directories that have tests.
directories() {
	(cd "$1" && "$go" list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.Dir}}{{end}}' "${@:2}") | sed '/^$/d'
}

if [ $# = 0 ]; then
	directories . ./... >"$dir/list"
	directories kubernetes ./... >>"$dir/list"
else
	for package; do
		package=${package#./}
		case $package in
		kubernetes | kubernetes/*) directories kubernetes ".${package#kubernetes}" ;;
		*) directories . "./$package" ;;
		esac
	done >"$dir/list"
fi
mapfile -t packages <"$dir/list"

for _ in 1 2; do
	sh -c 'while :; do :; done' &
	loops+=($!)
done

passed=0 failed=0 skipped=0
printf '%-40s %5s %8s %10s\n' package runs failures slowest
for package in "${packages[@]}"; do
	name=${package#"$root/"}
	log=$logs/${name//\//_}
	if ! (cd "$package" && "$go" test -c -buildvcs=false -o "$dir/suite" .) >"$log.build" 2>&1; then
		printf '%-40s %5s %8s %10s\n' "$name" 0 build -
		failed=$((failed + 1))
		continue
	fi
	rm -f "$log.build"
	if [ ! -e "$dir/suite" ]; then # no test without build tags
		skipped=$((skipped + 1))
		continue
	fi
	runs=0 failures=0 slowest=0
	for pin in "" "taskset -c 0"; do
		for ((i = 1; i <= times; i++)); do
			runs=$((runs + 1))
			begin=$(date +%s%N)
			# shellcheck disable=SC2086 # pin is words
			if (cd "$package" && $pin "$dir/suite" -test.timeout 20m -test.v) >"$dir/log" 2>&1 </dev/null; then
				passed=$((passed + 1))
			else
				failures=$((failures + 1)) failed=$((failed + 1))
				cp "$dir/log" "$log.$runs"
			fi
			took=$((($(date +%s%N) - begin) / 1000000))
			slowest=$((took > slowest ? took : slowest))
		done
	done
	rm -f "$dir/suite"
	printf '%-40s %5d %8d %8d ms\n' "$name" "$runs" "$failures" "$slowest"
done
[ "$failed" = 0 ] || echo "the logs of failing runs are in $logs"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
