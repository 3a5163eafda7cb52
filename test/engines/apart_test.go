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

	"github.com/gpuslice/gpuslice/test/must"
)

// apart is a mount namespace with only cgroup v2, as on a current host; crun refuses to run where v1 is mounted too. Controllers
// that the host's v1 hierarchies use are missing. Mounts made there are invisible to the test and end with the namespace.
type apart struct{ pid int } // of the process that keeps the namespace

// Writes below /etc, /usr/share and /var/lib stay in the namespace, so Podman can use the default paths of its configuration.
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

func newApart(t testing.TB) *apart {
	t.Helper()
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-euc", prepareApart)
	stdin := must.Get(cmd.StdinPipe())(t)
	stdout := must.Get(cmd.StdoutPipe())(t)
	cmd.Stderr = os.Stderr
	must.Do(t, cmd.Start())
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	must.Equal(t, must.Get(bufio.NewReader(stdout).ReadString('\n'))(t), "ready\n", "a mount namespace with cgroup v2")
	return &apart{cmd.Process.Pid}
}

func (a *apart) enter() []string {
	return []string{"nsenter", "--target", strconv.Itoa(a.pid), "--mount", "--"}
}

// mountinfo returns the path of the namespace's mountinfo, or of the test's own if a is nil.
func (a *apart) mountinfo() string {
	if a == nil {
		return "/proc/self/mountinfo"
	}
	return fmt.Sprintf("/proc/%d/mountinfo", a.pid)
}

func (a *apart) has(pid string) bool {
	if a == nil {
		return false
	}
	namespace, err := os.Readlink("/proc/" + pid + "/ns/mnt")
	ours, ourErr := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", a.pid))
	return err == nil && ourErr == nil && namespace == ours
}

// isolatedRuntime returns the path of a wrapper for a low-level runtime of the cache. The wrapper keeps the runtime's state in its own
// directory unless a flag names another: Podman passes no such flag. It also drops the need for CAP_SYS_RESOURCE: crun asks for
// unlimited locked memory, which kernels since 5.11 do not need to load its device program.
func isolatedRuntime(t testing.TB, parts ...string) string {
	t.Helper()
	dir := t.TempDir()
	library, path := filepath.Join(dir, "memlock.so"), filepath.Join(dir, parts[len(parts)-1])
	must.Output(exec.Command("cc", "-std=gnu11", "-O1", "-Wall", "-shared", "-fPIC", "-o", library, "programs/memlock.c").CombinedOutput())(t)
	script := fmt.Sprintf("#!/bin/sh\nLD_PRELOAD=%s exec %s --root \"${0%%/*}/state\" \"$@\"\n", library, tool(t, parts...))
	must.Do(t, os.WriteFile(path, []byte(script), 0o755))
	return path
}
