#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2312 # an empty value fails a comparison or is printed
#
# typed.sh: run each line of /test/commands, as an ordinary user types it. The last line is "N passed, N failed".
# shellcheck disable=SC2317,SC2329 # functions are called by what is typed
set -uo pipefail
passed=0 failed=0 began=$SECONDS
said=$(mktemp)
TIMEFORMAT='%U + %S s'

finish() {
	if [ "$failed" != 0 ]; then
		tail -n 60 "$said"
		sudo tail -n 40 /var/log/gpusliced.log /var/log/dockerd.log 2>/dev/null
	fi
	echo "$passed passed, $failed failed"
	[ "$failed" = 0 ]
	exit
}
# typed COMMAND: in the directory that the one before it left. Its time, and its processor time.
typed() {
	local begin=$SECONDS status=0
	{ time eval "$1" >"$said" 2>&1 </dev/null; } 2>"$said.time" || status=$?
	printf '%5d s  %-6s  %s  (processor: %s)\n' $((SECONDS - begin)) "$([ $status = 0 ] && echo ok || echo FAILED)" "$1" "$(tail -n 1 "$said.time")"
	if [ $status = 0 ]; then
		passed=$((passed + 1))
	else
		failed=$((failed + 1))
		finish
	fi
}
# The network, a GPU and PyTorch have stand-ins. A Docker without --annotation has the variable, which the operator allows.
docker() {
	local words=() word
	for word; do
		case $word in
		all) ;;
		--gpus) words+=(--network none -v "$HOME/gpuslice/bin:/bin-of-it" -v /card:/card -e LD_LIBRARY_PATH=/bin-of-it/fakecuda -e FAKECUDA_STATE=/card/state) ;;
		python) words+=(/bin-of-it/demo/cuda_hog 0) ;;
		train.py) ;;
		--annotation) words+=("$annotate") ;;
		gpuslice.vram=*) [ "$annotate" = -e ] && words+=("GPUSLICE_VRAM=${word#*=}") || words+=("$word") ;;
		*) words+=("$word") ;;
		esac
	done
	command docker "${words[@]}"
}
annotate=--annotation
if ! command docker run --help | grep -q -- --annotation; then
	annotate=-e
	
fi
git() { command git -c url.file:///test/gpuslice.git.insteadOf=https://github.com/gpuslice/gpuslice "$@"; }

cd || exit
while read -r line; do
	sudo ldconfig
	sudo chmod -R a+rwX /card
	if [[ $line == docker* && $annotate = -e ]]; then
		sudo sed -i 's/^default_vram = .*/default_vram = "4G"/; s/^allow_env = .*/allow_env = true/' /etc/gpuslice/config.toml
	fi
	typed "$(sed -E 's/  +#.*$//' <<<"$line")"
	case $line in
	*'make demo') du -sm . /usr "$HOME/.cache" "$HOME/go" /var/lib/apt /var/cache/apt 2>/dev/null ;;
	'make test') tail -n 1 "$said" ;;
	esac
done </test/commands
if grep -q ' of 4294967296$' "$said"; then
	echo "ok   the program sees a card of 4 GiB"
	passed=$((passed + 1))
else
	failed=$((failed + 1))
fi
echo "$((SECONDS - began)) s from the clone to the container"
finish
