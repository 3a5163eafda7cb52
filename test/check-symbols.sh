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

newest=$(readelf --version-info --wide "$library" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -uV | tail -1)
if [ "$(printf '%s\n' "${newest:-0}" $newest_allowed | sort -V | tail -1)" != $newest_allowed ]; then
	complain "needs glibc $newest; at most $newest_allowed is allowed:"
	readelf --dyn-syms --wide "$library" | grep "@GLIBC_$newest" | awk '{print "  " $8}' >&2
fi

# glibc 2.38 and newer make of these, in whatever is compiled with its headers, names of their own (__isoc23_strtol).
renamed=$(readelf --dyn-syms --wide "$library" | awk '$7 == "UND" {sub(/@.*/, "", $8); print $8}' | grep -E '^(strto(l|ll|ul|ull|imax|umax)|v?[fs]?scanf)$' || true)
[ -z "$renamed" ] || complain "needs what a newer glibc's headers rename:" "${renamed//$'\n'/ }"

needed=$(readelf --dynamic --wide "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | grep -vxE 'libc\.so\.6|libdl\.so\.2|libpthread\.so\.0|ld-linux-[a-z0-9-]+\.so\.[0-9]' || true)
[ -z "$needed" ] || complain "depends on more than libc: $needed"

if readelf --dynamic --wide "$library" | grep -qE '\((INIT|FINI|INIT_ARRAY|FINI_ARRAY|PREINIT_ARRAY)\)'; then
	complain "has a constructor or destructor: it must do nothing in a program that never calls CUDA"
fi
if readelf --dynamic --wide "$library" | grep -q '(TEXTREL)'; then
	complain "has text relocations"
fi
if readelf --program-headers --wide "$library" | grep 'GNU_STACK' | grep -q 'E'; then
	complain "asks for an executable stack"
fi

actual=$(readelf --dyn-syms --wide "$library" | awk '$7 != "UND" && ($5 == "GLOBAL" || $5 == "WEAK") && $4 != "NOTYPE" || $5 == "UNIQUE" {sub(/@.*/, "", $8); print $8}' | sort -u)
if ! difference=$(diff <(sed 's/#.*//; s/[[:space:]]*$//; /^$/d' "$exports" | sort -u) <(echo "$actual")); then
	complain "exports other names than $exports lists (< listed, > exported):"
	grep '^[<>]' <<<"$difference" >&2
fi

[ $failed = 0 ] || exit 1
echo "check-symbols: $(wc -l <<<"$actual") names, glibc ${newest:-none} or newer"
