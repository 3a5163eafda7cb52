#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2312 # an empty value fails a comparison or is printed
#
# typed.sh LINES: type the lines that lines.awk made of one page, in the login shell of an ordinary user. Each command is shown with its time, its
# processor time and the longest time without output. The last line is "N passed, N failed, N skipped".
# shellcheck disable=SC2317,SC2329 # functions are called by what is typed
set -uo pipefail
passed=0 failed=0 skipped=0
work=$(mktemp -d)
said=$work/said
card=(-v "$HOME/gpuslice/bin:/bin-of-it" -v /card:/card -e LD_LIBRARY_PATH=/bin-of-it/fakecuda -e FAKECUDA_STATE=/card/state)

# result ok|FAILED|skip TEXT [point N]
result() {
	printf '%-6s  %s\n' "$1" "$2"
	case $1 in
	ok) passed=$((passed + 1)) ;;
	skip) skipped=$((skipped + 1)) ;;
	*)
		failed=$((failed + 1))
		grep -aE '^(--- |ok |panic: )?FAIL|^ +--- FAIL|^panic: |_test\.go:[0-9]+: ' "$said" | head -n 40
		grep -av ' so far; the last was ' "$said" | tail -n 40
		;;
	esac
}
finish() {
	[ "$failed" = 0 ] || sudo tail -n 30 /var/log/gpusliced.log /var/log/dockerd.log 2>/dev/null
	echo "$passed passed, $failed failed, $skipped skipped"
	[ "$failed" = 0 ]
	exit
}
point() { echo "point $1: $2"; }

# listen: keep the output, and the longest time without any, in seconds.
listen() {
	local begin=$SECONDS longest=0 before='' line
	: >"$work/before"
	while IFS= read -r line; do
		((SECONDS - begin <= longest)) || { longest=$((SECONDS - begin)) && printf '%s, then: %s\n' "$before" "$line" >"$work/before"; }
		before=$line
		begin=$SECONDS
		printf '%s\n' "$line"
	done >"$said"
	((SECONDS - begin <= longest)) || longest=$((SECONDS - begin))
	echo "$longest" >"$work/longest"
}
# run COMMAND: in the directory that the one before left. Sets status.
run() {
	local begin=$SECONDS TIMEFORMAT='%U + %S s of processor time' listener
	rm -f "$work/pipe"
	mkfifo "$work/pipe"
	listen <"$work/pipe" &
	listener=$!
	status=0
	{ time eval "$1" >"$work/pipe" 2>&1 </dev/null; } 2>"$work/time" || status=$?
	wait "$listener"
	took="$((SECONDS - begin)) s, $(tail -n 1 "$work/time"), silent for $(<"$work/longest") s at most"
}

# The network, a GPU and an image with PyTorch have stand-ins.
stood_in() {
	local words=() word detached='' command=''
	while [ $# -gt 0 ]; do
		word=$1
		shift
		case $word in
		run) words+=(run --network none ${cgroup:+"--cgroup-parent=$cgroup"}) ;;
		--gpus | --device)
			words+=("${card[@]}")
			shift
			;;
		-d)
			words+=(-d)
			detached=1
			;;
		IMAGE | pytorch/pytorch) words+=(pytorch/pytorch) command=none ;;
		python | nvidia-smi) words+=(/bin-of-it/demo/cuda_hog 0) command=cuda ;;
		train.py) ;;
		*) words+=("$word") ;;
		esac
	done
	[ "$command" != none ] || words+=("${detached:+sleep}" "${detached:+600}")
	[ "$command" != none ] || [ -n "$detached" ] || words=("${words[@]:0:${#words[@]}-2}" true)
	engine=("${words[@]}")
}
docker() {
	local cgroup=''
	stood_in "$@"
	command docker "${engine[@]}"
}
sudo() {
	local cgroup=$podman_cgroup
	if [ "$1" = podman ] && [[ " $* " == *" run "* ]]; then
		shift
		stood_in "$@"
		set -- podman "${engine[@]}"
	fi
	command sudo "$@"
}
git() { command git -c url.file:///test/gpuslice.git.insteadOf=https://github.com/gpuslice/gpuslice "$@"; }
podman_cgroup=/$(</test/cgroup)
annotates=yes
command docker run --help | grep -q -- --annotation || annotates=''

# shellcheck disable=SC2016 # they are backquotes
# advice: each command that was printed between backquotes is one that can be typed here.
advice() {
	local command words
	while read -r command; do
		read -ra words <<<"${command#sudo }"
		case ${words[0]} in
		gpuslice | docker | podman | systemctl | make | apt-get | gpusliced) ;;
		*) continue ;;
		esac
		if ! command sudo sh -c "command -v ${words[0]}" >/dev/null || { [ "${words[0]}" = gpuslice ] && ! gpuslice help "${words[1]:-doctor}" >/dev/null 2>&1; }; then
			result FAILED "printed, and cannot be typed: $command"
		else
			point 5 "can be typed: $command"
		fi
	done < <(grep -o '`[^`]*`' "$said" | tr -d '`' | sort -u)
}

# ended: what `make uninstall` prints ends what is in use, and then it removes. A daemon that no systemd has started is found after the rest.
ended() {
	local command
	while [ "$status" != 0 ] && mapfile -t commands < <(sed -n "s/^  .*, process [0-9]* ([^)]*): //p" "$said") && [ ${#commands[@]} != 0 ]; do
		for command in "${commands[@]}"; do
			run "sudo sh -c '$command'" # as in a shell of root: a bare system has no program kill
			while [ "$status" = 0 ] && [[ $command == 'kill '* ]] && [ -e "/proc/${command##* }" ]; do sleep 0.05; done
			if [ $status = 0 ]; then result ok "printed: $command" && point 5 "was typed: ${command//[0-9a-f][0-9a-f][0-9a-f]*/ID}"; else result FAILED "printed: $command"; fi
		done
		run 'sudo make uninstall'
	done
	if [ "$status" = 0 ] && [ ! -e /usr/local/bin/gpuslice ]; then result ok 'sudo make uninstall'; else result FAILED 'sudo make uninstall'; fi
}

cannot='' # in this block, a container was not made
at='' lease=none # the last one that was acquired
while IFS=$'\t' read -r -u 4 place kind expected text; do
	[ "$place" = "$at" ] || echo "-- $place"
	[ "$place" = "$at" ] || cannot=''
	at=$place
	if [ "$expected" = why ]; then
		result skip "$text"
		continue
	fi
	sudo ldconfig
	sudo chmod -R a+rwX /card
	if [ "$kind" = toml ]; then
		{ cat ~/gpuslice/configs/config.toml && printf '%b' "$text"; } >"$work/config.toml"
		run "gpuslice doctor --config $work/config.toml"
		if grep -q "^ok    config     $work/config.toml" "$said"; then
			result ok "appended to the shipped file: ${text%%\\n*}"
			point 3 "loads: $place, ${text%%\\n*}"
		else
			result FAILED "appended to the shipped file: ${text%%\\n*}"
		fi
		if [[ $text == "[runtime]"*default_vram* ]] && ! grep -q '^allow_env' /etc/gpuslice/config.toml; then
			printf '%b' "$text" | sudo tee -a /etc/gpuslice/config.toml >/dev/null
		fi
		continue
	fi
	case $text in
	nerdctl* | 'sudo nerdctl'* | ctr*)
		result skip "$text: not an engine of this platform's own"
		continue
		;;
	docker*GPUSLICE_VRAM*)
		if [ -n "$annotates" ]; then
			result skip "$text: this Docker has --annotation"
			continue
		fi
		;;
	docker*--annotation*)
		if [ -z "$annotates" ]; then
			run "$text"
			cannot=1
			if [ $status != 0 ] && grep -q 'unknown flag: --annotation' "$said"; then
				result ok "$text: unknown flag, as the pages say of Docker before 24"
				point 1 "refused by Docker before 24: $text"
			else
				result FAILED "$text"
			fi
			continue
		fi
		;;
	gpuslice*)
		if [ -n "$cannot" ]; then
			result skip "$text: its container was not made"
			continue
		fi
		;;
	esac
	[[ ! $text =~ ^(gpuslice lease .*)lease-[0-9a-f]{16}(.*)$ ]] || text=${BASH_REMATCH[1]}$lease${BASH_REMATCH[2]}
	[[ $text != *'make uninstall' ]] || run 'sudo podman run -d --runtime gpuslice --annotation gpuslice.vram=1G IMAGE' # as the page has one
	run "$text"
	[[ $text != gpuslice\ lease\ acquire* ]] || lease=$(grep -o -m1 'lease-[0-9a-f]*' "$said")
	if [ "$expected" = refused ]; then
		if [ $status != 0 ] && grep 'gpuslice: ' "$said"; then result ok "$text: refused, as the page shows ($took)"; else result FAILED "$text: not refused"; fi
		advice
		[[ $text != *'make uninstall' ]] || ended
		continue
	fi
	if [ $status != 0 ]; then
		result FAILED "$text ($took)"
		[[ $text != *make* && $text != *git\ clone* ]] || finish # nothing else can be tried
		continue
	fi
	result ok "$text ($took)"
	case $text in
	*nvidia-smi | *train.py)
		if grep -q ' of 4294967296$' "$said"; then result ok "it sees a card of 4 GiB"; else result FAILED "it sees another card than one of 4 GiB"; fi
		[[ $text != *GPUSLICE_VRAM* ]] || point 1 "works with Docker before 24: $text"
		[[ $text != gpuslice* ]] || ! grep -q 'the quota limits' "$said" || result FAILED "it does not use the gpusliced that runs"
		;;
	*'make demo' | 'make test')
		# On quiet cores it is ten seconds.
		if (($(<"$work/longest") <= 100)); then result ok "silent for $(<"$work/longest") s at most"; else result FAILED "silent for $(<"$work/longest") s: $(<"$work/before")"; fi
		[ "$text" = 'make test' ] || { point 6 "make demo: $took" && du -sm . /usr "$HOME/.cache" "$HOME/go" /var/lib/apt /var/cache/apt 2>/dev/null; }
		[ "$text" != 'make test' ] || {
			tail -n 1 "$said" && point 2 "make test: $(tail -n 1 "$said"); $took"
			grep '^ok ' "$said" | sort -k3 -rn -t' ' | sed 's/^/    /' | sort -k3,3rn | head -n 15
		}
		;;
	'gpuslice doctor')
		point 4 "gpuslice doctor, as $(id -un): $(grep -c '^ok' "$said") ok, exit status 0"
		grep -v '^ok' "$said"
		;;
	esac
	advice
done 4<"$1"

# doctor reports each fault of a host once.
if [ "${1##*/}" = 1 ]; then
	says() { # WORDS COMMAND: it fails with these words
		run "$2"
		if [ $status != 0 ] && grep -q -- "$1" "$said"; then
			result ok "$2: $1"
			point 4 "${2/"$work/"/}: $1"
		else
			result FAILED "$2: it should fail and say: $1"
		fi
	}
	if [ -z "$annotates" ]; then
		for command in 'sudo gpuslice install docker' 'sudo gpuslice doctor' 'docker run --runtime=gpuslice IMAGE'; do
			run "$command"
			if grep -q GPUSLICE_VRAM "$said"; then
				result ok "$command: names the variable that stands for --annotation"
				point 1 "$command: $(grep -m1 GPUSLICE_VRAM "$said" | cut -c1-300)"
			else
				result FAILED "$command: it should name the variable that stands for --annotation"
			fi
		done
	fi
	run 'gpuslice run --require-host --vram 4G -- python train.py'
	if [ $status = 0 ] && grep -q ' of 4294967296$' "$said"; then result ok "gpuslice run uses the running gpusliced"; else result FAILED "gpuslice run --require-host"; fi
	[ $status != 0 ] || point 4 "gpuslice run --require-host, as $(id -un): exit status 0"
	printf '[enforcer]\nsocket = "/tmp/of-the-file.sock"\n' >"$work/socket.toml"
	says 'no enforcer answers on /tmp/of-the-file.sock' "gpuslice doctor --config $work/socket.toml"
	printf '[enforcer]\nmetrics_address = "nonsense"\n' >"$work/metrics.toml"
	says 'enforcer.metrics_address = "nonsense"' "gpuslice doctor --config $work/metrics.toml"
	printf '[[sessions.limits]]\nuser = "nobody"\nmax_vram = "1G"\n' | sudo tee -a /etc/gpuslice/config.toml >/dev/null
	sudo systemctl restart gpusliced
	run 'ls -l /run/gpuslice/session.sock'
	if [ $status = 0 ]; then result ok "the users' socket is there"; else result FAILED "no users' socket"; fi
	sudo systemctl kill gpusliced
	says 'no enforcer answers on /run/gpuslice/gpuslice.sock' 'gpuslice doctor'
	says 'no enforcer answers on /run/gpuslice/session.sock' 'sudo -u alice gpuslice doctor' # whose socket is there, and nobody behind it
	sudo systemctl start gpusliced
	run 'gpuslice doctor'
	if [ $status = 0 ]; then result ok "gpuslice doctor, after it was started again"; else result FAILED "gpuslice doctor, after it was started again"; fi
fi
finish
