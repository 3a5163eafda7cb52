#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Checks ledger.pml, pool.pml, elastic.pml and mover.pml (names that begin with "pool", "elastic" and "mover"): every configuration must
# hold, exhaustively, and every broken variant must be caught. Prints a table; fails on any other result, also if a search did not finish.
#
#   run.sh [--quick | --first] [-j JOBS]
#
# --quick selects those marked "quick" or "first" below, and --first those marked "first": seconds each.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
only=.
jobs=2
while [ $# -gt 0 ]; do
	case $1 in
	--quick) only='|quick|\||first|' ;;
	--first) only='|first|' ;;
	-j) jobs=$2; shift ;;
	*) echo "usage: run.sh [--quick | --first] [-j JOBS]" >&2; exit 2 ;;
	esac
	shift
done
for tool in spin gcc; do
	command -v $tool >/dev/null || { echo "run.sh: $tool is not installed" >&2; exit 2; }
done

# The variants' bases: the smallest configurations that show each fault.
pair='-DOPS=2 -DDEATHS=1 -DSIZES=2'
three='-DOPS=2 -DDEATHS=1 -DSIZES=1 -DOVERHEADS=1'
recycle='-DOPS=2 -DDEATHS=1 -DSIZES=1 -DRESPAWNS=1'
enforcer='-DOPS=1 -DDEATHS=1 -DSIZES=1 -DRESPAWNS=1 -DENFORCER_DEATHS=1 -DOVERHEADS=1'
limit='-DOPS=2 -DDEATHS=0 -DSIZES=2 -DLIMITS=1 -DLIMIT=3 -DLOW=1 -DSIBLINGS=0'
pools='-DOPS=2 -DDEATHS=1'
elastic='-DKILLS=0 -DENFORCER_KILLS=0'
elastic_death='-DKILLS=0 -DENFORCER_KILLS=1'
mover_late='-DTURNS=2 -DLATE=2'
mover_fails='-DFAILS=1'
mover_death='-DENFORCER_KILLS=1'
mover_depends='-DDEPENDS=1 -DTURNS=2'
reader='-DOPS=2 -DDEATHS=0 -DSIZES=1 -DREADER=1 -DSIBLINGS=0'

# expectation | name | speed | flags
list() {
	cat <<END
holds|pair|first|-DOPS=2 -DDEATHS=2 -DSIZES=2
holds|recycle|quick|$recycle
holds|peak|first|-DOPS=2 -DDEATHS=1 -DSIZES=1 -DPEAK=1
holds|limit-death|first|-DOPS=1 -DDEATHS=1 -DSIZES=1 -DLIMITS=1 -DENFORCER_DEATHS=1
holds|trio|long|-DCLIENTS=3 -DOPS=1 -DDEATHS=1 -DSIZES=1
holds|enforcer|long|$enforcer
holds|limit|long|$limit
holds|limit-deaths|long|-DOPS=1 -DDEATHS=1 -DSIZES=2 -DLIMITS=2 -DLIMIT=3 -DENFORCER_DEATHS=1
holds|raises|long|-DOPS=2 -DDEATHS=1 -DSIZES=2 -DRAISES=1
holds|reader|long|$reader
holds|pool|first|-DOPS=1 -DDEATHS=1
holds|pool: two calls|long|$pools
holds|pool: deaths|long|-DOPS=2 -DDEATHS=2
holds|pool: recycle|long|-DOPS=1 -DDEATHS=2 -DRESPAWNS=1
holds|pool: overhead|long|-DOPS=1 -DDEATHS=1 -DOVERHEADS=1
holds|pool: release|long|-DOPS=2 -DDEATHS=1 -DRELEASE=1
holds|elastic|first|$elastic
holds|elastic: two turns|quick|$elastic -DTURNS=2
holds|elastic: enforcer|first|$elastic_death
holds|elastic: both|long|
holds|elastic: restarts|middle|-DKILLS=0 -DENFORCER_KILLS=2
holds|elastic: driver|middle|$elastic_death -DFAILS=1
holds|elastic: store|middle|$elastic_death -DSTORE_FAILS=1
holds|elastic: failures|middle|$elastic -DFAILS=2 -DSTORE_FAILS=1
holds|mover|first|-DTURNS=2
holds|mover: a part|first|-DTURNS=2 -DPARTIAL=1 -DFAILS=1
holds|mover: a part, one by one|quick|-DPARTIAL=1 -DBATCH=1 $mover_death
holds|mover: one by one|quick|-DBATCH=1 -DFAILS=2
holds|mover: failures|quick|-DFAILS=2
holds|mover: late|middle|-DTURNS=2 -DLATE=1
holds|mover: busy|middle|$mover_depends -DBUSY=1 -DLATE=1
holds|mover: enforcer|quick|$mover_death -DFAILS=1
holds|mover: death|first|-DKILLS=1
holds|mover: closed|quick|$mover_death -DCLOSES=1
holds|mover: live|first|-DLIVE -DFAILS=1
holds|mover: live, dependent|middle|-DLIVE $mover_depends
holds|mover: restarts|middle|-DENFORCER_KILLS=2
holds|mover: late twice|middle|$mover_late
holds|mover: both|middle|$mover_death -DKILLS=1
holds|mover: all but death|long|$mover_death -DFAILS=1 -DLATE=1
holds|mover: spare SECOND_LOOK|middle|$mover_depends -DLATE=1 -DBROKEN_NO_SECOND_LOOK
holds|mover: spare BATCH_LOOK|quick|-DFAILS=1 -DLATE=1 -DBROKEN_BATCH_UNLOOKED
holds|spare: SUM_FIRST|quick|$pair -DSUM_FIRST
holds|spare: GENERATION_LATE|quick|$recycle -DGENERATION_LATE
caught|NO_CONFIRM|quick|$pair -DBROKEN_NO_CONFIRM
caught|CONFIRM_LATE|quick|$pair -DBROKEN_CONFIRM_LATE
caught|PLAIN_CONFIRM|quick|$three -DBROKEN_PLAIN_CONFIRM
caught|CHECK_THEN_STORE|quick|$three -DBROKEN_CHECK_THEN_STORE
caught|NUMBER_LATE|quick|$pair -DBROKEN_NUMBER_LATE
caught|ONE_SUM|quick|$pair -DBROKEN_ONE_SUM
caught|READ_ORDER|quick|$pair -DBROKEN_READ_ORDER
caught|SETTLE_UNCHECKED|quick|$pair -DBROKEN_SETTLE_UNCHECKED
caught|NO_GENERATION|quick|$recycle -DBROKEN_NO_GENERATION
caught|GENERATION_ONCE|quick|$recycle -DBROKEN_GENERATION_ONCE
caught|IDENTITY_FIRST|quick|$recycle -DBROKEN_IDENTITY_FIRST
caught|IDENTITY_LATE|quick|$recycle -DBROKEN_IDENTITY_LATE
caught|RECYCLE_KEEPS_SUMS|quick|$recycle -DBROKEN_RECYCLE_KEEPS_SUMS
caught|RECYCLE_KEEPS_NUMBER|quick|$recycle -DBROKEN_RECYCLE_KEEPS_NUMBER
caught|RECYCLE_NUMBER_FIRST|quick|$enforcer -DBROKEN_RECYCLE_NUMBER_FIRST
caught|OPEN_TRUSTS|quick|$enforcer -DBROKEN_OPEN_TRUSTS
caught|LIMIT_NO_BUMP|quick|$limit -DBROKEN_LIMIT_NO_BUMP
caught|LIMIT_BUMP_FIRST|quick|$limit -DBROKEN_LIMIT_BUMP_FIRST
caught|LIMIT_EARLY|quick|$limit -DBROKEN_LIMIT_EARLY
caught|REFUSE_UNCHECKED|quick|$limit -DBROKEN_REFUSE_UNCHECKED
caught|USED_FIRST|quick|$limit -DBROKEN_USED_FIRST
caught|HELD_SUM_FIRST|quick|$reader -DSUM_FIRST
caught|HELD_SETTLED|quick|$reader -DBROKEN_HELD_SETTLED
caught|pool: POOL_UNASKED|quick|$pools -DBROKEN_POOL_UNASKED
caught|pool: LAST_UNIT|quick|$pools -DBROKEN_LAST_UNIT
caught|pool: POOL_FIRST|quick|$pools -DBROKEN_POOL_FIRST
caught|pool: SLICE_FIRST|quick|$pools -DBROKEN_SLICE_FIRST
caught|pool: NO_GIVE_BACK|quick|$pools -DBROKEN_NO_GIVE_BACK
caught|pool: SLICE_ALONE|quick|$pools -DBROKEN_SLICE_ALONE
caught|pool: BY_SLICE|quick|$pools -DBROKEN_BY_SLICE
caught|pool: RESPAWN_EARLY|quick|-DOPS=1 -DDEATHS=2 -DRESPAWNS=1 -DBROKEN_RESPAWN_EARLY
caught|pool: SETTLE_LIVING|quick|-DOPS=2 -DDEATHS=0 -DRELEASE=1 -DBROKEN_SETTLE_LIVING
caught|elastic: LOOK_FIRST|quick|$elastic -DBROKEN_LOOK_FIRST
caught|elastic: NO_BARRIER|quick|$elastic -DBROKEN_NO_BARRIER
caught|elastic: NOT_LOCKED|quick|$elastic -DBROKEN_NOT_LOCKED
caught|elastic: LOOK_ONCE|quick|$elastic -DBROKEN_LOOK_ONCE
caught|elastic: ASK_ONCE|quick|$elastic_death -DBROKEN_ASK_ONCE
caught|elastic: NO_DRAIN|quick|$elastic -DBROKEN_NO_DRAIN
caught|elastic: DRAIN_PATIENT|quick|$elastic -DBROKEN_DRAIN_PATIENT
caught|elastic: LOCK_PATIENT|quick|$elastic -DBROKEN_LOCK_PATIENT
caught|elastic: UNHEARD|quick|$elastic -DBROKEN_UNHEARD
caught|elastic: HEARD_ONCE|quick|$elastic_death -DBROKEN_HEARD_ONCE
caught|elastic: HEARD_WHEN_AWAY|quick|$elastic -DFAILS=2 -DBROKEN_HEARD_WHEN_AWAY
caught|elastic: OPEN_EARLY|quick|$elastic -DBROKEN_OPEN_EARLY
caught|elastic: NOT_ADMITTED|quick|$elastic -DBROKEN_NOT_ADMITTED
caught|elastic: NOT_ASKED|quick|$elastic -DBROKEN_NOT_ASKED
caught|elastic: GIVEN_FIRST|quick|$elastic_death -DBROKEN_GIVEN_FIRST
caught|elastic: STORED_AFTER|quick|$elastic_death -DBROKEN_STORED_AFTER
caught|elastic: STORED_LATE|quick|$elastic_death -DBROKEN_STORED_LATE
caught|elastic: NOT_SHUT|quick|$elastic_death -DSTORE_FAILS=1 -DBROKEN_NOT_SHUT
caught|elastic: NOT_OPENED|quick|$elastic_death -DBROKEN_NOT_OPENED
caught|elastic: UNKNOWN_IS_AWAY|quick|-DENFORCER_KILLS=0 -DBROKEN_UNKNOWN_IS_AWAY
caught|elastic: GOES_ON_ANYHOW|quick|$elastic -DFAILS=1 -DSTORE_FAILS=1 -DBROKEN_GOES_ON_ANYHOW
caught|mover: LOOK_FIRST|quick|-DBROKEN_LOOK_FIRST
caught|mover: NO_DRAIN|quick|-DBUSY=1 -DBROKEN_NO_DRAIN
caught|mover: WORK_UNWAITED|quick|-DBROKEN_WORK_UNWAITED
caught|mover: WAITS_WITH_LOCK|quick|-DDEPENDS=1 -DBROKEN_WAITS_WITH_LOCK
caught|mover: LOCKED_UNLOOKED|quick|$mover_depends -DBROKEN_LOCKED_UNLOOKED
caught|mover: MADE_OUTSIDE|quick|-DBROKEN_MADE_OUTSIDE
caught|mover: FREED_OUTSIDE|quick|-DBROKEN_FREED_OUTSIDE
caught|mover: FREED_AT_ONCE|quick|-DBROKEN_FREED_AT_ONCE
caught|mover: COPY_UNWAITED|quick|-DBROKEN_COPY_UNWAITED
caught|mover: UNMAPPED_ANYHOW|quick|$mover_fails -DBROKEN_UNMAPPED_ANYHOW
caught|mover: FAILED_IS_DONE|quick|$mover_fails -DBROKEN_FAILED_IS_DONE
caught|mover: LIST_KEPT|quick|-DTURNS=2 -DBROKEN_LIST_KEPT
caught|mover: TRIMMED_EARLY|quick|$mover_fails -DLATE=1 -DBROKEN_TRIMMED_EARLY
caught|mover: ANSWERED_FIRST|quick|-DBROKEN_ANSWERED_FIRST
caught|mover: ANSWERS_NEWEST|quick|-DLATE=1 -DBROKEN_ANSWERS_NEWEST
caught|mover: NO_NUMBER|quick|-DLATE=1 -DNUMBERS=1
caught|mover: WAKE_LOST|quick|-DBROKEN_WAKE_LOST
caught|mover: BETWEEN_STAYS|quick|-DLIVE $mover_fails -DBROKEN_BETWEEN_STAYS
caught|mover: RUNS_ALREADY|quick|$mover_death -DCLOSES=1 -DBROKEN_RUNS_ALREADY
caught|mover: OPENED_EARLY|quick|-DBROKEN_OPENED_EARLY
caught|mover: DEATH_UNSEEN|quick|-DKILLS=1 -DBROKEN_DEATH_UNSEEN
caught|mover: STORED_LATE|quick|$mover_death -DBROKEN_STORED_LATE
caught|mover: ASIDE_UNANSWERED|quick|$mover_death $mover_fails -DLATE=1 -DBROKEN_ASIDE_UNANSWERED
caught|NUMBER_WRITTEN|long|$reader -DBROKEN_NUMBER_WRITTEN
END
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# Runs one line of the list, in a directory of its own. Writes a line of the table, and "ok" or "bad".
one() {
	expect=${1%%|*}; rest=${1#*|}
	name=${rest%%|*}; rest=${rest#*|}
	speed=${rest%%|*}; flags=${rest#*|}
	case $name in
	pool*) model=pool.pml ;;
	elastic*) model=elastic.pml ;;
	mover*) model=mover.pml ;;
	*) model=ledger.pml ;;
	esac
	# Compiling with -O2 takes longer than most of these searches, so only those marked "long" do.
	optimise=-O0
	if [ "$speed" = long ]; then optimise=-O2; fi
	# Liveness: something must happen eventually.
	mode=-DSAFETY search=
	case $flags in
	*-DLIVE*) mode=-DNFAIR=3 search='-a -f' ;;
	esac
	dir=$(mktemp -d "$work/XXXXXX")
	cd "$dir"
	# shellcheck disable=SC2086
	if ! spin -a $flags "$here/$model" >log 2>&1 ||
		! gcc $optimise -w $mode -DCOLLAPSE -DMEMLIM=1900 -o pan pan.c >>log 2>&1; then
		cat log >&2
		echo "$name|-|-|-|BAD: does not compile"
		return
	fi
	# shellcheck disable=SC2086
	nice ./pan -m100000 -w24 $search >out 2>&1 || true
	states=$(awk '/states, stored/ {print $1; exit}' out)
	depth=$(sed -n 's/.*depth reached \([0-9]*\).*/\1/p' out | head -1)
	seconds=$(sed -n 's/.*elapsed time \([0-9.]*\).*/\1/p' out | head -1)
	what=$(sed -n 's/^pan:1: \(.*\) (at depth.*/\1/p' out | sed 's/||/or/g' | head -1)
	whole=yes
	grep -qE 'Search not completed|max search depth too small|out of memory|memory limit' out && whole=no
	if grep -q 'errors: 0' out && [ $whole = yes ]; then
		found=holds
	elif [ -n "$what" ] && grep -q 'errors: 1' out; then
		found=caught
	else
		found=unfinished
	fi
	if [ "$found" = "$expect" ]; then
		result="$found${what:+: $what}"
	else
		result="BAD: $found, should be $expect${what:+: $what}"
	fi
	echo "$name|${states:--}|${depth:--}|${seconds:--}|$result"
	rm -f pan
}

# Every jobs-th line of the list.
run_part() {
	n=0
	while IFS= read -r line; do
		n=$((n + 1))
		[ $((n % jobs)) -eq "$1" ] || continue
		(one "$line")
	done <"$work/list" >"$work/table.$1"
}

list | grep "$only" >"$work/list"
part=0
pids=
while [ $part -lt "$jobs" ]; do
	run_part $part &
	pids="$pids $!"
	part=$((part + 1))
done
for p in $pids; do wait "$p"; done

{
	echo 'config|states|depth|seconds|result'
	while IFS='|' read -r _ name _; do grep -hF "$name|" "$work"/table.* | awk -F'|' -v n="$name" '$1 == n'; done <"$work/list"
} | awk -F'|' '{printf "%-24s %10s %7s %8s  %s\n", $1, $2, $3, $4, $5}' | tee "$work/shown"

shown=$(wc -l <"$work/shown")
listed=$(wc -l <"$work/list")
if grep -q ' BAD: ' "$work/shown" || [ "$shown" -ne $((listed + 1)) ]; then
	echo "run.sh: the model and the expectation differ" >&2
	exit 1
fi
