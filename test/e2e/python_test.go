// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/testhost"
)

const python = "/usr/bin/python3"

// pythonPrelude begins each program.
const pythonPrelude = `
import array, sys, time
if "without numpy" in sys.argv:
    sys.modules["numpy"] = None
import gpuslice
ptx = open("kernels.ptx").read()
`

// python returns a program that has the wheel of package gpuslice, and is nobody's.
func (h *leaseHost) python(program string, args ...string) *exec.Cmd {
	h.T.Helper()
	if err := exec.Command(python, "-c", "import grpc, google.protobuf").Run(); err != nil {
		h.T.Skip("needs grpcio and protobuf for /usr/bin/python3")
	}
	dir, err := os.MkdirTemp("/tmp", "gpuslice-python-")
	h.Must(err)
	h.T.Cleanup(func() { os.RemoveAll(dir) })
	h.Must(os.Chmod(dir, 0o755))
	wheel := must.Get(must.Printed(exec.Command(python, "-B", "../../lease/python/make_wheel.py", dir, "0.0.1")))(h.T)
	h.Must(os.WriteFile(filepath.Join(dir, "kernels.ptx"), must.Get(os.ReadFile("../lease/examples/kernels.ptx"))(h.T), 0o644))
	cmd := h.as(nobody)
	cmd.Path, cmd.Args, cmd.Dir = python, append([]string{python, "-B", "-c", pythonPrelude + program}, args...), dir
	cmd.Env = append(cmd.Env, "PYTHONPATH="+strings.TrimSpace(wheel))
	return cmd
}

// dialogue is a running program. Each line that it prints waits for next.
type dialogue struct {
	h   *leaseHost
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Reader
}

func (h *leaseHost) begin(cmd *exec.Cmd) *dialogue {
	h.T.Helper()
	d := &dialogue{h: h, cmd: cmd, in: must.Get(cmd.StdinPipe())(h.T), out: bufio.NewReader(must.Get(cmd.StdoutPipe())(h.T))}
	var said testhost.Output
	cmd.Stderr = &said
	h.Must(cmd.Start())
	h.T.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if h.T.Failed() {
			h.T.Logf("the program said:\n%s", said.String())
		}
	})
	return d
}

// says reads one line.
func (d *dialogue) says(want string) {
	d.h.T.Helper()
	if line, err := d.out.ReadString('\n'); err != nil || !strings.HasPrefix(line, want) {
		d.h.T.Fatalf("the program printed %q (%v), want %q", line, err, want)
	}
}

func (d *dialogue) next() {
	d.h.T.Helper()
	must.Get(io.WriteString(d.in, "\n"))(d.h.T)
}

func TestAProgramInPythonWorksInALeaseOfItsOwn(t *testing.T) {
	for _, how := range []string{"with numpy", "without numpy"} {
		t.Run(how, func(t *testing.T) {
			if how == "with numpy" && exec.Command(python, "-c", "import numpy").Run() != nil {
				t.Skip("needs numpy for /usr/bin/python3")
			}
			h := newLeaseHost(t)
			program := h.python(`
n = 1000000
with gpuslice.lease("64M", ttl="2h") as gpu:
    x = gpu.array(array.array("f", range(n)))
    m = gpu.module(ptx)
    m.scale[(n + 255) // 256, 256](x, 2.0, n)
    m["bias"][(n + 255) // 256, (256, 1, 1)](x, 1.0, n)
    gpu.sync()
    print(x.shape, x.nbytes, x.get().tolist() == [2.0 * i + 1 for i in range(n)])
    y = gpu.zeros((2, 3), "f")
    m.scale[1, 32](x.at(1), 0.0, 2)
    y.set(array.array("f", x.get()[:6]))
    print(y.get().tolist())
    z = gpu.zeros(6, "f")
    z.set(y)
    print(z.get().tolist(), gpu.stats()["buffers"])
    y.memset(0)
    z.free()
    out = array.array("f", [9] * 6)
    print(y.get(out) is out, out.tolist(), gpu.stats()["buffers"])
    for _ in range(100):
        gpu.zeros(32 << 20, "B")  # what is not used any more is freed
    for call in (lambda: gpu.zeros(1 << 30, "B"), lambda: gpu.module("garbage"), lambda: gpu.zeros(0), lambda: z.get(), lambda: gpuslice.drop("lease-none"),
                 lambda: gpuslice.acquire("8G"), lambda: m.none[1, 1]() or gpu.sync(), lambda: m.none[1, 1]() or y.get(),
                 lambda: m.scale[1, 2048](x, 1.0, 1) or gpu.sync()):
        try:
            call()
            print("no failure")
        except gpuslice.Error as e:
            print(type(e).__name__, e.code, *[None if n is None else n >> 30 for n in (e.requested, e.limit, e.used)])
    gpu.sync()
    print(len(gpuslice.list()), gpuslice.show(gpu.lease).state)
print(gpuslice.list(), gpu.lease.state, gpu.lease.reason)
try:
    gpu.sync()
except gpuslice.Closed as e:
    print(e)
`, how)
			out := must.Get(must.Printed(program))(t)
			want := `(1000000,) 4000000 True
[[1.0, 0.0, 0.0], [7.0, 9.0, 11.0]]
[1.0, 0.0, 0.0, 7.0, 9.0, 11.0] 3
True [0.0, 0.0, 0.0, 0.0, 0.0, 0.0] 2
AllocFailed ALLOC_FAILED 1 0 0
LoadFailed LOAD_FAILED None None None
InvalidRequest INVALID_REQUEST None None None
InvalidHandle INVALID_HANDLE None None None
NotFound NOT_FOUND None None None
Refused REFUSED 8 4 0
LaunchFailed LAUNCH_FAILED None None None
LaunchFailed LAUNCH_FAILED None None None
LaunchFailed LAUNCH_FAILED None None None
1 active
[] ended it was dropped
the session was closed
`
			expect.Equal(t, out, want)
		})
	}
}

func TestAProgramInPythonDropsItsLeaseHoweverItEnds(t *testing.T) {
	h := newLeaseHost(t)
	for how, c := range map[string]struct{ program, says string }{
		"at its exit":         {"gpu = gpuslice.lease('64M')\nx = gpu.zeros(4)", ""},
		"on an exception":     {"with gpuslice.lease('64M') as gpu:\n    gpu.zeros(1 << 40)", "gpuslice.errors.AllocFailed: ALLOC_FAILED: "},
		"on an interrupt":     {"import os, signal\nwith gpuslice.lease('64M') as gpu:\n    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(60)", "KeyboardInterrupt"},
		"though it is forked": {"import os\ngpu = gpuslice.lease('64M')\nif os.fork() == 0:\n    sys.exit()\nassert os.wait()[1] == 0\nprint(gpu.zeros(4).get().tolist(), len(gpuslice.list()))", ""},
	} {
		program := h.python(c.program)
		var said strings.Builder
		program.Stderr = &said
		out, err := program.Output()
		if (err != nil) != (c.says != "") || !strings.Contains(said.String(), c.says) || strings.Contains(c.program, "fork") && string(out) != "[0.0, 0.0, 0.0, 0.0] 1\n" {
			t.Errorf("%s: %v\n%s%s", how, err, out, said.String())
		}
		must.Len(t, must.Get(h.List(context.Background()))(t), 0, how)
	}
	h.nothingIsLeft()
}

func TestAProgramInPythonRenewsItsLeaseUntilThatEnds(t *testing.T) {
	h := newLeaseHost(t)
	d := h.begin(h.python(`
import threading
with gpuslice.lease("64M", ttl="45s") as gpu:
    acquired = gpu.lease
    print("acquired", flush=True)
    input()
    time.sleep(16)  # a renewal was due after 15
    print("late", flush=True)
    while gpu.lease.expires <= acquired.expires:
        time.sleep(0.1)
        gpu.sync()
    print("renewed", flush=True)
    input()
    for _ in range(2):
        try:
            gpu.sync()
        except gpuslice.LeaseExpired as e:
            print(e, flush=True)
for thread in threading.enumerate():
    if thread.name.startswith("gpuslice"):
        thread.join()
print("no thread is left", flush=True)
with gpuslice.lease("64M", ttl="1h", renew=False) as gpu:
    gpuslice.renew(gpu.lease, "1s")
    try:
        while True:
            gpu.sync()
            time.sleep(0.1)
    except gpuslice.LeaseExpired as e:
        print(str(e).replace(gpu.lease.id, "it"), flush=True)
`))
	d.says("acquired")
	h.stop(unix.SIGKILL)
	d.next()
	d.says("late")
	h.start()
	d.says("renewed")
	id := must.Get(h.List(context.Background()))(t)[0].ID
	must.Get(h.Drop(context.Background(), id))(t)
	d.next()
	for range 2 {
		d.says("LEASE_EXPIRED: lease " + id + " has ended: it was dropped (acquire another one)\n")
	}
	d.says("no thread is left\n")
	d.says("LEASE_EXPIRED: lease it has ended: it expired (acquire another one)\n")
}

func TestAProgramInPythonFollowsItsSessionToAnotherBroker(t *testing.T) {
	h := newLeaseHost(t)
	d := h.begin(h.python(`
def fails(call):
    try:
        call()
    except gpuslice.Error as e:
        print(type(e).__name__, *["lost"][:e.lost], flush=True)

with gpuslice.lease("64M") as gpu:
    n = 4 << 20  # through shared memory
    old, m = gpu.array(bytes(n)), gpu.module(ptx)
    m.scale[1, 32](old, 1.0, 3)
    print(gpu.lease.id, flush=True)
    input()
    while gpu._stream._broker < 2:
        time.sleep(0.01)
    fails(gpu.sync)  # the launch is lost
    gpu.sync()
    fails(old.get)
    m.scale[1, 32](old, 1.0, 3)
    fails(gpu.sync)
    new = gpu.array(b"\x07" * n)
    print(bytes(memoryview(new.get()).cast("B")) == b"\x07" * n, flush=True)
    while gpuslice.show(gpu.lease).restarts < 1:
        time.sleep(0.01)
    print(gpuslice.show(gpu.lease).restarts, flush=True)
    # Another client, which frees what it made and leaves the lease alone.
    with gpuslice.open(gpu.lease.address, gpu.lease.token_file) as other:
        mine = other.zeros(5)
        print(gpu.stats()["clients"], gpu.stats()["buffers"], flush=True)
    print(gpu.stats()["buffers"], gpuslice.show(gpu.lease).state, flush=True)
    fails(lambda: gpuslice.open(gpu.lease.address, "0" * 64))
fails(lambda: gpuslice.open(gpu.lease.address or "unix:/none/session.sock", "0" * 64))
fails(gpuslice.Service("unix:/none.sock").list)
`))
	d.says("lease-")
	h.Must(syscall.Kill(h.brokerOf(must.Get(h.List(context.Background()))(t)[0].ID), syscall.SIGKILL))
	d.next()
	for _, line := range []string{"SyncFailed lost", "InvalidHandle", "InvalidHandle", "True", "1", "2 2", "1 active", "Refused", "LeaseExpired lost", "Unreachable"} {
		d.says(line + "\n")
	}
}

func TestPythonProgramNeedsOnlyTheLeasesDirectory(t *testing.T) {
	h := newLeaseHost(t)
	l := h.leased(nobody, "--vram", "64M", "--clients", "1")
	program := h.python(`
import os
assert not os.access("/mnt/lease", os.W_OK)
with gpuslice.open("unix:/mnt/lease/session.sock", "/mnt/lease/token") as gpu:
    data = bytes(range(256)) * (1 << 14)
    print(bytes(memoryview(gpu.array(data).get())) == data)
    try:
        gpuslice.open("unix:/mnt/lease/session.sock", "/mnt/lease/token")
    except gpuslice.Refused as e:
        print(e.code)
`)
	// As a container has it.
	program.Args = append([]string{
		"unshare", "--mount", "sh", "-ec", `mount -t tmpfs none /mnt && mkdir /mnt/lease && mount --bind -o ro "$0" /mnt/lease && exec setpriv --reuid 65534 --regid 65534 --clear-groups "$@"`,
		filepath.Dir(l.TokenFile),
	}, program.Args...)
	program.Path, program.SysProcAttr = must.Get(exec.LookPath("unshare"))(t), nil
	expect.Equal(t, must.Get(must.Printed(program))(t), "True\nREFUSED\n")
}

func TestTheDocumentedProgramInPythonRunsAsItIsPrinted(t *testing.T) {
	h := newLeaseHost(t)
	if exec.Command(python, "-c", "import numpy").Run() != nil {
		t.Skip("needs numpy for /usr/bin/python3")
	}
	_, program, _ := strings.Cut(string(must.Get(os.ReadFile("../../docs/use/python.md"))(t)), "```python\n")
	program, _, _ = strings.Cut(program, "```")
	if out := must.Get(must.Printed(h.python(program)))(t); !strings.HasPrefix(out, "[   0.    2.    4. ") || strings.Count(program, "\n") > 8 {
		t.Errorf("%s\nprinted %q", program, out)
	}
}
