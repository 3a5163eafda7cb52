// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/lease"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/testhost"
)

// leaseHost is a host with a lease service. The sessions of user nobody may have 4 GiB together.
type leaseHost struct {
	*testhost.Host
	bin    string // executable for all users
	cgroup string
	daemon *exec.Cmd
	said   testhost.Output
	umask  string // of the lease service
	lease.Service
}

func newLeaseHost(t *testing.T) *leaseHost {
	t.Helper()
	t.Parallel()
	if _, err := os.Stat(filepath.Join(testhost.BinDir(t), "gpuslice-broker")); err != nil {
		t.Skip("needs bin/gpuslice-broker: make test-programs")
	}
	h := &leaseHost{Host: testhost.New(t, testhost.Options{Runtimes: []string{"/bin/true"}}), umask: "022"}
	h.Stop(unix.SIGTERM)
	h.cgroup = "gpuslice-test-" + filepath.Base(h.Dir)
	h.Service.Socket = filepath.Join(h.Dir, "run", "leases.sock")
	file, err := os.OpenFile(h.Config(), os.O_APPEND|os.O_WRONLY, 0)
	h.Must(err)
	_, err = fmt.Fprintf(file, `
[expiry]
grace = "500ms"
[sessions]
socket = %q
[[sessions.limits]]
user = "%d"
max_vram = "4G"
max_sessions = 3
[leases]
socket = %q
dir = %q
cgroup = %q
`, filepath.Join(h.Dir, "run", "session.sock"), nobody, h.Service.Socket, h.leases(), h.cgroup)
	h.Must(err)
	h.Must(file.Close())
	// Brokers and clients run as other users.
	h.Must(os.Chmod(h.Dir, 0o711))
	h.Must(os.Chmod(filepath.Join(h.Dir, "fake"), 0o777))
	h.Start()
	h.Must(os.Chmod(filepath.Join(h.Dir, "fake", "state"), 0o666))
	h.bin = forAll(t, h.Bin)
	h.start()
	t.Cleanup(func() {
		all, err := h.List(context.Background())
		expect.NoError(t, err)
		for _, l := range all {
			expect.NoError(t, must.Err(h.Drop(context.Background(), l.ID)))
		}
		h.stop(unix.SIGTERM)
		h.nothingIsLeft()
		for _, dir := range h.Cgroups(h.cgroup) {
			h.Must(os.Remove(dir))
		}
		if t.Failed() {
			t.Logf("the lease service said:\n%s", h.said.String())
		}
	})
	return h
}

// forAll copies the programs to a directory that all users can read.
func forAll(t *testing.T, bin string) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "gpuslice-bin-")
	if err == nil {
		t.Cleanup(func() { os.RemoveAll(dir) })
		err = os.Chmod(dir, 0o755)
	}
	if err == nil {
		err = exec.Command("cp", "-r", filepath.Join(bin, "gpuslice"), filepath.Join(bin, "gpuslice-leased"), filepath.Join(bin, "gpuslice-broker"),
			filepath.Join(bin, api.LibraryName), filepath.Join(bin, "fakecuda"), dir).Run()
	}
	must.Do(t, err)
	return dir
}

func (h *leaseHost) leases() string { return filepath.Join(h.Dir, "run", "leases") }

func (h *leaseHost) start() {
	h.T.Helper()
	h.daemon = exec.Command("sh", "-c", "umask "+h.umask+`; exec "$@"`, "sh", filepath.Join(h.bin, "gpuslice-leased"), "--config", h.Config())
	h.daemon.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(h.bin, "fakecuda"), "FAKECUDA_STATE="+filepath.Join(h.Dir, "fake", "state"))
	h.daemon.Stdout, h.daemon.Stderr = &h.said, &h.said
	h.Must(h.daemon.Start())
	h.Eventually("the lease service answers", func() bool {
		_, err := h.List(context.Background())
		return err == nil
	})
}

func (h *leaseHost) stop(sig os.Signal) {
	_ = h.daemon.Process.Signal(sig)
	// Not Wait: brokers still hold its standard error.
	_, _ = h.daemon.Process.Wait()
}

func (h *leaseHost) acquire(r lease.Request) *lease.Lease {
	h.T.Helper()
	l, err := h.Acquire(context.Background(), r)
	if err != nil {
		h.T.Fatalf("%v\n%s", err, h.said.String())
	}
	return l
}

func (h *leaseHost) open(l *lease.Lease) *lease.Session {
	h.T.Helper()
	s := must.Get(lease.Open(context.Background(), l.Address, l.TokenFile))(h.T)
	h.T.Cleanup(func() { _ = s.Close() })
	return s
}

// works allocates size bytes in a session, checks them and frees them.
func works(s *lease.Session, size uint64) error {
	ctx, cancel := context.WithTimeout(context.Background(), testhost.Patience)
	defer cancel()
	b, err := s.Alloc(ctx, size)
	if err != nil {
		return err
	}
	want, got := []byte("what was written is read"), make([]byte, 24)
	if err := b.Write(ctx, size-24, want); err != nil {
		return err
	}
	if err := b.Read(ctx, size-24, got); err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("read %q", got)
	}
	return b.Free(ctx)
}

func (h *leaseHost) ended(id string) *lease.Lease {
	h.T.Helper()
	var l *lease.Lease
	h.Eventually("the lease has ended", func() bool {
		var err error
		l, err = h.Show(context.Background(), id)
		return err == nil && l.State != lease.Active
	})
	return l
}

// nothingIsLeft checks that no lease has left a slice, a directory, a cgroup or memory on the card.
func (h *leaseHost) nothingIsLeft() {
	h.T.Helper()
	must.Len(h.T, h.Slices(), 0, "slices")
	must.Len(h.T, must.Get(os.ReadDir(h.leases()))(h.T), 0, "directories")
	for _, dir := range h.Cgroups(h.cgroup) {
		must.Len(h.T, must.Get(filepath.Glob(dir+"/*/cgroup.procs"))(h.T), 0, "cgroups")
	}
	h.Eventually("the card is nobody's", func() bool {
		devices, err := h.Client.Devices(context.Background())
		return err == nil && devices[0].Quotas == 0
	})
}

func TestALeaseIsASliceInWhichABrokerWorksForItsClients(t *testing.T) {
	h := newLeaseHost(t)
	ctx := context.Background()
	l := h.acquire(lease.Request{VRAM: 64 * mib, TTL: 2 * time.Minute, Tenant: "physics"})
	if l.State != lease.Active || l.VRAM != 64*mib || l.Overhead == 0 || l.Tenant != "physics" || l.Expires == nil || l.DeviceName == "" {
		t.Errorf("%+v", l)
	}
	slice := must.Get(h.Client.Slice(ctx, l.ID))(h.T)
	if slice.Tenant != "physics" || slice.TTL != 2*time.Minute || len(slice.Quotas) != 1 || slice.Quotas[0] != (api.Quota{Device: l.Device, Bytes: l.VRAM + l.Overhead}) {
		t.Errorf("%+v", slice)
	}
	if out, code := output(h.as(0, "ps")); code != 0 || !strings.Contains(out, l.ID) {
		t.Errorf("%d %s", code, out)
	}
	s := h.open(l)
	expect.NoError(t, works(s, 64*mib))
	keep := must.Get(s.Alloc(ctx, 40*mib))(h.T)
	var refusal *lease.Error
	if _, err := s.Alloc(ctx, 40*mib); !errors.As(err, &refusal) || refusal.Code != lease.AllocFailed || refusal.Requested != 40*mib || refusal.Limit != 64*mib || refusal.Current != 40*mib {
		t.Errorf("80 of 64 MiB: %v", err)
	}
	if shown, err := h.Show(ctx, l.ID); err != nil || shown.Charged < keep.Size() || shown.Charged > l.VRAM+l.Overhead {
		t.Errorf("%+v, %v", shown, err)
	}
	// A lease's size excludes the context; that of a session includes it.
	if out, code := output(h.as(0, "run", "--vram", "64M", "--", "true")); code != 125 || !strings.Contains(out, "where a CUDA context alone takes ") {
		t.Errorf("a session of 64 MiB: %d %s", code, out)
	}
	expect.NoError(t, must.Err(h.Drop(ctx, h.leased(0, "--vram", "64M").ID)))
	renewed, err := h.Renew(ctx, l.ID, time.Hour)
	if err != nil || time.Until(*renewed.Expires) < 59*time.Minute {
		t.Errorf("%+v, %v", renewed, err)
	}
	begin := time.Now()
	ended, err := h.Drop(ctx, l.ID)
	took := time.Since(begin)
	if err != nil || ended.State != lease.Ended || ended.Charged != 0 {
		t.Errorf("%+v, %v", ended, err)
	}
	t.Logf("dropped in %v", took)
	h.nothingIsLeft()
	// The peak is still known after the end of the lease.
	if out, code := output(h.as(0, "recommend", l.ID[:14], "--format", "{{.Of}} {{.Suggested}} {{.Peak}}")); code != 0 || !strings.HasPrefix(out, l.ID+" 64M ") || strings.HasSuffix(out, " 0B\n") {
		t.Errorf("%d %s", code, out)
	}
	if _, err := s.Alloc(ctx, mib); !errors.As(err, &refusal) || refusal.Code != lease.Expired {
		t.Errorf("after the drop: %v", err)
	}
	if _, err := h.Renew(ctx, l.ID, time.Hour); !errors.As(err, &refusal) || refusal.Code != lease.Expired {
		t.Errorf("after the drop: %v", err)
	}
}

func (h *leaseHost) slice(id string) api.Slice {
	h.T.Helper()
	return must.Get(h.Client.Slice(context.Background(), id))(h.T)
}

// kernels has a kernel that stores a number at any address.
const kernels = `
.version 7.0
.target sm_50
.address_size 64
.visible .entry store(.param .u64 to, .param .u32 value)
{
	.reg .b64 %rd<3>;
	.reg .b32 %r<2>;
	ld.param.u64 %rd1, [to];
	ld.param.u32 %r1, [value];
	cvta.to.global.u64 %rd2, %rd1;
	st.global.u32 [%rd2], %r1;
	ret;
}
`

// brokerOf returns the pid of a lease's broker from its record, without the enforcer.
func (h *leaseHost) brokerOf(id string) int {
	h.T.Helper()
	text := must.Get(os.ReadFile(filepath.Join(h.leases(), id, "lease.json")))(h.T)
	var record struct{ PID int }
	h.Must(json.Unmarshal(text, &record))
	return record.PID
}

func (h *leaseHost) as(uid uint32, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(h.bin, "gpuslice"), args...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "GPUSLICE_LEASE_SOCKET=" + h.Service.Socket, "GPUSLICE_SOCKET=" + h.Host.Socket()}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	return cmd
}

func (h *leaseHost) leased(uid uint32, args ...string) *lease.Lease {
	h.T.Helper()
	out, code := output(h.as(uid, append([]string{"lease", "acquire", "--json"}, args...)...))
	var l lease.Lease
	if err := json.Unmarshal([]byte(out), &l); code != 0 || err != nil {
		h.T.Fatalf("%d %s", code, out)
	}
	return &l
}

func TestUserLeasesWithinOwnLimit(t *testing.T) {
	h := newLeaseHost(t)
	mine := h.leased(nobody, "--vram", "2G", "--ttl", "1h")
	roots := h.leased(0, "--vram", "60G")
	if mine.UID != nobody || roots.UID != 0 {
		t.Errorf("%+v, %+v", mine, roots)
	}
	for name, c := range map[string]struct {
		uid  uint32
		args []string
		want []string
		not  string
	}{
		"more than the operator allows": {nobody, []string{"acquire", "--vram", "2G"}, []string{"REFUSED", "sessions may have 4GiB together"}, roots.ID},
		"another user":                  {somebody, []string{"acquire", "--vram", "1G"}, []string{"REFUSED", "uid 8 may have no session"}, "lease-"},
		"a tenant":                      {nobody, []string{"acquire", "--vram", "1G", "--tenant", "rich"}, []string{"REFUSED", "accounted to tenant rich"}, ""},
		"root, more than there is":      {0, []string{"acquire", "--vram", "60G"}, []string{"REFUSED", mine.ID, roots.ID}, ""},
		"more than the card":            {0, []string{"acquire", "--vram", "100G"}, []string{"INVALID_REQUEST", "has 79.65GiB, of which", "are accepted"}, ""},
		"somebody else's lease":         {somebody, []string{"drop", mine.ID}, []string{"NOT_FOUND", "you have no lease"}, ""},
		"somebody else's, shown":        {nobody, []string{"show", roots.ID[:14]}, []string{"NOT_FOUND", "you have no lease"}, ""},
		"no size":                       {nobody, []string{"acquire"}, []string{"--vram is missing"}, ""},
		"a wrong device":                {nobody, []string{"acquire", "--vram", "1G", "--device", "9"}, []string{"INVALID_REQUEST", `no device "9"`}, ""},
		"a short time":                  {nobody, []string{"renew", mine.ID, "1ms"}, []string{"from 1s to 876000h"}, ""},
		"no time":                       {nobody, []string{"renew", mine.ID, "never"}, []string{"is no time for a lease"}, ""},
	} {
		out, code := output(h.as(c.uid, append([]string{"lease"}, c.args...)...))
		for _, want := range c.want {
			if code == 0 || !strings.Contains(out, want) || strings.Count(out, "\n") != 1 || c.not != "" && strings.Contains(out, c.not) {
				t.Errorf("%s: exit code %d, %q, which does not say %q", name, code, out, want)
			}
		}
	}
	for uid, want := range map[uint32]int{nobody: 1, somebody: 0, 0: 2} {
		var all []lease.Lease
		out, code := output(h.as(uid, "lease", "list", "--json"))
		if err := json.Unmarshal([]byte(out), &all); err != nil || code != 0 || len(all) != want {
			t.Errorf("uid %d: %d %s", uid, code, out)
		}
	}
	if out, code := output(h.as(0, "lease", "list")); code != 0 || !strings.Contains(out, mine.ID) || !strings.Contains(out, "2GiB") {
		t.Errorf("%d %s", code, out)
	}
	// Only the user may read the token.
	for uid, may := range map[uint32]bool{nobody: true, somebody: false} {
		cat := exec.Command("cat", mine.TokenFile)
		cat.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		if _, code := output(cat); (code == 0) != may {
			t.Errorf("uid %d reads the token: %v", uid, code == 0)
		}
	}
	users := h.as(nobody, "--socket", filepath.Join(h.Dir, "run", "session.sock"), "ps")
	if out, code := output(users); code != 0 || !strings.Contains(out, mine.ID) || strings.Contains(out, roots.ID) {
		t.Errorf("%d %s", code, out)
	}
	if out, code := output(h.as(nobody, "lease", "renew", mine.ID[:14], "2h")); code != 0 || !strings.Contains(out, "in 1h59m") && !strings.Contains(out, "in 2h") {
		t.Errorf("%d %s", code, out)
	}
	if out, code := output(h.as(nobody, "lease", "drop", mine.ID[:14])); code != 0 || out != "" {
		t.Errorf("%d %s", code, out)
	}
	if out, code := output(h.as(nobody, "lease", "show", mine.ID[:14])); code != 0 || !strings.Contains(out, `"it was dropped"`) {
		t.Errorf("%d %s", code, out)
	}
	if out, code := output(h.as(0, "lease", "drop", roots.ID[:14])); code != 0 || out != "" {
		t.Errorf("%d %s", code, out)
	}
	h.nothingIsLeft()
}

func TestAReservedLeaseHoldsItsMemoryFromTheBeginning(t *testing.T) {
	h := newLeaseHost(t)
	l := h.acquire(lease.Request{VRAM: gib, Reserve: true})
	if !l.Reserved || l.Charged < gib || l.Charged > l.VRAM+l.Overhead {
		t.Errorf("%+v", l)
	}
	s := h.open(l)
	expect.NoError(t, works(s, gib))
	expect.True(t, must.Get(h.Show(context.Background(), l.ID))(t).Charged >= gib, "the lease released its reserved memory")
	// The slice keeps the memory until the next broker takes it.
	h.Must(syscall.Kill(h.brokerOf(l.ID), syscall.SIGKILL))
	if err := works(s, 24); err == nil {
		t.Log("it wrote before its broker was dead, or to the next one")
	}
	h.Eventually("another broker has taken it", func() bool {
		shown, err := h.Show(context.Background(), l.ID)
		return err == nil && shown.Restarts == 1 && shown.Charged >= gib
	})
	expect.NoError(t, works(s, gib))
}
