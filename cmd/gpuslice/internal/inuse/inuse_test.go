// SPDX-License-Identifier: Apache-2.0

package inuse

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func TestEachUserOfTheProgramsIsNamedWithTheCommandThatEndsIt(t *testing.T) {
	root := t.TempDir()
	h := Host{Proc: filepath.Join(root, "proc"), RunDir: filepath.Join(root, "run"), StateDir: filepath.Join(root, "state")}
	write := func(text string, name ...string) {
		t.Helper()
		file := filepath.Join(name...)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	full := strings.Repeat("0123456789ab", 6)[:64]
	for i, c := range []struct{ cgroup, file, want string }{
		{"0::/docker/" + full, "mountinfo", "Docker's container 0123456789ab: docker rm -f 0123456789ab"},
		{"0::/system.slice/docker-" + full + ".scope", "mountinfo", "Docker's container 0123456789ab: docker rm -f 0123456789ab"},
		{"0::/machine.slice/libpod-" + full + ".scope/container", "mountinfo", "Podman's container 0123456789ab: podman rm -f 0123456789ab"},
		{"12:pids:/kubepods/besteffort/pod1-2/" + full, "mountinfo", "Kubernetes's container 0123456789ab: crictl rm -f 0123456789ab"},
		{"0::/kubepods.slice/a.slice/cri-containerd-" + full + ".scope", "mountinfo", "Kubernetes's container 0123456789ab: crictl rm -f 0123456789ab"},
		{"0::/default/" + full, "mountinfo", "containerd's container 0123456789ab: nerdctl rm -f 0123456789ab"},
		{"0::/mine", "mountinfo", "a container in cgroup /mine: kill -9 16"},
		{"0::/gpuslice-leases/lease-1", "environ", "lease lease-1: gpuslice lease drop lease-1"},
		{"0::/user.slice", "environ", "a session of gpuslice run: kill 18"},
	} {
		pid, dir := strconv.Itoa(10+i), "aa-"+strconv.Itoa(1+i)
		if err := os.MkdirAll(filepath.Join(h.RunDir, "slices", dir), 0o755); err != nil {
			t.Fatal(err)
		}
		write("X=/run/slices/"+dir+"/bind\n", h.Proc, pid, c.file)
		write("X=/run/slices/"+dir+"/bind\n", h.Proc, "1"+pid, c.file) // another process of the same slice
		write(c.cgroup+"\n", h.Proc, pid, "cgroup")
		write("python\n", h.Proc, pid, "comm")
		uses, err := h.Slices()
		if err != nil || len(uses) != i+1 {
			t.Fatalf("%v, %+v", err, uses)
		}
		if got := uses[i].What + ": " + uses[i].End; got != c.want || uses[i].PID != 10+i || uses[i].Command != "python" || uses[i].Left == "" {
			t.Errorf("got %+v, want %s", uses[i], c.want)
		}
	}
	if err := os.MkdirAll(filepath.Join(h.RunDir, "slices", "aa-1234"), 0o755); err != nil {
		t.Fatal(err)
	}
	write("/run/slices/aa-12345\n", h.Proc, "90", "maps") // a slice that does not exist
	if uses, err := h.Slices(); err != nil || len(uses) != 9 {
		t.Errorf("%v, %+v", err, uses)
	}
	if uses := h.Daemon(); uses != nil {
		t.Errorf("%+v", uses)
	}
	write("99\n", h.StateDir, "lock")
	write("gpusliced\n", h.Proc, "99", "comm")
	if uses := h.Daemon(); len(uses) != 1 || uses[0].PID != 99 || uses[0].End != "kill 99" {
		t.Errorf("%+v", uses)
	}
	write("bash\n", h.Proc, "99", "comm") // the daemon has ended, and its pid was reused
	if uses := h.Daemon(); uses != nil {
		t.Errorf("%+v", uses)
	}
}
