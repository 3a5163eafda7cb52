//go:build engines

// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/test/testhost"
)

// ctr is containerd's own client, with our shim: `ctr run --runtime io.containerd.gpuslice.v1`.
type ctr struct {
	s       *site
	version string   // of containerd, a directory in the cache
	runtime []string // the low-level runtime, in the cache
}

func (e *ctr) options(t testing.TB) testhost.Options {
	return testhost.Options{Runtimes: []string{tool(t, e.runtime...)}}
}

func (e *ctr) hasDaemon(name string) bool { return name == "containerd" }

func (e *ctr) up(s *site) {
	e.s = s
	containerdUp(s, containerdOptions{version: e.version})
	s.ctrImport()
}

func (e *ctr) id(name string) string { return name }

func (e *ctr) run(c container) (string, error) {
	return e.s.ctr(append([]string{"run", "--detach", "--runtime", shimRuntime}, e.words(c)...)...)
}

func (e *ctr) words(c container) []string {
	// Without --allow-new-privs setuid programs lose their rights.
	words := []string{"--allow-new-privs", "--fifo-dir", e.s.in("fifo")}
	for _, key := range slices.Sorted(maps.Keys(c.annotations)) {
		words = append(words, "--annotation", key+"="+c.annotations[key])
	}
	for _, env := range c.env {
		words = append(words, "--env", env)
	}
	for _, b := range c.binds {
		words = append(words, "--mount", "type=bind,src="+b.source+",dst="+b.target+",options=rbind:rw")
	}
	if c.readOnly {
		words = append(words, "--read-only")
	}
	if c.privileged {
		words = append(words, "--privileged")
	}
	if c.hostPID {
		words = append(words, "--with-ns", fmt.Sprintf("pid:/proc/%d/ns/pid", os.Getpid()))
	}
	if c.userns {
		mapping := fmt.Sprintf("0:%d:65536", usernsBase)
		words = append(words, "--uidmap", mapping, "--gidmap", mapping)
	}
	words = append(words, c.flags...)
	return append(append(words, imageRef(c.image), c.name), c.args...)
}

// exec has the shim write into a file. ctr may open a process's pipe only after the process has ended and the shim has closed
// it, and then shows nothing.
func (e *ctr) exec(name string, args ...string) (string, error) {
	id := "exec" + strconv.FormatUint(names.Add(1), 10)
	file := e.s.in(id)
	defer os.Remove(file)
	out, err := e.s.ctr(append([]string{"task", "exec", "--log-uri", "file://" + file, "--exec-id", id, name}, args...)...)
	text, _ := os.ReadFile(file) // absent if nothing was written or started
	return string(text) + out, err
}

// kill waits until containerd knows that the task stopped: only then can the task be deleted.
func (e *ctr) kill(name string) (string, error) {
	out, err := e.s.ctr("task", "kill", "--signal", "SIGKILL", name)
	if err == nil && !e.s.becomesTrue(func() bool { return e.status(name) == "STOPPED" }) {
		err = errors.New("it does not stop")
	}
	return out, err
}

// status returns containerd's status of a task, or "" if there is none.
func (e *ctr) status(name string) string {
	out, _ := e.s.ctr("task", "list")
	for line := range strings.Lines(out) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == name {
			return fields[2]
		}
	}
	return ""
}

func (e *ctr) pause(name string) (string, error)   { return e.s.ctr("task", "pause", name) }
func (e *ctr) unpause(name string) (string, error) { return e.s.ctr("task", "resume", name) }

// restart gives the container a new task; ctr has no restart command.
func (e *ctr) restart(name string) (string, error) {
	if out, err := e.kill(name); err != nil {
		return out, err
	}
	if out, err := e.s.ctr("task", "delete", name); err != nil {
		return out, err
	}
	return e.start(name)
}

func (e *ctr) start(name string) (string, error) {
	return e.s.ctr("task", "start", "--detach", "--fifo-dir", e.s.in("fifo"), name)
}

func (e *ctr) foreground(c container, terminal bool) []string {
	words := []string{"run", "--rm", "--runtime", shimRuntime}
	if terminal {
		words = append(words, "--tty")
	}
	return append([]string{"ctr"}, e.s.ctrArgs(append(words, e.words(c)...)...)...)
}

func (e *ctr) remove(name string) (string, error) {
	if out, err := e.s.ctr("task", "delete", "--force", name); err != nil && !strings.Contains(out, "not found") {
		return out, err
	}
	out, err := e.s.ctr("container", "delete", name)
	if err != nil && strings.Contains(out, "not found") {
		err = nil
	}
	return out, err
}
