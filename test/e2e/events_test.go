// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

func (h *host) events(id string, kind api.EventKind) []api.Event {
	h.T.Helper()
	var found []api.Event
	for line := range strings.Lines(h.mustRun("events", "--json", id)) {
		var e api.Event
		h.Must(json.Unmarshal([]byte(line), &e))
		expect.Equal(h.T, e.Slice, id, line)
		if e.Kind == kind {
			found = append(found, e)
		}
	}
	return found
}

func (h *host) refusals(id string) (sum uint64) {
	h.T.Helper()
	for _, e := range h.events(id, api.EventRefused) {
		sum += e.Count
	}
	return sum
}

// asker requests memory in the container; see programs/asker.c.
func (c *container) asker(held, asked, times uint64, env ...string) string {
	c.T.Helper()
	args := append(append([]string{"env"}, env...), "/fake/asker")
	for _, n := range []uint64{held, asked, times} {
		args = append(args, strconv.FormatUint(n, 10))
	}
	out, err := c.exec(args...)
	if err != nil || !strings.Contains(out, fmt.Sprintf("refused %d\n", times)) {
		c.T.Fatalf("%d requests for %d bytes should have been refused: %v\n%s", times, asked, err, out)
	}
	return out
}

var debugLine = regexp.MustCompile(`(?m)^gpuslice: refused (\S+) of (\d+) bytes \(3\.0 GiB\) on (GPU-\S+): ` +
	`limit (\d+) bytes \(4\.0 GiB\), used by this process (\d+) bytes \(1\.0 GiB\), by siblings (\d+) bytes \(1\.0 GiB\), overhead (\d+) bytes`)

func TestRefusalHasTheSameFiguresInProgramAndEvent(t *testing.T) {
	h := newHost(t)
	h.compileLinked("asker", "programs/asker.c")
	c := h.runContainer(vram(), "/bin/sleep", "600")
	c.mustHold(gib, quota)
	out := c.asker(gib, 3*gib, 1, "GPUSLICE_DEBUG=1")
	said := debugLine.FindStringSubmatch(out)
	must.True(t, said != nil, "the debug line is not in", out)
	figure := func(i int) uint64 {
		return must.Get(strconv.ParseUint(said[i], 10, 64))(h.T)
	}
	// The process has exited; its event may arrive later.
	h.Eventually("the host is told", func() bool { return len(h.events(c.id, api.EventRefused)) > 0 })
	told := h.events(c.id, api.EventRefused)
	must.Len(t, told, 1, "one refusal, told as")
	e := told[0]
	want := api.Event{
		Instance: e.Instance, Seq: e.Seq, Time: e.Time, Kind: api.EventRefused, Slice: c.id, Generation: e.Generation, Container: e.Container,
		PID: e.PID, Command: "asker", Device: said[3], Count: 1, Call: said[1],
		Requested: figure(2), Limit: new(figure(4)), Used: new(figure(5) + figure(6)), Overhead: new(figure(7)),
	}
	if !reflect.DeepEqual(e, want) || e.PID == 0 || e.Call != "cuMemAlloc" || e.Requested != 3*gib || *e.Limit != quota || *e.Used != 2*gib || *e.Overhead == 0 {
		t.Errorf("told %+v\nsaid %+v", e, want)
	}
	expect.True(t, *e.Used+*e.Overhead+e.Requested > *e.Limit, "it would have fitted", e)
	expect.Equal(t, e.Container, c.id, "container")
	table := h.mustRun("events", "--since", "10m", c.id[:len(c.id)-2])
	if !strings.Contains(table, "cuMemAlloc of 3GiB on ") || !strings.Contains(table, "(asker): limit 4GiB, used 2GiB, overhead ") {
		t.Errorf("gpuslice events says\n%s", table)
	}
}

// A refused program must not block on a hung enforcer, nor on a full queue of its socket.
func TestAHungEnforcerDoesNotKeepARefusedProgram(t *testing.T) {
	for name, crowd := range map[string]bool{"alone": false, "in a crowd": true} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.compileLinked("asker", "programs/asker.c")
			c := h.runContainer(vram(), "/bin/sleep", "600")
			said, wait := filepath.Join(h.Dir, "said"), filepath.Join(h.Dir, "fake", "wait")
			out := must.Get(os.Create(said))(h.T)
			defer out.Close()
			cmd := c.runtime("exec", "--detach", c.id, "/fake/asker", strconv.Itoa(gib), strconv.Itoa(4*gib), "1000", "/fake/wait")
			cmd.Stdout, cmd.Stderr = out, out
			h.Must(cmd.Run())
			h.Eventually("it holds its memory", func() bool { _, err := os.Stat(wait); return err == nil })

			h.WhileStopped(func() {
				if crowd {
					h.crowd()
				}
				h.Must(os.Remove(wait))
				h.Eventually("the program has exited", func() bool {
					text, err := os.ReadFile(said)
					return err == nil && strings.HasSuffix(string(text), "\n")
				})
			})
			expect.Equal(t, string(must.Get(os.ReadFile(said))(t)), "refused 1000\n", "it said")
			h.Eventually("all are told", func() bool { return h.refusals(c.id) == 1000 })
		})
	}
}

// crowd connects to the slice's attach socket until its queue is full.
func (h *host) crowd() {
	h.T.Helper()
	sockets := must.Get(filepath.Glob(filepath.Join(h.Dir, "run", "slices", "*", "bind", api.AttachSocketName)))(h.T)
	must.Len(h.T, sockets, 1, "the slice's sockets")
	for range 10000 {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		h.Must(err)
		h.T.Cleanup(func() { unix.Close(fd) })
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: sockets[0]})
		if errors.Is(err, unix.EAGAIN) {
			return
		}
		h.Must(err)
	}
	h.T.Fatal("there is no end of room")
}

func TestFollowingEventsSurvivesARestart(t *testing.T) {
	h := newHost(t)
	c := h.runContainer(vram(), "sleep", "1000")
	said := must.Get(os.Create(filepath.Join(h.Dir, "followed")))(h.T)
	defer said.Close()
	cmd := h.command("events", "--follow", "-n", "5")
	cmd.Stdout, cmd.Stderr = said, said
	h.Must(cmd.Start())
	has := func(text string) func() bool {
		return func() bool {
			all, err := os.ReadFile(said.Name())
			return err == nil && strings.Contains(string(all), text)
		}
	}
	h.Eventually("events of the next enforcer follow", has("registered"))
	h.Stop(unix.SIGKILL)
	h.Start()
	h.Must(c.runtime("delete", "--force", c.id).Run())
	h.Eventually("it tells of the next enforcer's events", has("ended"))
	expect.True(t, has("gpusliced was restarted")(), "the restart is not among the events")
	h.Must(cmd.Process.Signal(unix.SIGINT))
	expect.NoError(t, cmd.Wait(), "interrupted")
}

func TestRefusalIsExplainedAfterItsContainerIsRemoved(t *testing.T) {
	h := newHost(t)
	c := h.runContainer(vram(), "/bin/sleep", "600")
	c.hog(2 * gib)
	c.mustRefuse(2*gib, "it does not fit beside the first and two contexts")
	h.Eventually("the host is told", func() bool { return len(h.events(c.id, api.EventRefused)) > 0 })
	explained := func() string {
		out := must.Output(h.cli("explain", c.id))(t)
		return out
	}
	running := explained() // names the live process: the refused one may exit before the enforcer learns of it
	for _, want := range []string{"was refused cuMemAlloc of 2GiB", "quota there was 4GiB, of which 3.01GiB was in use: 2GiB requested by programs", "(cuda_hog) 2.51GiB", "gpuslice set " + c.id + " --vram 5184M"} {
		expect.Contains(t, running, want)
	}
	must.Get(c.output(c.runtime("delete", "--force", c.id)))(t)
	h.Eventually("the slice is gone", h.IsGone(c.id))
	expect.Contains(t, explained(), "gpuslice.vram=5184M", "after its end")
	out := h.mustRun("recommend", c.id)
	if fields := strings.Fields(out); !strings.HasSuffix(strings.Join(fields, " "), "4GiB 3.01GiB 1 5184M") {
		t.Errorf("\n%s", out)
	}
}
