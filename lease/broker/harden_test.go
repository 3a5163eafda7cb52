// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// closed lists the calls that a hardened process must not be able to make. It repeats Harden's list, to detect a missing
// entry.
var closed = map[string]uintptr{
	"execve": unix.SYS_EXECVE, "execveat": unix.SYS_EXECVEAT, "ptrace": unix.SYS_PTRACE, "process_vm_readv": unix.SYS_PROCESS_VM_READV,
	"process_vm_writev": unix.SYS_PROCESS_VM_WRITEV, "pidfd_getfd": unix.SYS_PIDFD_GETFD, "unshare": unix.SYS_UNSHARE, "setns": unix.SYS_SETNS,
	"chroot": unix.SYS_CHROOT, "pivot_root": unix.SYS_PIVOT_ROOT, "mount": unix.SYS_MOUNT, "umount2": unix.SYS_UMOUNT2,
	"open_tree": unix.SYS_OPEN_TREE, "move_mount": unix.SYS_MOVE_MOUNT, "fsopen": unix.SYS_FSOPEN, "fsconfig": unix.SYS_FSCONFIG,
	"fsmount": unix.SYS_FSMOUNT, "fspick": unix.SYS_FSPICK, "mount_setattr": unix.SYS_MOUNT_SETATTR, "setuid": unix.SYS_SETUID,
	"setgid": unix.SYS_SETGID, "setreuid": unix.SYS_SETREUID, "setregid": unix.SYS_SETREGID, "setresuid": unix.SYS_SETRESUID,
	"setresgid": unix.SYS_SETRESGID, "setfsuid": unix.SYS_SETFSUID, "setfsgid": unix.SYS_SETFSGID, "setgroups": unix.SYS_SETGROUPS,
	"capset": unix.SYS_CAPSET, "bpf": unix.SYS_BPF, "perf_event_open": unix.SYS_PERF_EVENT_OPEN, "userfaultfd": unix.SYS_USERFAULTFD,
	"keyctl": unix.SYS_KEYCTL, "add_key": unix.SYS_ADD_KEY, "request_key": unix.SYS_REQUEST_KEY, "io_uring_setup": unix.SYS_IO_URING_SETUP,
	"io_uring_enter": unix.SYS_IO_URING_ENTER, "io_uring_register": unix.SYS_IO_URING_REGISTER, "fanotify_init": unix.SYS_FANOTIFY_INIT,
	"name_to_handle_at": unix.SYS_NAME_TO_HANDLE_AT, "open_by_handle_at": unix.SYS_OPEN_BY_HANDLE_AT, "personality": unix.SYS_PERSONALITY,
	"kexec_load": unix.SYS_KEXEC_LOAD, "kexec_file_load": unix.SYS_KEXEC_FILE_LOAD, "init_module": unix.SYS_INIT_MODULE,
	"finit_module": unix.SYS_FINIT_MODULE, "delete_module": unix.SYS_DELETE_MODULE,
}

const hardenedEnv = "GPUSLICE_TEST_HARDENED"

func TestAHardenedProcessCannotReachAnother(t *testing.T) {
	if os.Getenv(hardenedEnv) == "" {
		child := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		child.Env = append(os.Environ(), hardenedEnv+"=1")
		output, err := child.CombinedOutput()
		if err != nil || !strings.Contains(string(output), "hardened\n") {
			t.Errorf("%v: %s", err, output)
		}
		return
	}
	const invalid = ^uintptr(0) // every call fails with it, or changes nothing
	if err := Harden(); err != nil {
		t.Fatal(err)
	}
	for name, call := range closed {
		if _, _, errno := unix.Syscall6(call, invalid, invalid, invalid, invalid, invalid, invalid); errno != unix.EPERM {
			t.Errorf("%s is open: %v", name, errno)
		}
	}
	if dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); dumpable != 0 || err != nil {
		t.Errorf("others may read its memory: %d, %v", dumpable, err)
	}
	if locked, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); locked != 1 || err != nil {
		t.Errorf("it may gain privileges: %d, %v", locked, err)
	}
	var core unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &core); err != nil || core != (unix.Rlimit{}) {
		t.Errorf("it may dump core: %+v, %v", core, err)
	}
	fmt.Println("hardened")
}
