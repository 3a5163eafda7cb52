//go:build cluster

// SPDX-License-Identifier: Apache-2.0

package test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/test/testhost"
)

// The suite runs as three processes of one program. The first creates the namespaces and stays outside. The second is their init:
// when it ends, the kernel kills all processes there and removes mounts and interfaces. The third runs the tests.
const (
	roleVariable = "GPUSLICE_CLUSTER_ROLE"
	roleInit     = "init"
	roleTest     = "test"
	dirVariable  = "GPUSLICE_CLUSTER_DIR"
)

// dirPrefix begins the directory of a suite's files; the first process's ID follows. Its last element also names the pods'
// cgroup.
const dirPrefix = "/tmp/gpuslice-cluster-"

// Addresses of the node on the loopback interface: its own, which must not be one of a loopback network for the kubelet, and that
// of the API server's service.
const (
	nodeAddress    = "192.0.2.1"
	serviceAddress = "10.96.0.1"
	apiAddress     = serviceAddress + ":443"
)

func TestMain(m *testing.M) {
	var status int
	var err error
	switch os.Getenv(roleVariable) {
	case roleTest:
		status = m.Run()
	case roleInit:
		status, err = beInit()
	default:
		if os.Getuid() != 0 {
			fmt.Println("skipped: needs root, for namespaces and containers")
			return
		}
		status, err = enclose()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		status = 1
	}
	os.Exit(status)
}

// enclose runs the suite in new namespaces and removes its remains outside of them.
func enclose() (status int, err error) {
	old, err := filepath.Glob(dirPrefix + "*")
	if err != nil {
		return 0, err
	}
	for _, dir := range old { // of a killed suite
		if pid, err := strconv.Atoi(strings.TrimPrefix(dir, dirPrefix)); err == nil && errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			if err := sweep(dir); err != nil {
				return 0, err
			}
		}
	}
	dir := dirPrefix + strconv.Itoa(os.Getpid())
	if err := os.MkdirAll(filepath.Join(dir, "tmp"), 0o755); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, sweep(dir)) }()
	if err := makeCgroups(filepath.Base(dir)); err != nil {
		return 0, err
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), roleVariable+"="+roleInit, dirVariable+"="+dir)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET,
		Pdeathsig:  unix.SIGKILL,
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	go func() {
		<-signals
		_ = cmd.Process.Kill()
	}()
	err = cmd.Wait()
	if ended := (*exec.ExitError)(nil); errors.As(err, &ended) {
		return max(ended.ExitCode(), 1), nil
	}
	return 0, err
}

// beInit prepares the namespaces, starts the tests, and reaps orphaned processes.
func beInit() (int, error) {
	if err := prepare(os.Getenv(dirVariable)); err != nil {
		return 0, err
	}
	if err := os.Setenv(roleVariable, roleTest); err != nil {
		return 0, err
	}
	tests, err := os.StartProcess("/proc/self/exe", os.Args, &os.ProcAttr{Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}})
	if err != nil {
		return 0, err
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, err
		case pid == tests.Pid && status.Signaled():
			return 0, fmt.Errorf("the tests ended by %v", status.Signal())
		case pid == tests.Pid:
			return status.ExitStatus(), nil
		}
	}
}

// prepare makes the namespaces a separate host: /etc, /opt, /run, /tmp and /var are private, and the kernel settings that the
// kubelet changes are files.
func prepare(dir string) error {
	mount := func(source, target, kind string, flags uintptr, data string) error {
		if err := unix.Mount(source, target, kind, flags, data); err != nil {
			return fmt.Errorf("mount %s on %s: %w", kind, target, err)
		}
		return nil
	}
	all := []error{
		mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""), // as with systemd, so that pods with a host path see later mounts
		mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""),
		mount("none", "/mnt", "tmpfs", 0, ""),
		os.Mkdir("/mnt/proc", 0o755),
		mount("proc", "/mnt/proc", "proc", 0, ""), // without the files below: the kernel demands one for pods with user namespaces
		mount("none", "/run", "tmpfs", 0, "mode=755"),
	}
	for _, at := range []string{"/etc", "/opt", "/var"} {
		all = append(all, overlayOn(mount, at, at))
	}
	// Pods with user namespaces need volumes on a file system with mapped mounts, unlike an overlay.
	all = append(all, os.MkdirAll("/var/lib/kubelet", 0o755), mount("none", "/var/lib/kubelet", "tmpfs", 0, "mode=755"))
	all = append(all, devices(mount))
	for name, value := range map[string]string{"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1"} {
		file := "/mnt/" + strings.ReplaceAll(name, "/", "_")
		all = append(all, os.WriteFile(file, []byte(value+"\n"), 0o644), mount(file, "/proc/sys/"+name, "", unix.MS_BIND, ""))
	}
	all = append(all, network())
	wd, err := os.Getwd()
	if err != nil {
		return errors.Join(append(all, err)...)
	}
	for _, needed := range []string{wd, os.Getenv("HOME"), os.Getenv("XDG_CACHE_HOME"), os.Getenv("GPUSLICE_ENGINES")} {
		if strings.HasPrefix(needed, "/tmp/") { // needed below /tmp, so /tmp is not replaced
			return errors.Join(all...)
		}
	}
	return errors.Join(append(all, mount(filepath.Join(dir, "tmp"), "/tmp", "", unix.MS_BIND, ""), os.Chmod("/tmp", 0o1777))...)
}

type mounter func(source, target, kind string, flags uintptr, data string) error

// overlayOn mounts a directory at target. Its writes stay in memory.
func overlayOn(mount mounter, directory, target string) error {
	upper, work := "/mnt/upper"+directory, "/mnt/work"+directory
	return errors.Join(os.MkdirAll(upper, 0o755), os.MkdirAll(work, 0o755),
		mount("overlay", target, "overlay", 0, "lowerdir="+directory+",upperdir="+upper+",workdir="+work))
}

// devices makes /dev private, so that the simulated cards' nodes can be in it.
func devices(mount mounter) error {
	const merged = "/mnt/dev"
	all := []error{os.MkdirAll(merged, 0o755), overlayOn(mount, "/dev", merged)}
	for _, name := range []string{"/pts", "/shm"} {
		all = append(all, mount("/dev"+name, merged+name, "", unix.MS_BIND, ""))
	}
	return errors.Join(append(all, mount(merged, "/dev", "", unix.MS_BIND|unix.MS_REC, ""))...)
}

// network configures the loopback interface, the only one.
func network() error {
	for _, words := range []string{"link set lo up", "address add " + nodeAddress + "/32 dev lo", "address add " + serviceAddress + "/32 dev lo"} {
		if out, err := exec.Command("ip", strings.Fields(words)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", words, err, out)
		}
	}
	return nil
}

// hierarchies returns the roots of cgroup version 2, or else of version 1.
func hierarchies() (roots []string) {
	for _, pattern := range []string{"/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/*/cgroup.procs"} {
		files, _ := filepath.Glob(pattern)
		for _, file := range files {
			roots = append(roots, filepath.Dir(file))
		}
		if len(roots) > 0 {
			break
		}
	}
	return roots
}

func makeCgroups(name string) error {
	for _, root := range hierarchies() {
		dir := filepath.Join(root, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} { // empty in version 1, so that no process can run
			text, err := os.ReadFile(filepath.Join(root, file))
			if err != nil || len(strings.TrimSpace(string(text))) == 0 {
				continue
			}
			if err := os.WriteFile(filepath.Join(dir, file), text, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// sweep removes the directory and the cgroups of a suite that has ended.
func sweep(dir string) error {
	for _, root := range hierarchies() {
		var all []string
		_ = filepath.WalkDir(filepath.Join(root, filepath.Base(dir)), func(path string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				all = append(all, path)
			}
			return nil
		})
		for i := len(all) - 1; i >= 0; i-- {
			if err := removeCgroup(all[i]); err != nil {
				return err
			}
		}
	}
	return os.RemoveAll(dir)
}

// removeCgroup removes a cgroup. It retries while killed processes remain.
func removeCgroup(dir string) error {
	for deadline := time.Now().Add(testhost.Patience); ; time.Sleep(20 * time.Millisecond) {
		err := os.Remove(dir)
		if err == nil || errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if time.Now().After(deadline) {
			return err
		}
	}
}
