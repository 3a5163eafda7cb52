// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"sigs.k8s.io/yaml"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/testhost"
)

// asProgram, set in the environment, makes the test binary run the program, for tests that need a process.
const asProgram = "GPUSLICE_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(m.Run())
}

const (
	cardA = "GPU-1b2c3d4e-0000-1111-2222-333344445555"
	cardB = "GPU-9b2c3d4e-0000-1111-2222-333344445555"
)

func crowd() []api.Slice {
	on := func(device string, index int, used, limit uint64) api.DeviceUse {
		return api.DeviceUse{Device: device, Index: index, Used: used << 30, Limit: limit << 30, Peak: 9 << 30}
	}
	return []api.Slice{
		{ID: strings.Repeat("ab", 32), Container: strings.Repeat("ab", 32), State: api.Active, Mode: api.Enforce, Tenant: "a", Devices: []api.DeviceUse{on(cardA, 0, 3, 4), on(cardB, 1, 2, 1)}},
		{ID: "job-1", UID: new(uint32), Command: "python serve.py", Created: time.Now().Add(-90 * time.Minute), State: api.Active, Mode: api.Enforce, Tenant: "b", Pools: api.PoolNames{"llm"}, Names: api.Names{Name: "serve", Pod: "llm-0", Namespace: "ml", Image: "vllm:1"}, Devices: []api.DeviceUse{on(cardB, 1, 7, 8)}},
		{ID: "job-2", State: api.Frozen, Mode: api.Record},
	}
}

func TestPsAppliesItsFilters(t *testing.T) {
	long := strings.Repeat("ab", 32)
	socket := listen(t, holds{all: crowd()})
	ps := func(args ...string) (out, said string, code int) {
		return cliRun(append([]string{"--socket", socket, "ps"}, args...)...)
	}
	for args, want := range map[string]string{
		"-q":                                     long + "\njob-1\njob-2\n",
		"-q --filter tenant=a":                   long + "\n",
		"-q --filter tenant=":                    "job-2\n",
		"-q --filter tenant=a --filter tenant=b": long + "\njob-1\n",
		"-q --filter pool=llm":                   "job-1\n",
		"-q --filter name=serve --filter pod=llm-0 --filter namespace=ml --filter image=vllm:1": "job-1\n",
		"-q --filter mode=record":                           "job-2\n",
		"-q --filter state=frozen":                          "job-2\n",
		"-q --filter over=true":                             long + "\n",
		"-q --filter id=job-":                               "job-1\njob-2\n",
		"-q --filter container=abab":                        long + "\n",
		"-q --filter device=0":                              long + "\n",
		"-q --filter device=1 --filter over=false":          "job-1\n",
		"-q --filter device=gpu-9B2c":                       long + "\njob-1\n",
		"-q --filter device=1:GPU-9b2c3d4e":                 long + "\njob-1\n",
		"-q --filter device=9":                              "",
		"--format {{.User}}:{{.Command}} --filter tenant=b": "root:python serve.py\n",
		"-q --sort age":                                     "job-1\n" + long + "\njob-2\n",
		"-q --sort -used":                                   "job-1\n" + long + "\njob-2\n",
		"--format {{.ID}}:{{.Used}} --sort used":            "job-2:\n" + long + ":2GiB\n" + long + ":3GiB\njob-1:7GiB\n",
		"--no-trunc --filter tenant=b":                      "SLICE  CONTAINER  NAME            TENANT  DEVICE                                    USED  OVERHEAD  LIMIT  PROCESSES  STATE\njob-1  -          ml/llm-0/serve  b       " + cardB + "  7GiB  0B        8GiB   0          active, pool llm\n",
	} {
		if out, said, code := ps(strings.Fields(args)...); code != 0 || out != want {
			t.Errorf("ps %s: %d, %s got\n%s\nwant\n%s", args, code, said, out, want)
		}
	}
	wide, _, _ := ps("-o", "wide", "--filter", "tenant=b")
	if got := strings.Join(strings.Fields(wide), " "); !strings.Contains(got, " STATE USER COMMAND AGE IMAGE MODE POOL PEAK ALLOCATIONS REFUSALS BEGAN ENFORCEMENT job-1 ") || !strings.Contains(got, " active, pool llm root python serve.py 1h30m") || !strings.Contains(got, " vllm:1 enforce llm 9GiB ") {
		t.Errorf("got %s", got)
	}
	if out, _, _ := ps("--format", `table {{.ID}}\t{{.Peak}}`, "--filter", "tenant=a", "--filter", "device=0"); out != "SLICE         PEAK\nabababababab  9GiB\n" {
		t.Error(out)
	}
	for args, want := range map[string]string{
		"--filter colour=red":     "with the keys id, container, ",
		"--filter state=sleeping": "of state active, released, damaged, frozen, expired, suspending, suspended, resuming, evicting, evicted, waiting and returning are accepted",
		"--sort colour":           "are accepted",
		"--json -o yaml":          "--json and --output yaml: one of them is accepted",
		"--json -q":               "--output and --quiet: one of them is accepted",
		"-o xml":                  "table, wide, json and yaml are accepted",
		"--format {{.Colour}}":    "there is no field .Colour",
		"--every 2s":              "--every needs --watch",
		"--watch --every 1ms":     "at least 100ms is accepted",
		"--format=":               "--format is empty",
	} {
		if _, said, code := cliRun(append([]string{"--socket", "/nonexistent", "ps"}, strings.Fields(args)...)...); code != exitUsage || !strings.Contains(said, want) || strings.Contains(said, "\n") {
			t.Errorf("ps %s: %d, %s", args, code, said)
		}
	}
}

// JSON is the same for all flags that select it, and YAML has the same content.
func TestJSONAndYAMLOfAListAreTheControlAPIs(t *testing.T) {
	socket := listen(t, holds{all: crowd()})
	shown := func(args ...string) string {
		out, said, code := cliRun(append([]string{"--socket", socket, "ps"}, args...)...)
		if code != 0 {
			t.Fatalf("%q: %d, %s", args, code, said)
		}
		return out
	}
	want := shown("--json")
	var all, lines []api.Slice
	if err := json.Unmarshal([]byte(want), &all); err != nil || len(all) != 3 || all[0].Devices[1].Used != 2<<30 {
		t.Errorf("%v: %s", err, want)
	}
	if got := shown("-o", "json"); got != want {
		t.Errorf("-o json: %s", got)
	}
	back, err := yaml.YAMLToJSON([]byte(shown("-o", "yaml")))
	if err != nil {
		t.Fatal(err)
	}
	var compact, indented bytes.Buffer
	var parsed []any
	if err := errors.Join(json.Unmarshal([]byte(want), &parsed), json.NewEncoder(&compact).Encode(parsed), json.Compact(&indented, back)); err != nil || strings.TrimSpace(compact.String()) != indented.String() {
		t.Errorf("%v: -o yaml is\n%s\nand JSON\n%s", err, back, compact.String())
	}
	for decoder := json.NewDecoder(strings.NewReader(shown("--format", "json"))); decoder.More(); {
		var one api.Slice
		if err := decoder.Decode(&one); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, one)
	}
	if len(lines) != 3 || lines[1].ID != "job-1" {
		t.Errorf("%+v", lines)
	}
}

type lists struct {
	holds
}

func (h lists) Pools(context.Context) ([]api.Pool, error) {
	return []api.Pool{{Name: "llm", State: api.Active, Tenant: "a", Devices: []api.PoolUse{{Device: cardA, Used: 2, Limit: 1}}}, {Name: "idle", State: api.Active}}, nil
}

func (h lists) Devices(context.Context) ([]api.Device, error) {
	return []api.Device{{UUID: cardA, Index: 0, Name: "H100"}, {UUID: "MIG-9-8-7", Index: -1}}, nil
}

func (h lists) History(context.Context) ([]api.Run, error) {
	return []api.Run{{Slice: "a", Names: api.Names{Image: "vllm:1"}, Devices: []api.RunUse{{Device: cardA, Peak: 1}}}, {Slice: "b", Names: api.Names{Image: "vllm:1"}, Devices: []api.RunUse{{Device: cardA, Peak: 1, Refusals: 2}}}}, nil
}

func TestEachListHasTheSameFlags(t *testing.T) {
	socket := listen(t, lists{})
	for args, want := range map[string]string{
		"devices -q --filter mig=false":                    cardA + "\n",
		"devices --format {{.ID}}={{.Name}} --sort -index": cardA + "=H100\nMIG-9-8-7=\n",
		"pool list -q":                                    "llm\nidle\n",
		"pool ls -q --sort name":                          "idle\nllm\n",
		"pool ls -q --filter over=true":                   "llm\n",
		"pool list --format {{.Name}}:{{.State}}":         "llm:active, over\nidle:active\n",
		"recommend -q --filter refused=true":              "b\n",
		"recommend --format {{.Of}}:{{.Suggested}} -q":    "",
		"recommend --by image --format {{.Of}}={{.Runs}}": "vllm:1=2\n",
	} {
		out, said, code := cliRun(append([]string{"--socket", socket}, strings.Fields(args)...)...)
		if want == "" && code == exitUsage {
			continue
		}
		if code != 0 || out != want {
			t.Errorf("%s: %d, %s got\n%s\nwant\n%s", args, code, said, out, want)
		}
	}
}

func (h lists) DeletePool(_ context.Context, name string) (api.Pool, error) {
	return api.Pool{Name: name}, nil
}

func TestPoolsAndLeasesAreEndedByTheNameThatIsTyped(t *testing.T) {
	socket := listen(t, lists{})
	if out, said, code := cliRun("--socket", socket, "pool", "rm", "llm", "--json"); code != 0 || !strings.Contains(out, `"name": "llm"`) {
		t.Errorf("%d, %s%s", code, out, said)
	}
	if _, said, code := cliRun("--socket", socket, "pool", "rm"); code != exitUsage || !strings.Contains(said, "takes one POOL") {
		t.Errorf("%d, %s", code, said)
	}
	if _, said, code := cliRun("lease", "rm"); code != exitUsage || !strings.Contains(said, "takes LEASES") {
		t.Errorf("%d, %s", code, said)
	}
}

func program(env []string, args ...string) *exec.Cmd {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	command := exec.Command(self, args...)
	for _, e := range os.Environ() {
		if name, _, _ := strings.Cut(e, "="); name != "NO_COLOR" && name != "CI" && !strings.HasPrefix(name, "CLICOLOR") {
			command.Env = append(command.Env, e)
		}
	}
	command.Env = append(command.Env, append([]string{asProgram + "=1", "TERM=tmux-256color"}, env...)...)
	return command
}

func TestColoursAreForTerminalsThatWantThem(t *testing.T) {
	socket := listen(t, holds{all: crowd()})
	args := []string{"--socket", socket, "ps"}
	for name, c := range map[string]struct {
		env  []string
		want bool
	}{
		"a terminal":              {want: true},
		"NO_COLOR":                {env: []string{"NO_COLOR=1"}},
		"a terminal without them": {env: []string{"TERM=dumb"}},
	} {
		command := program(c.env, args...)
		terminal, err := pty.Start(command)
		if err != nil {
			t.Skip("no terminal: ", err)
		}
		out, _ := io.ReadAll(terminal) // ends with EIO
		terminal.Close()
		if err := command.Wait(); err != nil || !strings.Contains(string(out), "job-1") {
			t.Errorf("%s: %v: %q", name, err, out)
		}
		if red := strings.Contains(string(out), "\x1b[31mactive, over\x1b[0m"); red != c.want || strings.Contains(string(out), "\x1b[") != c.want {
			t.Errorf("%s: %q", name, out)
		}
	}
	out, err := program(nil, args...).Output()
	if err != nil || bytes.ContainsRune(out, '\x1b') || !strings.Contains(string(out), "active, over") {
		t.Errorf("piped: %v: %q", err, out)
	}
}

func TestTopThatIsPipedIsTablesOnce(t *testing.T) {
	out, err := program(nil, "--socket", listen(t, lists{holds: holds{all: crowd()}}), "top").Output()
	if err != nil || bytes.ContainsRune(out, '\x1b') {
		t.Errorf("%v: %q", err, out)
	}
	for _, want := range []string{"H100", "job-1", "active, over"} {
		if strings.Count(string(out), want) != 1 {
			t.Errorf("%q is not there once:\n%s", want, out)
		}
	}
}

func TestTheTerminalIsAskedNothing(t *testing.T) {
	command := program([]string{"TERM=xterm-256color", "CI="}, "--version") // --version has no colours
	terminal, err := pty.Start(command)
	if err != nil {
		t.Skip("no terminal: ", err)
	}
	defer terminal.Close()
	out, _ := io.ReadAll(terminal)
	if err := command.Wait(); err != nil || !strings.HasPrefix(string(out), "gpuslice ") || strings.ContainsRune(string(out), '\x1b') {
		t.Errorf("%v: %q", err, out)
	}
}

// shared is a buffer for concurrent writing and reading.
type shared struct{ testhost.Output }

// has waits until text has occurred times times.
func (s *shared) has(t *testing.T, text string, times int) string {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		got := s.String()
		if strings.Count(got, text) >= times {
			return got
		}
		if time.Now().After(end) {
			t.Fatalf("%q is not %d times in %q", text, times, got)
		}
	}
}

func TestWatchListsAgainAndAgain(t *testing.T) {
	socket := listen(t, lists{holds: holds{all: crowd()}})
	args := []string{"--socket", socket, "ps", "--watch", "--every", "100ms"}

	piped := program(nil, args...)
	out := new(shared)
	piped.Stdout = out
	if err := piped.Start(); err != nil {
		t.Fatal(err)
	}
	got := out.has(t, "job-2", 3)
	if strings.ContainsRune(got, '\x1b') || !strings.Contains(got, "record\n\nSLICE") {
		t.Errorf("piped: %q", got)
	}
	if err := errors.Join(piped.Process.Signal(syscall.SIGINT), piped.Wait()); err != nil {
		t.Error("an interrupt is an error: ", err)
	}

	command := program(nil, args...)
	terminal, err := pty.StartWithSize(command, &pty.Winsize{Rows: 4, Cols: 30})
	if err != nil {
		t.Skip("no terminal: ", err)
	}
	defer terminal.Close()
	screen := new(shared)
	go func() { _, _ = io.Copy(screen, terminal) }()
	got = screen.has(t, "\x1b[H", 3)
	if !strings.Contains(got, "… and 3 more lines: `gpuslice…") {
		t.Errorf("a small terminal: %q", got)
	}
	if err := errors.Join(command.Process.Signal(syscall.SIGINT), command.Wait()); err != nil {
		t.Error(err)
	}
}

func TestWatchContinuesAfterARestart(t *testing.T) {
	dir, err := os.MkdirTemp("", "gs")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	socket := dir + "/s"
	end := serveAt(t, socket, lists{holds: holds{all: crowd()}})
	command := program(nil, "--socket", socket, "ps", "--watch", "--every", "100ms", "-q")
	out, said := new(shared), new(shared)
	command.Stdout, command.Stderr = out, said
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	out.has(t, "job-1", 1)
	end()
	said.has(t, "does not answer any more: waiting until it does\n", 1)
	n := strings.Count(out.has(t, "job-1", 1), "job-1")
	end = serveAt(t, socket, lists{holds: holds{all: crowd()}})
	defer end()
	out.has(t, "job-1", n+1)
	if err := errors.Join(command.Process.Signal(syscall.SIGTERM), command.Wait()); err != nil {
		t.Error(err)
	}
}
