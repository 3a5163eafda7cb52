#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# check-symbols.sh LIBRARY EXPORTS: the interceptor is loaded into programs of any image, so it may
# need no symbol newer than glibc 2.17, nothing but libc, and no constructor; and it exports exactly
# the names that the file EXPORTS lists (one a line, # begins a comment).
set -euo pipefail
export LC_ALL=C
library=$1
exports=$2
newest_allowed=2.17
failed=0

complain() {
	echo "check-symbols: $library: $*" >&2
	failed=1
}

versions=$(readelf --version-info --wide "$library")
symbols=$(readelf --dyn-syms --wide "$library")
dynamic=$(readelf --dynamic --wide "$library")
headers=$(readelf --program-headers --wide "$library")

newest=$(grep -o 'GLIBC_[0-9.]*' <<<"$versions" | sed 's/GLIBC_//' | sort -uV | tail -1 || true)
highest=$(printf '%s\n' "${newest:-0}" $newest_allowed | sort -V | tail -1)
if [ "$highest" != $newest_allowed ]; then
	complain "needs glibc $newest; at most $newest_allowed is allowed:"
	grep "@GLIBC_$newest" <<<"$symbols" | awk '{print "  " $8}' >&2
fi

# glibc 2.38 and newer make of these, in whatever is compiled with its headers, names of their own (__isoc23_strtol).
renamed=$(awk '$7 == "UND" {sub(/@.*/, "", $8); print $8}' <<<"$symbols" | grep -E '^(strto(l|ll|ul|ull|imax|umax)|v?[fs]?scanf)$' || true)
[ -z "$renamed" ] || complain "needs what a newer glibc's headers rename:" "${renamed//$'\n'/ }"

needed=$(sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' <<<"$dynamic" | grep -vxE 'libc\.so\.6|libdl\.so\.2|libpthread\.so\.0|ld-linux-[a-z0-9-]+\.so\.[0-9]' || true)
[ -z "$needed" ] || complain "depends on more than libc: $needed"

if grep -qE '\((INIT|FINI|INIT_ARRAY|FINI_ARRAY|PREINIT_ARRAY)\)' <<<"$dynamic"; then
	complain "has a constructor or destructor: it must do nothing in a program that never calls CUDA"
fi
if grep -q '(TEXTREL)' <<<"$dynamic"; then
	complain "has text relocations"
fi
if grep 'GNU_STACK' <<<"$headers" | grep -q 'E'; then
	complain "asks for an executable stack"
fi

listed=$(sed 's/#.*//; s/[[:space:]]*$//; /^$/d' "$exports" | sort -u)
actual=$(awk '$7 != "UND" && ($5 == "GLOBAL" || $5 == "WEAK") && $4 != "NOTYPE" || $5 == "UNIQUE" {sub(/@.*/, "", $8); print $8}' <<<"$symbols" | sort -u)
if ! difference=$(diff <(echo "$listed") <(echo "$actual")); then
	complain "exports other names than $exports lists (< listed, > exported):"
	grep '^[<>]' <<<"$difference" >&2
fi

[ $failed = 0 ] || exit 1
names=$(wc -l <<<"$actual")
echo "check-symbols: $names names, glibc ${newest:-none} or newer"
