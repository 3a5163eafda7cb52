// SPDX-License-Identifier: Apache-2.0

package hook_test

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/advice"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// docker and containerd show the last error of the --log file.
func TestABadAnnotationIsShownInTheLog(t *testing.T) {
	for name, c := range map[string]struct {
		annotations map[string]string
		says        string
	}{
		"Misspelt": {map[string]string{"gpuslice.vrma": "4G"}, "annotation gpuslice.vrma is unknown"},
		"Size":     {map[string]string{"gpuslice.vram": "4Q"}, `annotation gpuslice.vram="4Q" is not accepted`},
		"Missing":  {nil, "no quota: add the annotation gpuslice.vram, such as gpuslice.vram=4G"},
	} {
		t.Run(name, func(t *testing.T) {
			requires(t, "runc")
			e := startEnforcer(t)
			b := newBundle(t, id(t), c.annotations, nil)
			empty := filepath.Join(e.dir, "empty.toml")
			write(t, empty, "")
			clean := nothingLeft(t, e, b, id(t))
			container := newContainer(t, runc, id(t), b)
			container.program, container.env = program(t, "gpuslice-runtime"), []string{"GPUSLICE_CONFIG=" + empty}
			out, err := container.create()
			must.True(t, err != nil, "it was created")
			checkSentence(t, out, c.says)
			checkLog(t, container, c.says)
			clean()
		})
	}
}

func checkLog(t *testing.T, c *container, says string) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(read(t, c.log())), "\n")
	var last struct{ Level, Msg, Time string }
	must.Do(t, json.Unmarshal([]byte(lines[len(lines)-1]), &last), lines)
	if _, err := time.Parse(time.RFC3339, last.Time); err != nil || last.Level != "error" || !strings.Contains(last.Msg, says) {
		t.Errorf("the log ends with %+v, which does not say %q (%v)", last, says, err)
	}
	// Exactly one message: engines add their own prefix.
	if !strings.HasPrefix(last.Msg, "gpuslice: ") || strings.Count(last.Msg, says) != 1 || strings.Count(last.Msg, "gpuslice: ") != 1 || strings.Contains(last.Msg, "hook #") {
		t.Errorf("the log ends with %q, which is not one sentence of ours", last.Msg)
	}
}

func TestABadEnforcerIsNamed(t *testing.T) {
	for _, c := range []struct {
		name  string
		start func(t *testing.T) *enforcer
		says  string
	}{
		{"Absent", func(t *testing.T) *enforcer { // the hook waits: it may be restarting
			if testing.Short() {
				t.Skip("takes as long as the hook waits for it")
			}
			return newEnforcer(t)
		}, advice.Start("gpusliced")},
		{"NeverThere", func(t *testing.T) *enforcer {
			e := newEnforcer(t)
			must.Do(t, os.RemoveAll(filepath.Dir(e.socket())))
			return e
		}, advice.Start("gpusliced")},
		{"Hung", func(t *testing.T) *enforcer {
			if testing.Short() {
				t.Skip("takes as long as the hook's deadline")
			}
			e := newEnforcer(t)
			l := must.Get(net.Listen("unix", e.socket()))(t)
			t.Cleanup(func() { l.Close() })
			return e
		}, "the enforcer did not answer in time"},
		{"Nonsense", func(t *testing.T) *enforcer {
			e := newEnforcer(t)
			e.serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "[\x1b[2J") }))
			return e
		}, "gpuslice: "},
		{"Endless", func(t *testing.T) *enforcer {
			e := newEnforcer(t)
			e.serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				for {
					if _, err := io.WriteString(w, strings.Repeat(" ", 1<<16)); err != nil {
						return
					}
					time.Sleep(time.Millisecond)
				}
			}))
			return e
		}, "gpuslice: "},
		{"NoDirectory", func(t *testing.T) *enforcer {
			e := newEnforcer(t)
			e.serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { answer(w, 200, object{}) }))
			return e
		}, "gpuslice: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			forEachRuntime(t, func(t *testing.T, r runtime) {
				e := c.start(t)
				b := newBundle(t, id(t), fourGiB, nil)
				container := newContainer(t, r, id(t), b)
				ours(t, e, container)
				clean := nothingLeft(t, e, b, id(t))
				config := read(t, filepath.Join(b.dir, "config.json"))
				start := time.Now()
				out, err := container.create()
				must.True(t, err != nil, "it was created")
				expect.True(t, time.Since(start) <= await.Patience, "it took", time.Since(start))
				checkSentence(t, out, c.says)
				if r.name == "crun" {
					checkLog(t, container, c.says)
				}
				container.run("delete", "--force", container.id)
				write(t, filepath.Join(b.dir, "config.json"), config)
				clean()
			})
		})
	}
}

func TestUnavailableQuotaIsRefusedInTheEnforcersWords(t *testing.T) {
	forEachRuntime(t, func(t *testing.T, r runtime) {
		e := startEnforcer(t)
		b := newBundle(t, id(t), map[string]string{"gpuslice.vram": "81G"}, nil)
		c := newContainer(t, r, id(t), b)
		ours(t, e, c)
		out, err := c.create()
		must.True(t, err != nil, "it was created")
		checkSentence(t, out, "device GPU-1 has 80GiB, less than the requested 81GiB")
		checkLog(t, c, "device GPU-1 has 80GiB, less than the requested 81GiB")
	})
}

// gpuslice-runtime edits the bundle, so it must report the fault before runc does.
func TestABadBundleIsRefused(t *testing.T) {
	for _, c := range []struct {
		name string
		make func(t *testing.T, config string)
		says string
	}{
		{"Absent", func(t *testing.T, config string) { must.Do(t, os.Remove(config)) }, "no such file"},
		{"Broken", func(t *testing.T, config string) { write(t, config, `{"annotations": {`) }, "config.json: not JSON"},
		{"Garbage", func(t *testing.T, config string) { write(t, config, "\x00\xff\x1b[2J") }, "config.json: not JSON"},
		{"Array", func(t *testing.T, config string) { write(t, config, "[]") }, "config.json"},
		{"WrongTypes", func(t *testing.T, config string) { write(t, config, `{"annotations": [1]}`) }, "annotations is a JSON array"},
		{"NoRoot", func(t *testing.T, config string) { write(t, config, `{"annotations": {"gpuslice.vram": "1G"}}`) }, "names no root filesystem"},
		{"HooksAreWrong", func(t *testing.T, config string) {
			write(t, config, `{"root": {"path": "rootfs"}, "annotations": {"gpuslice.vram": "1G"}, "hooks": {"prestart": {}}}`)
		}, "hooks.prestart is a JSON object, which does not belong there"},
		{"HooksTwice", func(t *testing.T, config string) {
			write(t, config, `{"root": {"path": "rootfs"}, "annotations": {"gpuslice.vram": "1G"}, "hooks": {}, "Hooks": {"prestart": []}}`)
		}, `"hooks" is there more than once`},
		{"Huge", func(t *testing.T, config string) { must.Do(t, os.Truncate(config, 1<<30)) }, "longer than 16 MiB"},
		{"Link", func(t *testing.T, config string) {
			must.Do(t, os.Rename(config, config+".real"))
			symlink(t, config+".real", config)
		}, "is a symbolic link"},
		{"Directory", func(t *testing.T, config string) {
			must.Do(t, os.Remove(config))
			mkdir(t, config)
		}, "is not a regular file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			requires(t, "runc")
			e := startEnforcer(t)
			b := newBundle(t, id(t), fourGiB, nil)
			c.make(t, filepath.Join(b.dir, "config.json"))
			clean := nothingLeft(t, e, b, id(t))
			container := newContainer(t, runc, id(t), b)
			container.program = program(t, "gpuslice-runtime")
			out, err := container.create()
			must.True(t, err != nil, "it was created")
			checkSentence(t, out, c.says)
			expect.Equal(t, strings.Count(out, "\n"), 1, "more than one line", out)
			clean()
		})
	}
}

func TestTwoRuntimesThatWrapEachOtherAreStopped(t *testing.T) {
	requires(t, "runc")
	e := startEnforcer(t)
	wrapper := filepath.Join(e.dir, "nvidia-container-runtime")
	write(t, wrapper, "#!/bin/sh\nexec "+program(t, "gpuslice-runtime")+` "$@"`+"\n")
	must.Do(t, os.Chmod(wrapper, 0o755))
	b := newBundle(t, id(t), fourGiB, nil)
	c := newContainer(t, runtime{name: wrapper}, id(t), b)
	ours(t, e, c)
	out, err := c.create()
	must.True(t, err != nil, "it was created")
	checkSentence(t, out, "two runtimes that wrap each other")
}

// TestTheHookAloneWithAHostileState passes the hook states that no runtime would send.
func TestTheHookAloneWithAHostileState(t *testing.T) {
	requires(t)
	e := startEnforcer(t)
	b := newBundle(t, id(t), fourGiB, nil)
	clean := nothingLeft(t, e, b, id(t))
	state := func(id string, pid int) string {
		text, _ := json.Marshal(object{"ociVersion": "1.0.2", "id": id, "pid": pid, "bundle": b.dir, "status": "created"})
		return string(text)
	}
	for name, c := range map[string]struct{ state, says string }{
		"Nothing":     {"", "state on standard input: not JSON"},
		"Garbage":     {"\x1b[2J\x00{", "state on standard input: not JSON"},
		"Array":       {"[]", "JSON array"},
		"PIDAsText":   {`{"id":"a","pid":"1"}`, "pid is a JSON string"},
		"Huge":        {strings.Repeat("[", 5<<20), "longer than 4 MiB"},
		"NoID":        {state("", 2), "0 characters"},
		"DotDot":      {state("../../etc", 2), "the container's id"},
		"Slash":       {state("a/b", 2), "the container's id"},
		"Newline":     {state("a\nb", 2), `\n`},
		"LongID":      {state(strings.Repeat("a", 4096), 2), "4096 characters"},
		"NoBundle":    {`{"id":"a","pid":2}`, "absolute path"},
		"OtherBundle": {`{"id":"a","pid":2,"bundle":"/nowhere"}`, "no such file"},
		"NoPID":       {state("a", 0), "pid 0"},
		"NegativePID": {state("a", -1), "pid -1"},
		"PIDOfInit":   {state("a", 1), "pid 1"},
		"DeadPID":     {state("a", 1<<22), "mount namespace"},
		"HostsPID":    {state("a", os.Getpid()), "no mount namespace of its own"},
	} {
		for _, stage := range []string{"prestart", "poststop"} {
			t.Run(name+"/"+stage, func(t *testing.T) {
				cmd := exec.Command(program(t, "gpuslice-hook"), "--config", e.config, stage)
				cmd.Stdin = strings.NewReader(c.state)
				out, err := cmd.CombinedOutput()
				if stage == "poststop" {
					expect.NoError(t, err, "poststop failed", out)
					return
				}
				must.True(t, err != nil, "it succeeded")
				checkSentence(t, string(out), c.says)
				if strings.Count(string(out), "\n") != 1 || strings.Contains(string(out), "\x1b") {
					t.Errorf("not one clean line: %q", out)
				}
			})
		}
	}
	expect.Equal(t, len(e.registered), 0, "registered", e.registered)
	clean()
}
