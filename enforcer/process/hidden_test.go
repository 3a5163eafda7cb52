// SPDX-License-Identifier: Apache-2.0

package process

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/needs"
)

// nobody is an unprivileged user. Tests that run as root start programs as nobody.
const nobody = 65534

// notDumpable starts a program, as the caller or as nobody, that the kernel makes non-dumpable since its user may not read it.
func notDumpable(t *testing.T, flags uintptr) *exec.Cmd {
	t.Helper()
	dir := must.Get(os.MkdirTemp("", "gs-"))(t) // only the caller may enter the directory above t.TempDir
	t.Cleanup(func() { os.RemoveAll(dir) })
	must.Do(t, os.Chmod(dir, 0o755))
	path := must.Get(exec.LookPath("cat"))(t)
	text := must.Get(os.ReadFile(path))(t)
	program := filepath.Join(dir, "cat")
	must.Do(t, os.WriteFile(program, text, 0o111))
	cmd := exec.Command(program)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
	if os.Getuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
	in := must.Get(cmd.StdinPipe())(t)
	out := must.Get(cmd.StdoutPipe())(t)
	must.Do(t, cmd.Start())
	t.Cleanup(func() { end(cmd) })
	// An answer shows that the execve is over.
	must.Get(in.Write([]byte{1}))(t)
	must.Get(io.ReadFull(out, make([]byte, 1)))(t)
	return cmd
}

// asNobody calls before, and then f as nobody if the caller is root, in a thread of its own. The thread ends with f.
func asNobody(t *testing.T, before func() error, f func() error) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread ends with this function
		done <- func() error {
			if err := before(); err != nil {
				return err
			}
			if os.Getuid() == 0 {
				// Use raw system calls: package syscall changes all threads.
				if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); errno != 0 {
					return errno
				}
				if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, nobody, nobody, nobody); errno != 0 {
					return errno
				}
				if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); errno != 0 {
					return errno
				}
			}
			return f()
		}()
	}()
	expect.NoError(t, <-done)
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0); err != nil { // the change of user cleared it for this process
		t.Fatal(err)
	}
}

func TestAUserIdentifiesTheirProcessesThatAreNotDumpable(t *testing.T) {
	plain := notDumpable(t, 0).Process.Pid
	own := must.Get(PIDNamespace())(t)
	asNobody(t, func() error { return nil }, func() error {
		expect.ErrorIs(t, must.Err(os.Stat("/proc/"+strconv.Itoa(plain)+"/ns/pid")), os.ErrPermission, "the kernel does not hide the process's namespace")
		h, err := Open(plain)
		if err != nil {
			return err
		}
		defer h.Close()
		if h.PID != plain || h.NSPID != plain || h.PIDNS != own || h.Start == 0 {
			t.Errorf("%+v", h.Identity)
		}
		expect.True(t, Ancestor(plain, os.Getpid()) && !Ancestor(os.Getpid(), plain), "the process's ancestors are not found")
		return nil
	})
}

func TestAnUnreadableNamespaceEqualsNoOther(t *testing.T) {
	needs.Root(t)
	one, other := notDumpable(t, unix.CLONE_NEWPID).Process.Pid, notDumpable(t, unix.CLONE_NEWPID).Process.Pid
	asNobody(t, func() error { return nil }, func() error {
		namespaces := make(map[uint64]bool)
		for _, pid := range []int{one, other} {
			h, err := Open(pid)
			if err != nil {
				return err
			}
			defer h.Close()
			if h.PIDNS&Unreadable == 0 || h.NSPID != 1 {
				t.Errorf("%+v", h.Identity)
			}
			namespaces[h.PIDNS] = true
		}
		expect.Equal(t, len(namespaces), 2, "two namespaces are taken for one")
		return nil
	})
}

func TestProcessHiddenByProcIsNotDead(t *testing.T) {
	needs.Root(t)
	pid := notDumpable(t, 0).Process.Pid
	for _, level := range []string{"hidepid=1", "hidepid=2"} {
		asNobody(t, func() error {
			return errors.Join(unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
				unix.Mount("proc", "/proc", "proc", 0, level))
		}, func() error {
			if _, err := Open(pid); !errors.Is(err, ErrHidden) || errors.Is(err, ErrDead) {
				t.Errorf("%s: %v", level, err)
			}
			return nil
		})
	}
}
