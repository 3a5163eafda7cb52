#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Print the version: the tag of a tagged commit, else VERSION and the commit, else VERSION alone.
cd "$(dirname "$0")/.." || exit 1
base=$(cat VERSION) || exit
if tag=$(git describe --tags --exact-match --match 'v[0-9]*' 2>/dev/null); then
	echo "${tag#v}"
elif commit=$(git rev-parse --short=12 HEAD 2>/dev/null); then
	echo "$base+g$commit"
else
	echo "$base"
fi
