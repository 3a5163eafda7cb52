# SPDX-License-Identifier: Apache-2.0
#
# awk -f keyed.awk OVERRIDES FILE: each line of run.sh's output FILE as "program/key: value"; the second line of one key is
# key#2. Lines of OVERRIDES, which have that form, replace FILE's of the same key.
FILENAME == ARGV[1] {
	at = index($0, ": ")
	override[substr($0, 1, at - 1)] = $0
	next
}
/^#/ { next }
/^\[.*\]$/ {
	program = substr($0, 2, length($0) - 2)
	next
}
{
	at = index($0, ":")
	key = program "/" substr($0, 1, at - 1)
	if (++seen[key] > 1)
		key = key "#" seen[key]
	print (key in override) ? override[key] : key substr($0, at)
	delete override[key]
}
END {
	for (key in override)
		print key ": there is no such line to override"
}
