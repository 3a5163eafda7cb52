// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/test/doccommands"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/needs"
	"github.com/gpuslice/gpuslice/test/testhost"
)

// bare sets up a namespace without systemd, with empty /run and /usr/local. Its processes end with the shell.
const bare = `
mount --make-rprivate /
mkdir "$DIR/project" && mount --rbind "$PROJECT" "$DIR/project" && PROJECT=$DIR/project # which may be below one of these
cp -a /etc "$DIR/etc" && mount --bind "$DIR/etc" /etc
for path in /run /var/lib /var/log /usr/local; do mount -t tmpfs none "$path"; done
mkdir "$DIR/path" && cp -rsf /usr/sbin/. /usr/bin/. "$DIR/path"
rm -f "$DIR/path"/{systemctl,journalctl}
export BIN="$PROJECT/bin" PREFIX=/usr/local SYSCONFDIR=/etc UNITDIR=/usr/local/lib/systemd/system VERSION=1
export PATH="/usr/local/bin:$DIR/path" LD_LIBRARY_PATH="$BIN/fakecuda" FAKECUDA_STATE="$DIR/state"
if command -v systemctl; then exit 1; fi
unset GPUSLICE_CONFIG NOTIFY_SOCKET WATCHDOG_USEC
answers() {
	for ((i = 0; i < 1000; i++)); do ! gpuslice ps >/dev/null 2>&1 || return 0; sleep 0.02; done
	cat /var/log/gpusliced.log >&2
	return 1
}
works() {
	answers
	gpuslice run --require-host --vram 1G -- "$BIN/demo/cuda_hog" 0
}
ended() {
	kill "$(pidof gpusliced)"
	for ((i = 0; i < 1000; i++)); do pidof gpusliced >/dev/null || return 0; sleep 0.02; done
	return 1
}
`

var sh = regexp.MustCompile("(?s)```sh\n(#!/bin/sh\n.*?)```")

func TestOnAHostWithoutSystemdTheDaemonRunsAsDocumented(t *testing.T) {
	t.Parallel()
	needs.Root(t)
	testhost.BinDir(t)
	page := must.Get(os.ReadFile("../../docs/operate/daemon.md"))(t)
	script := sh.FindSubmatch(page)
	must.True(t, script != nil, "the page has no script for a supervisor")
	blocks := must.Get(doccommands.Read("../.."))(t)
	// Only install.sh needs these files.
	must.Output(exec.Command("make", "-C", "../..", "--old-file=bin/gpuslice", "share").CombinedOutput())(t, "make share")
	tried := 0
	for _, b := range blocks {
		if b.Mark != "bare" {
			continue
		}
		tried++
		var typed strings.Builder
		for _, c := range b.Commands {
			typed.WriteString(c.Text + "\nanswers\n")
		}
		dir := t.TempDir()
		cmd := exec.Command("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "/bin/bash", "-euc", bare+`
"$PROJECT/configs/install.sh" install
gpuslice run --vram 1G -- "$BIN/demo/cuda_hog" 0
! gpuslice run --vram 1G --require-host -- "$BIN/demo/cuda_hog" 0 || exit 1
`+typed.String()+`
works
gpuslice install docker
! "$PROJECT/configs/install.sh" uninstall || exit 1
[ -x /usr/local/bin/gpusliced ]
grep -q gpuslice /etc/docker/daemon.json # nothing was taken away
ended
printf '[enforcer]\nsocket = "/run/gpuslice/other.sock"\n[[sessions.limits]]\nuser = "daemon"\nmax_vram = "1G"\n' >>/etc/gpuslice/config.toml
printf %s "$SCRIPT" >"$DIR/run" && chmod 0755 "$DIR/run"
"$DIR/run" >/dev/null &
works
[ -S /run/gpuslice/other.sock ] && [ -S /run/gpuslice/session.sock ]
ended
"$PROJECT/configs/install.sh" uninstall
[ ! -e /usr/local/bin/gpusliced ]
`)
		root := must.Get(os.Getwd())(t)
		cmd.Env = append(os.Environ(), "DIR="+dir, "PROJECT="+strings.TrimSuffix(root, "/test/e2e"), "SCRIPT="+string(script[1]), "DESTDIR=")
		out, err := cmd.CombinedOutput()
		expect.NoError(t, err, b)
		for _, want := range []string{
			"gpuslice: no gpusliced runs on this host: the quota limits this command only, and other programs may take the memory that it expects (--require-host refuses that)\n",
			"--require-host: the enforcer does not answer on /run/gpuslice/gpuslice.sock", "Next: have your supervisor run /usr/local/bin/gpusliced", "a daemon that systemd does not run, process ",
		} {
			expect.Contains(t, string(out), want, b)
		}
		if t.Failed() {
			t.Logf("%s", out)
		}
	}
	expect.True(t, tried != 0, "no fence has the mark bare")
}
