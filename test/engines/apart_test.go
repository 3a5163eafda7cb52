//go:build engines

// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
)

// apart is a mount namespace in which engines find a host of today: cgroup v2 and nothing else. (It has no controllers where
// the host's v1 hierarchies have taken them.) crun refuses to run where both are mounted. What is mounted there the test does
// not see, and it is gone with the namespace.
type apart struct{ pid int } // of a process that keeps it

// What is written there below /etc, /usr/share and /var/lib stays there: Podman's configuration is where users have it.
const prepareApart = `
if ! [ -e /sys/fs/cgroup/cgroup.procs ]; then
	umount -R /sys/fs/cgroup
	mount -t cgroup2 none /sys/fs/cgroup
fi
mount -t tmpfs none /mnt
for dir in /etc /usr/share /var/lib; do
	mkdir -p /mnt/upper$dir /mnt/work$dir
	mount -t overlay -o lowerdir=$dir,upperdir=/mnt/upper$dir,workdir=/mnt/work$dir overlay $dir
done
echo ready
exec cat
`

// newApart makes one, which ends with the test, or its process.
func newApart(t testing.TB) *apart {
	t.Helper()
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-euc", prepareApart)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
		t.Fatalf("a mount namespace with cgroup v2: %q, %v", line, err)
	}
	return &apart{cmd.Process.Pid}
}

// enter are the words that start a command there.
func (a *apart) enter() []string {
	return []string{"nsenter", "--target", strconv.Itoa(a.pid), "--mount", "--"}
}

// mountinfo has the mounts there; those of the test, if a is nil.
func (a *apart) mountinfo() string {
	if a == nil {
		return "/proc/self/mountinfo"
	}
	return fmt.Sprintf("/proc/%d/mountinfo", a.pid)
}

// has says whether a process is there.
func (a *apart) has(pid string) bool {
	if a == nil {
		return false
	}
	its, err := os.Readlink("/proc/" + pid + "/ns/mnt")
	ours, ourErr := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", a.pid))
	return err == nil && ourErr == nil && its == ours
}

// alone is the path of a low-level runtime of the cache that runs where engines' tests do. Its state is beside it, unless a flag
// says where: Podman passes on no such flag. And it needs no CAP_SYS_RESOURCE: crun asks for unlimited locked memory, of which
// kernels since 5.11 need nothing to load its program for devices.
func alone(t testing.TB, parts ...string) string {
	t.Helper()
	dir := t.TempDir()
	library, path := filepath.Join(dir, "memlock.so"), filepath.Join(dir, parts[len(parts)-1])
	out, err := exec.Command("cc", "-std=gnu11", "-O1", "-Wall", "-shared", "-fPIC", "-o", library, "programs/memlock.c").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	script := fmt.Sprintf("#!/bin/sh\nLD_PRELOAD=%s exec %s --root \"${0%%/*}/state\" \"$@\"\n", library, tool(t, parts...))
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}
