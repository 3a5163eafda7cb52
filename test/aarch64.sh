#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# aarch64.sh [--quick]: compile the C code for aarch64, check the library's symbols, and run the interceptor's tests and the conformance
# programs under qemu-user, in slices of this machine's own enforcer. (test/ledger runs the ledger's race under qemu.) --quick leaves out
# the tests that race for seconds: the algorithms that they test do not depend on the machine.
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-$(test/go.sh)}
flags=()
[ "${1:-}" != --quick ] || flags=(-test.skip 'ManyProcessesRace|NeverStandsStill|AtOnceIsExactUnderKills|Storm|RaceForThePrimary|ThatLoadAndLaunch|AnotherThreadAllocates|TheDriverRefusesTheDriver|HearsTheDriversReason')
for tool in aarch64-linux-gnu-gcc qemu-aarch64-static busybox; do
	command -v "$tool" >/dev/null || {
		echo "aarch64: no $tool: test/deps.sh --ci" >&2
		exit 1
	}
done
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export AARCH64=$dir
cc=$PWD/test/platforms/aarch64-cc.sh
passed=0 failed=0
check() { # NAME COMMAND…
	local name=$1
	shift
	if "$@" >"$dir/said" 2>&1; then
		echo "ok   $name"
		passed=$((passed + 1))
	else
		echo "FAIL $name"
		cat "$dir/said"
		failed=$((failed + 1))
	fi
}
# The kernel's O_LARGEFILE in a file's flags has a different value on each machine.
conformance() {
	FAKECUDA_STATE=$dir/card test/conformance/run.sh "$dir/conformance" >"$dir/seen" || true
	local keyed=test/conformance/keyed.awk expected=test/conformance/expected
	awk -f "$keyed" "$expected/simulated.txt" "$expected/h100.txt" >"$dir/expected" &&
		awk -f "$keyed" /dev/null "$dir/seen" >"$dir/keyed" &&
		sed -i '/\/file\.flags: /d' "$dir/expected" "$dir/keyed" &&
		diff -u "$dir/expected" "$dir/keyed"
}

# By the Makefile's own rules, in separate directories.
make --no-print-directory CC="$cc" FAKECUDA_BIN="$dir/fakecuda" FAKECUDA_OBJ="$dir/obj" INTERCEPTOR="$dir/libgpuslice.so" \
	"$dir/libgpuslice.so" "$dir/fakecuda/libcuda.so.1" "$dir/fakecuda/libnvidia-ml.so.1" "$dir/fakecuda-11.2/libcuda.so.1"
make --no-print-directory CC="$cc" CONFORMANCE_BIN="$dir/conformance" conformance
check "symbols" test/check-symbols.sh "$dir/libgpuslice.so" interceptor/exports.txt
check "conformance" conformance

# The tests and cgo's compiler are this machine's; the compiled programs are not.
"$go" build -trimpath -buildvcs=false -o "$dir/report" ./test/report
"$go" test -c -buildvcs=false -o "$dir/tests" ./test/interceptor
(cd test/interceptor && CC=$cc "$go" tool test2json -t -p test/interceptor "$dir/tests" -test.v=test2json -test.timeout=24m "${flags[@]}") 2>&1 |
	"$dir/report" -strict | tee "$dir/said" || failed=$((failed + 1))
sum=$(grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$dir/said" | tail -1)
read -r p _ f _ <<<"$sum"
echo "$((passed + p)) passed, $((failed > f ? failed : failed + f)) failed, 0 skipped"
[ "$failed" = 0 ]
