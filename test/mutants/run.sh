#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2312 # an empty value fails a comparison or is printed
#
# run.sh [-n] [-j N] [PATTERN]: inject the faults of test/mutants/*.list, one at a time, into a copy of the tree, and run the tests that
# should catch each. PATTERN (an extended regular expression) selects lines; -j is how many copies work at once (all processors).
# With -n no test is run: each line is checked to apply to the tree, and to name a test that there is.
#
# A line is: file | what the fault is | sed expression | packages to test, optionally -run pattern
# Before the packages, make:TARGET names what the fault needs rebuilt. A mutant that a test fails on has passed; a survivor has failed,
# and so has one that changes nothing, does not compile, or has tests that fail without it. A skip: this machine skips its tests.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
usage="usage: test/mutants/run.sh [-n] [-j N] [PATTERN]"
jobs=$(nproc) check_only=
while getopts :nj: option; do
	case $option in
	n) check_only=1 ;;
	j) jobs=$OPTARG ;;
	*) echo "$usage" >&2 && exit 2 ;;
	esac
done
shift $((OPTIND - 1))
if [ $# -gt 1 ] || ! [ "$jobs" -gt 0 ] 2>/dev/null; then
	echo "$usage" >&2
	exit 2
fi
pattern=${1:-}
tree=$PWD
work=$(mktemp -d "${TMPDIR:-/tmp}/mutants.XXXXXX") || exit 2
workers=()
finish() {
	[ ${#workers[@]} = 0 ] || kill "${workers[@]}" 2>/dev/null
	wait
	rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM

mapfile -t mutants < <(cat test/mutants/*.list | grep -v -e '^#' -e '^[[:space:]]*$' | grep -E -e "$pattern")
if [ ${#mutants[@]} = 0 ]; then
	echo "mutants: no line of test/mutants/*.list matches '$pattern'" >&2
	exit 2
fi

# inject LINE TO: set file and words by the line, and write the file with the fault to TO. why says that the line does not apply; it is
# empty if it does.
inject() {
	local expression=${1#* | * | } said word packages=()
	file=${1%% | *} why=${1##* | }
	read -ra words <<<"${why//[\'\"]/}"
	why=
	if ! [ -f "$tree/$file" ]; then
		why="no longer applies: there is no $file"
	elif ! said=$(sed "${expression% | *}" "$tree/$file" 2>&1 >"$2"); then
		why="sed fails: $said"
	elif cmp -s "$tree/$file" "$2"; then
		why="no longer applies: its sed expression changes nothing"
	fi
	for word in "${words[@]}"; do
		[[ $word == ./* ]] || continue
		packages+=("$tree/$word")
		[ -d "$tree/$word" ] || why="there is no package $word"
	done
	if [ -z "$why" ] && [[ " ${words[*]}" =~ \ -run\ ([^ /]+) ]] &&
		! find "${packages[@]}" -maxdepth 1 -name '*_test.go' -exec sed -n 's/^func \([A-Z][^(]*\)(.*/\1/p' {} + | grep -E -- "${BASH_REMATCH[1]}" >/dev/null; then
		why="no test is called so"
	fi
}

# title LINE: print its file and its fault.
title() {
	local what=${1#* | }
	printf '%s: %s' "${1%% | *}" "${what%% | *}"
}

if [ -n "$check_only" ]; then
	failed=0
	for line in "${mutants[@]}"; do
		inject "$line" "$work/faulty"
		[ -z "$why" ] || { echo "FAIL $(title "$line"): $why" && failed=$((failed + 1)); }
	done
	echo "$((${#mutants[@]} - failed)) apply, $failed do not"
	[ "$failed" = 0 ]
	exit
fi

GO=${GO:-$(test/go.sh)}
VERSION=${VERSION:-$(test/version.sh)} # a copy has no commit
export GO VERSION GOFLAGS="${GOFLAGS:--trimpath -vet=off} -buildvcs=false" CGO_CFLAGS="${CGO_CFLAGS:--O2 -g -Wno-deprecated-declarations}"
mkdir "$work/claimed" "$work/results" "$work/baseline"

# copy DIR: the tree with uncommitted changes and builds.
copy() {
	mkdir -p "$1"
	git ls-files -coz --exclude-standard | while IFS= read -rd '' path; do
		[ ! -e "$path" ] || printf '%s\0' "$path"
	done | xargs -0 cp -a --parents -t "$1" && cp -a bin .cache "$1"
}

# contained COMMAND…: run it in a process group of its own, and kill its remains: a mutant may loop forever.
contained() {
	local status=0
	set -m
	"$@" </dev/null 2>&1 &
	group=$!
	set +m
	wait "$group" || status=$?
	kill -KILL -- "-$group" 2>/dev/null
	group=
	return "$status"
}

# run_tests WORD…: build what the tests need, and run them, in this directory. Returns 2 if it does not compile.
run_tests() {
	local targets=() packages=() dir=.
	while [ $# -gt 0 ]; do
		case $1 in
		make:*) targets+=("${1#make:}") ;;
		./kubernetes/*) dir=kubernetes packages+=("./${1#./kubernetes/}") ;;
		*) packages+=("$1") ;;
		esac
		shift
	done
	if [ ${#targets[@]} -gt 0 ] && ! contained make "${targets[@]}"; then
		return 2
	fi
	if [ "$dir" = kubernetes ]; then
		CGO_ENABLED=0 contained "$GO" -C kubernetes test -tags grpcnotrace -count=1 -v -failfast -timeout 5m "${packages[@]}"
	else
		contained "$GO" test -count=1 -v -failfast -timeout 5m "${packages[@]}"
	fi
}

# baseline LOG WORD…: set without to the reason why the tests show nothing without a fault; empty if they pass. Another worker may be doing
# so.
baseline() {
	local log=$1 key status
	shift
	key=$work/baseline/$(printf '%s' "$*" | cksum | tr ' ' -)
	exec {lock}>"$key.lock"
	flock "$lock"
	if ! [ -e "$key" ]; then
		run_tests "$@" >"$log"
		status=$?
		if [ "$status" != 0 ]; then
			echo "its tests fail without it, too" >"$key"
		elif grep -q '^--- PASS' "$log"; then
			: >"$key"
		elif grep -q '^--- SKIP' "$log"; then
			echo "skipped" >"$key"
		else
			echo "no test is called so" >"$key"
		fi
		[ ! -s "$key" ] || cp "$log" "$key.log"
	fi
	exec {lock}>&-
	without=$(<"$key")
	[ -z "$without" ] || cp "$key.log" "$log"
}

# try LINE LOG: print a mutant's result: caught, skipped, or why it failed.
try() {
	local log=$2 file words=() word why without status=0
	inject "$1" "$log.faulty"
	if [ -n "$why" ]; then
		echo "$why"
		return
	fi
	cp "$log.faulty" "$file"
	diff -u "$tree/$file" "$file" >"$log.diff"
	run_tests "${words[@]}" >"$log"
	status=$?
	if [ "$status" = 2 ] || grep -qE '\[(build|setup) failed\]' "$log"; then
		why="does not compile"
	elif [ "$status" = 0 ]; then
		why=survived
	fi
	cp -p "$tree/$file" "$file"
	for word in "${words[@]}"; do
		[[ $word != make:* ]] || cp -p "$tree/${word#make:}" "${word#make:}"
	done
	if [ -z "$why" ] || [ "$why" = survived ]; then
		baseline "$log.without" "${words[@]}"
		if [ -n "$without" ]; then
			why=$without
			mv "$log.without" "$log"
		fi
	fi
	echo "${why:-caught}"
}

# worker COPY: try lines until none is left for this worker.
worker() {
	local n line title how begun log
	local group=
	trap '[ -z "$group" ] || kill -KILL -- "-$group"; exit 1' TERM
	copy "$1" || exit 1
	cd "$1" || exit 1
	for n in "${!mutants[@]}"; do
		mkdir "$work/claimed/$n" 2>/dev/null || continue
		line=${mutants[n]}
		begun=$SECONDS log=$work/results/$n.log
		try "$line" "$log" >"$work/results/$n.how"
		how=$(<"$work/results/$n.how")
		title=$(title "$line")
		if [ "$how" = caught ]; then
			printf 'ok   %s (%d s)\n' "$title" $((SECONDS - begun))
		elif [ "$how" = skipped ]; then
			printf 'skip %s\n' "$title"
		else
			printf 'FAIL %s: %s\n' "$title" "$how"
			sed 's/^/     /' "$log.diff" 2>/dev/null | sed -n '4,40p'
			if [ "$how" != survived ]; then
				tail -30 "$log" 2>/dev/null | sed 's/^/     /'
			fi
		fi
		echo "$how" >"$work/results/$n"
	done
}

for ((w = 0; w < jobs && w < ${#mutants[@]}; w++)); do
	worker "$work/$w" &
	workers+=($!)
done
wait "${workers[@]}"
workers=()

passed=0 failed=0 skipped=0 survivors=()
for n in "${!mutants[@]}"; do
	how=$(cat "$work/results/$n" 2>/dev/null || echo "was not tried")
	case $how in
	caught) passed=$((passed + 1)) ;;
	skipped) skipped=$((skipped + 1)) ;;
	*) failed=$((failed + 1)) && survivors+=("$how: ${mutants[n]}") ;;
	esac
done
if [ "$failed" != 0 ]; then
	echo "not caught:"
	printf '  %s\n' "${survivors[@]}"
fi
echo "$((SECONDS / 60)) min $((SECONDS % 60)) s"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
