// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/doccommands"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/testhost"
)

// Each command that the playground and the documents name works in it, without root, and Ctrl-C leaves nothing.
func TestThePlaygroundRunsEachCommandAndLeavesNothing(t *testing.T) {
	t.Parallel()
	testhost.BinDir(t)
	const root = "../.."
	rule := must.Output(exec.Command("make", "-C", root, "--dry-run", "--old-file=bin/gpuslice", "playground").CombinedOutput())(t)
	must.Equal(t, strings.Contains(string(rule), "test/playground/playground.sh"), true, "make playground")

	playground := exec.Command("test/playground/playground.sh")
	playground.Dir = root
	playground.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	playground.Stderr = testhost.Log(t)
	out := must.Get(playground.StdoutPipe())(t)
	must.Do(t, playground.Start())
	ended := false
	t.Cleanup(func() {
		if !ended {
			testhost.End(playground, syscall.SIGTERM)
		}
	})
	lines := make(chan string)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	var commands []string
	for line := range lines { // it ends by itself if it does not become ready
		if strings.HasPrefix(line, "train is ") {
			break
		} else if command, shown := strings.CutPrefix(line, "    "); shown {
			commands = append(commands, command)
		}
	}
	must.Len(t, commands, 4, "commands to type")
	for _, b := range must.Get(doccommands.Read(root))(t) {
		for _, c := range b.Commands {
			if b.Mark == "playground" {
				commands = append(commands, c.Text)
			}
		}
	}
	must.Equal(t, len(commands) > 4, true, "a document has commands for the playground")
	typed := func(command string) string {
		cmd := exec.Command("/bin/bash", "-euc", ". bin/playground; "+command)
		cmd.Dir = root
		said, err := cmd.CombinedOutput()
		expect.NoError(t, err, command, string(said))
		return string(said)
	}
	for _, command := range commands {
		typed(command)
	}
	for _, c := range [][2]string{
		{"gpuslice ps", "pool llm"},
		{"gpuslice top", "32 °C  72 W of 700 W"},
		{"gpuslice inspect chat", "Elastic:"},
		{"gpuslice explain greedy", "was refused cuMemAlloc of 5GiB on 1:GPU-6b1d3c52"},
		{"gpuslice recommend", "1:GPU-6b1d3c52"},
		{"gpuslice events --filter device=1:GPU-6b1d3c52", "5GiB on 1:GPU-6b1d3c52"},
		{"gpuslice pool list", "llm"},
		{"gpuslice pool create mine --vram 4G && gpuslice pool set mine --vram 5G && gpuslice pool delete mine", "mine"},
		{"gpuslice set train --vram 10G --device 0:GPU-6b1d3c52", "10GiB"},
		{"gpuslice suspend chat", "suspended"},
		{"gpuslice run --vram 20G --device 0:GPU-6b1d3c52 --elastic -- cuda_hog 0", "holds 0 of 21474836480"},
		{"gpuslice resume chat", "20GiB"},
		{"gpuslice devices", "(simulated)"},
		{"gpuslice doctor", "this is a playground"},
	} {
		expect.Contains(t, typed(c[0]), c[1], c[0])
	}
	report := typed("gpuslice doctor")
	expect.Equal(t, strings.Contains(report, "warn ") || strings.Contains(report, "fail "), false, report)

	dir := strings.TrimSuffix(strings.TrimSpace(typed("echo $GPUSLICE_SOCKET")), "/run/gpuslice.sock")
	mine := exec.Command("/bin/bash", "-c", ". bin/playground; exec gpuslice run --vram 1G -- sh -c 'trap \"\" TERM; echo; sleep 1000; sleep 1000'")
	mine.Dir = root
	pipe := must.Get(mine.StdoutPipe())(t)
	must.Do(t, mine.Start())
	must.Get(bufio.NewReader(pipe).ReadString('\n'))(t, "a session of another terminal")
	must.Do(t, syscall.Kill(-playground.Process.Pid, syscall.SIGINT))
	ended = true
	expect.NoError(t, playground.Wait(), "Ctrl-C")
	_ = mine.Wait() // killed
	for _, path := range []string{dir, filepath.Join(root, "bin/playground")} {
		_, err := os.Lstat(path)
		expect.True(t, errors.Is(err, fs.ErrNotExist), path, "is left")
	}
	await.That(t, "no process of the playground is left", func() bool {
		environments := must.Get(filepath.Glob("/proc/[0-9]*/environ"))(t)
		for _, path := range environments {
			if text, err := os.ReadFile(path); err == nil && strings.Contains(string(text), dir) {
				return false
			}
		}
		return true
	})
	mounts := must.Get(os.ReadFile("/proc/self/mountinfo"))(t)
	expect.Equal(t, strings.Contains(string(mounts), dir), false, "a mount is left")
}
