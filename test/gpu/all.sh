#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2312 # an empty value fails a comparison or is printed
#
# all.sh [--simulated] [--only NAME…]: run the tests that need a GPU, and print a line for each part. As root, with gcc and Python; on a
# card with nvcc and the frameworks that frameworks.py names. Needs no Go and no network. GPUSLICE_GENERATED=3600 runs generated programs
# for an hour.
#
# The programs come from `make card-programs kubernetes-card`, or from bin/card.tar.xz (pack.sh). OUT gets the logs. No part starts after
# BUDGET seconds (0: no limit; all of them take 20 minutes). --simulated runs the shortest form of each part on the simulated driver, and
# fails if a script here is in no part.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit

# A bundle's tmpfs on /tmp would hide a tree below it.
if [[ $PWD/ == /tmp/* ]]; then
	copy=$(mktemp -d /var/tmp/gpuslice-card.XXXXXX)
	trap 'rm -rf "$copy"' EXIT
	tar --exclude=./.git --exclude=./.cache -cf - . | tar -C "$copy" -xf - && "$copy/test/gpu/all.sh" "$@"
	exit
fi
if [ ! -x bin/gpuslice ] && [ -f bin/card.tar.xz ]; then
	tar -C bin -xJf bin/card.tar.xz || exit
fi
OUT=${OUT:-$(mktemp -d)}
mkdir -p "$OUT" bin/gpu-test/loaders
OUT=$(cd "$OUT" && pwd)
[ ! -x bin/runc ] || RUNC=${RUNC:-$PWD/bin/runc}
RUNC=${RUNC:-$(PATH=$PATH:/usr/sbin:/sbin command -v runc)}
export OUT RUNC

# program NAME VRAM ARGUMENT…: one of test/interceptor's programs in a slice
program() {
	local name=$1 vram=$2
	shift 2
	if gcc -std=gnu11 -O1 -g -Iinterceptor -o "bin/gpu-test/$name" "test/interceptor/programs/$name"*.c interceptor/ledger.c -lcuda \
		-l:libnvidia-ml.so.1 -ldl -lpthread &&
		timeout 150 bin/gpuslice run --embedded --quiet --vram "$vram" -- "bin/gpu-test/$name" "$@" >"$OUT/program-$name.txt" 2>&1; then
		echo "PASS  $name $*: $(tail -n 1 "$OUT/program-$name.txt")"
	else
		echo "FAIL  $name $*: $(head -n 5 "$OUT/program-$name.txt")"
	fi
}

section_programs() { # ROUNDS of kills, SECONDS of the storm
	program routes 4G
	program accounting 4G
	program threads 8G 8 1500
	program crowd 4G busy 16 30 1024
	program crowd 4G graph 16 30 1024
	program fork 4G
	program nvml 4G agree
	program race 8G 20 8 2 8589934592
	program kills 4G "$1"
	program checkpoint 4G
	program primary 8G 4 20
	program codethreads 8G 8 200
	program signals 4G 10
	program environ 4G 5
	program allocator 8G
	program storm 16G "$2" 16 3
}

# loaders.c is not linked with libcuda, and its plugins are in its directory.
plugin() { # OUTPUT SOURCE FLAG…
	local output=bin/gpu-test/loaders/$1 source=test/interceptor/programs/$2
	shift 2
	gcc -std=gnu11 -O1 -g -Iinterceptor -o "$output" "$source" "$@" -ldl
}

section_loaders() {
	local way order
	plugin loaders loaders.c && plugin plugin-linked.so plugin.c -shared -fPIC -DLINKED -lcuda &&
		plugin plugin-opens.so plugin.c -shared -fPIC -DOPENS && plugin plugin-nested.so plugin.c -shared -fPIC -DNESTS &&
		plugin plugin-next.so plugin.c -shared -fPIC -DNEXT || return
	for way in by-path copy dlmopen libc-dlsym libc-dlvsym next-dlsym plugin-linked plugin-opens plugin-nested; do
		for order in alone after before; do
			timeout 60 bin/gpuslice run --embedded --quiet --vram 4G -- bin/gpu-test/loaders/loaders "$way" "$order" 4294967296 \
				"$PWD/bin/gpu-test/loaders" >"$OUT/loader.txt" 2>&1 && echo "PASS  $way $order" ||
				echo "FAIL  $way $order: $(tail -n 3 "$OUT/loader.txt")"
		done
	done
}

# section_conformance OVERRIDES: run each program, and print the lines that differ from a card's, except those of a file
section_conformance() {
	local status=0 keyed=test/conformance/keyed.awk
	test/conformance/run.sh bin/conformance >"$OUT/conformance-seen.txt" 2>&1 || status=1
	awk -f "$keyed" "$1" test/conformance/expected/h100.txt >"$OUT/conformance-expected.txt"
	awk -f "$keyed" /dev/null "$OUT/conformance-seen.txt" | diff "$OUT/conformance-expected.txt" - >"$OUT/conformance-diff.txt"
	echo "$(grep -c '^>' "$OUT/conformance-diff.txt") of $(grep -c . "$OUT/conformance-expected.txt") lines differ from those expected"
	return "$status"
}

simulated='' only=()
case ${1:-} in
section)
	"section_$2" "${@:3}"
	exit
	;;
--simulated) simulated=1 && shift ;;
esac
if [ "${1:-}" = --only ]; then
	shift
	only=("$@")
elif [ $# -gt 0 ]; then
	echo "usage: $0 [--simulated] [--only NAME…]" >&2
	exit 2
fi
[ -x bin/gpuslice ] || { echo "$0: no bin/gpuslice: run make card-programs, or bring bin/card.tar.xz (test/gpu/pack.sh)" >&2; exit 2; }

devices=0 budget=${BUDGET:-0}
if [ -n "$simulated" ]; then
	devices=2
	dir=$(mktemp -d /var/tmp/gpuslice-cards.XXXXXX)
	chmod 1777 "$dir" # a broker is a user of its own
	mkdir "$dir/lib" "$dir/engines" && mkdir -m 1777 "$dir/ran"
	ln -s "$PWD/bin/fakecuda/libcuda.so.1" "$dir/lib/libcuda.so"
	ln -s "$PWD/bin/fakecuda/libnvidia-ml.so.1" "$dir/lib/"
	for name in $(compgen -e FAKECUDA_); do unset "$name"; done
	# Debian's Python has grpcio; nvcc and PyTorch have stand-ins.
	export PYTHONPYCACHEPREFIX=$dir/pycache # a module that was compiled before would not be recorded
	export PATH=$PWD/test/gpu/simulated:/usr/bin:$PATH LIBRARY_PATH=$dir/lib LD_LIBRARY_PATH=$PWD/bin/fakecuda
	recorder=$PWD/test/gpu/simulated/ran
	cache=${GPUSLICE_ENGINES:-${XDG_CACHE_HOME:-$HOME/.cache}/gpuslice/engines}
	for name in docker-29/dockerd docker-29/docker docker-29/docker-init containerd-2/containerd containerd-2/containerd-shim-runc-v2 runc-static/runc; do
		[ ! -x "$cache/$name" ] || ln -s "$cache/$name" "$dir/engines/"
	done
	ENGINES=$dir/engines
else
	devices=$(nvidia-smi -L | grep -c '^GPU')
fi
ENGINES=${ENGINES:-$PWD/bin/engines}

passed=0 failed=0 skipped=0 names=() why=()
# Each part has a simulated card of its own, so several can run at once.
jobs=${simulated:+${JOBS:-3}}
results=$(mktemp -d)
trap 'rm -rf "$results" "${dir:-$results}"' EXIT

wanted() { # NAME
	[ ${#only[@]} = 0 ] || [[ " ${only[*]} " == *" $1 "* ]]
}

# result NAME WORD PASSED FAILED SKIPPED SECONDS NOTE: store and show a part's line
result() {
	echo "$3 $4 $5" >"$results/$1.counts"
	printf '%-12s %-8s %6s %6s %8s %5s s  %s\n' "$1" "$2" "$3" "$4" "$5" "$6" "$7" | tee "$results/$1.row"
}

skip() { # NAME REASON
	wanted "$1" || return 0
	names+=("$1")
	result "$1" skipped 0 0 1 0 "$2"
}

# part NAME SECONDS PROGRAM CARD SIMULATED: run a program with the words of CARD or of SIMULATED, of which the first may be VAR=VALUE; @ is
# a directory for its logs.
part() {
	local name=$1 limit=$2 program words
	wanted "$name" || return 0
	names+=("$name")
	read -ra program <<<"$3"
	read -ra words <<<"${simulated:+$5}"
	[ -n "$simulated" ] || read -ra words <<<"$4"
	words=("${words[@]/#@/$OUT/$name}")
	if [ -n "$simulated" ]; then
		while (($(jobs -rp | wc -l) >= jobs)); do
			wait -n
		done
		run "$name" "$limit" &
		return
	fi
	if [ "$budget" != 0 ]; then
		if ((budget - SECONDS < 5)); then
			result "$name" "not run" 0 1 0 0 "$budget s are over: all.sh --only $name"
			return
		fi
		limit=$((limit < budget - SECONDS ? limit : budget - SECONDS))
	fi
	if [ -n "$beside" ]; then
		run "$name" "$limit" &
	else
		run "$name" "$limit"
	fi
}

run() { # NAME SECONDS, of program and words
	local name=$1 limit=$2 log=$OUT/$1.txt begin=$SECONDS status p f s paths=${recorder:-} variables=()
	while [[ ${words[0]:-} =~ ^[A-Z_]+= ]]; do
		variables+=("${words[0]}")
		[[ ${words[0]} != PYTHONPATH=* ]] || paths+=:${words[0]#*=}
		words=("${words[@]:1}")
	done
	if [ -n "$simulated" ]; then
		variables+=("FAKECUDA_STATE=$dir/state-$name" "PYTHONPATH=$paths")
		limit=$((3 * limit)) # others run at the same time
	fi
	timeout --kill-after=10 "$limit" env "${variables[@]}" "${program[@]}" "${words[@]}" >"$log" 2>&1 </dev/null
	status=$?
	p=$(grep -ac '^PASS' "$log") f=$(grep -ac '^FAIL' "$log") s=$(grep -ac '^SKIP' "$log")
	((p + f > 0)) || p=$((status == 0))
	((status == 0 || f > 0)) || f=1
	if [ "$f" = 0 ]; then
		result "$name" passed "$p" 0 "$s" $((SECONDS - begin)) "$(grep -ahE '^(SKIP|[0-9]+ of [0-9]+ lines)' "$log" | cut -c1-80 | paste -sd ';')"
		return
	fi
	result "$name" FAILED "$p" "$f" "$s" $((SECONDS - begin)) "exit status $status$([ "$status" != 124 ] || echo ", after $limit s"): $log"
	{
		echo "--- $name"
		grep -a '^FAIL' "$log" | cut -c1-400 | head -n 20
		echo "..."
		tail -n 12 "$log" | cut -c1-400
	} >"$results/$name.why"
}

torch="PYTHONPATH=$PWD/test/gpu/simulated"
here=test/gpu
# These check their own processes only, so they run in parallel on a card, too.
beside=1
part frameworks 240 "python3 $here/frameworks.py" "--jobs 4 --limit 220 --out @ --json $OUT/frameworks.json" "--only c-linear --out @"
part check 120 "python3 $here/check.py" "--out @" "$torch --out @"
part tools 100 "$here/tools.py" "TOOLS_TIMEOUT=60 --out @" "--out @"
part loaders 60 "$here/all.sh section loaders" "" ""
beside=''
[ -n "$simulated" ] || wait
part conformance 120 "$here/all.sh section conformance" "/dev/null" "test/conformance/expected/simulated.txt"
part programs 300 "$here/all.sh section programs" "40 10" "10 2"
generated=''
[ -z "${GPUSLICE_GENERATED:-}" ] || generated="--seconds $GPUSLICE_GENERATED"
part generated $((120 + ${GPUSLICE_GENERATED:-100})) "$here/generated.py" "${generated:---seconds 100} --out @" \
	"${generated:---programs 10 --threads 1 --processes 1} --out @"
part pieces 120 "$here/generated.py" "--elastic --seconds 60 --out @" "--elastic --programs 4 --seed 100 --out @"
part bypass 200 "$here/bypass.py" "--out @" "--out @"
part elastic 90 "$here/elastic.py" "--size 20 --small 4 --seconds 12 --only notebook turns --out @" \
	"--size 1 --small 2 --seconds 4 --only cost notebook frameworks turns woken --out @"
part rows 120 "$here/rows.py" "--out @" "--out @ --jobs 2"
part leases 120 "$here/leases.py" "--out @" "--out @ --small 4"
part lease 90 "$here/lease.py" "--quick" "--quick"
part python 120 "$here/python_lease.py" "--out @" "--out @ --size 0.125"
part explain 90 "$here/explain.py" "--out @" "$torch --out @"
part suspend 240 "$here/suspend.py" "--size 30 --small 4 --rounds 1 --out @" "FAKECUDA_MEMORY=8G --size 1 --small 1 --rounds 1 --out @"
part runtime 240 "$here/runtime.py" "" ""
part vmm 90 "$here/vmm.py" "--quick --time 8 --out @" "--quick --time 4 --out @"
if [ -x bin/gpuslice-dra ] && [ -x bin/kubelet ]; then
	part kubernetes 90 "$here/kubernetes.py" "--out @" "--out @"
else
	skip kubernetes "no bin/gpuslice-dra and bin/kubelet: make kubernetes-card"
fi
if [ -x "$ENGINES/dockerd" ] && [ -x "$ENGINES/containerd" ]; then
	part docker 120 "$here/docker.py" "--engines $ENGINES --rounds 5 --starts 10 --out @" "$torch --engines $ENGINES --rounds 1 --starts 4 --out @"
else
	skip docker "no engines in $ENGINES: test/engines/build.sh card"
fi
if ((devices >= 2)); then
	part two 120 "$here/two.py" "--out @" "FAKECUDA_DEVICES=2 --out @"
else
	skip two "one GPU here"
fi
part checkpoint 180 "$here/elastic.py" "--checkpoint --size 10 --seconds 12 --only turns --out @" \
	"--checkpoint --size 1 --seconds 4 --only turns --out @"
part moved 240 "$here/elastic.py" "--size 20 --small 4 --times 4 --rounds 1 --only swap hundred --out @" \
	"FAKECUDA_MEMORY=4G FAKECUDA_CONTEXT=128M --small 0.75 --seconds 4 --times 2 --rounds 1 --models 3 --model 1 --only swap hundred models --out @"
part bench 90 "test/bench/bench.py" "--quick --out @" "--quick --rounds 1 --only cuMemAlloc,cuLaunchKernel --out @"
[ -z "$simulated" ] || part pack 120 "$here/pack.sh" "" "XZ_OPT=-1 $OUT/card.tar.xz"

wait
if [ -n "$simulated" ]; then
	cat <<'END'

Left out without a card: PyTorch, JAX, CuPy, Triton and Numba (frameworks/*.py: none runs on the simulated driver), kernels of nvcc
(runtime.cu, tools.cu: other programs in C take their place), ncu, compute-sanitizer, cuda-gdb, NCCL, nvidia-ctk, and faults of kernels.
END
	for name in "$here"/*.py; do
		if [ ${#only[@]} = 0 ] && [ ! -e "$dir/ran/${name##*/}" ]; then
			failed=$((failed + 1))
			why+=("--- $name was not run: add it to a part of all.sh")
		fi
	done
fi
printf '\n%-12s %-8s %6s %6s %8s\n' part result passed failed skipped
for name in "${names[@]}"; do
	cat "$results/$name.row"
	read -r p f s <"$results/$name.counts"
	passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
	[ ! -e "$results/$name.why" ] || why+=("$(cat "$results/$name.why")")
done
[ ${#why[@]} = 0 ] || printf '%s\n' "${why[@]}"
echo "$SECONDS s"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
