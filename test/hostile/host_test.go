//go:build hostile

// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/testhost"
)

const (
	mib = uint64(1) << 20
	gib = uint64(1) << 30

	contextBytes = 64 * mib

	hostileUser  = 8 // with a limit; every host has this user
	strangerUser = 2 // without a limit
	neighbour    = 3 // without a limit
	subordinates = 200000
)

// host is a private enforcer with simulated cards, configured to let users have sessions.
type host struct {
	*testhost.Host
	pid     int    // the enforcer's
	metrics string // its address
	secret  string // part of the names of the operator's slices
	lasts   time.Duration
	cgroups []string
	cards   []string // environment: what the simulated cards are
}

// newHost starts an enforcer with these sections of its configuration. cards is environment of the simulated driver.
func newHost(t *testing.T, sections string, cards ...string) *host {
	runc := must.Get(exec.LookPath("runc"))(t, "it needs runc: make deps")
	free := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	metrics := free.Addr().String()
	free.Close()
	cards = append(cards, fmt.Sprint("FAKECUDA_CONTEXT=", contextBytes))
	h := &host{Host: testhost.New(t, testhost.Options{Runtimes: []string{runc}, Env: cards, Enforcer: fmt.Sprintf("metrics_address = %q\n", metrics)}),
		metrics: metrics, secret: fmt.Sprintf("secret%x", time.Now().UnixNano()), lasts: *duration, cards: cards}
	// The paths of the sockets and the file are known only now.
	h.Stop(unix.SIGTERM)
	// In memory, like /run. run.sh gives the test its own mount namespace.
	h.Must(unix.Mount("tmpfs", filepath.Join(h.Dir, "run"), "tmpfs", 0, "mode=755"))
	t.Cleanup(func() { _ = unix.Unmount(filepath.Join(h.Dir, "run"), unix.MNT_DETACH) })
	file, err := os.OpenFile(h.Config(), os.O_APPEND|os.O_WRONLY, 0)
	h.Must(err)
	_, err = fmt.Fprintf(file, "\n[audit]\nfile = %q\nmax_size = \"1MiB\"\nkeep = 8\n[sessions]\nsocket = %q\n[[sessions.limits]]\nuser = \"%d\"\nmax_vram = \"2G\"\nmax_sessions = 4\n%s",
		h.audit(), h.users(), hostileUser, sections)
	h.Must(errors.Join(err, file.Close()))
	h.Start()
	info := must.Get(h.Client.Info(context.Background()))(h.T)
	h.pid = info.PID
	t.Cleanup(h.clear)
	h.Must(errors.Join(os.Chmod(h.Dir, 0o755), os.Chmod(h.programs(), 0o755), os.Chmod(filepath.Join(h.Dir, "fake"), 0o777)))
	return h
}

func (h *host) audit() string    { return filepath.Join(h.Dir, "audit.jsonl") }
func (h *host) users() string    { return filepath.Join(h.Dir, "run", "session.sock") }
func (h *host) programs() string { return programs }

type container struct {
	*host
	id, bundle string
}

var capabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID", "CAP_SETUID", "CAP_SETFCAP",
	"CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE",
}

// newContainer writes a bundle with a private, writable root file system.
func (h *host) newContainer(name, vram string, env []string, args ...string) *container {
	h.T.Helper()
	c := &container{host: h, id: fmt.Sprintf("%s-%d", name, time.Now().UnixNano())}
	c.bundle = filepath.Join(h.Dir, c.id)
	rootfs := filepath.Join(c.bundle, "rootfs")
	for _, name := range []string{"proc", "dev", "etc", "tmp", "usr", "programs", "fakecuda", "fake"} {
		h.Must(os.MkdirAll(filepath.Join(rootfs, name), 0o755))
	}
	type mount struct {
		Destination string   `json:"destination"`
		Source      string   `json:"source"`
		Type        string   `json:"type"`
		Options     []string `json:"options"`
	}
	bind := func(from, to, mode string) mount { return mount{to, from, "bind", []string{"rbind", mode}} }
	mounts := []mount{
		{"/proc", "proc", "proc", []string{}},
		{"/dev", "tmpfs", "tmpfs", []string{"nosuid", "mode=755"}},
		bind("/usr", "/usr", "ro"),
		bind(h.programs(), "/programs", "ro"),
		bind(filepath.Join(h.Bin, "fakecuda"), "/fakecuda", "ro"),
		bind(filepath.Join(h.Dir, "fake"), "/fake", "rw"),
	}
	for _, name := range must.Get(testhost.TopDirs("/", rootfs))(h.T) {
		mounts = append(mounts, bind(name, name, "ro"))
	}
	type object = map[string]any
	config, err := json.Marshal(object{
		"ociVersion": "1.0.2",
		"process": object{
			"user": object{"uid": 0, "gid": 0}, "cwd": "/", "args": args,
			"env":          append([]string{"PATH=/usr/bin:/bin", "LD_LIBRARY_PATH=/fakecuda", "FAKECUDA_STATE=/fake/state", fmt.Sprint("FAKECUDA_CONTEXT=", contextBytes)}, env...),
			"capabilities": object{"bounding": capabilities, "effective": capabilities, "permitted": capabilities},
		},
		"root":        object{"path": "rootfs"},
		"annotations": map[string]string{"gpuslice.vram": vram},
		"mounts":      mounts,
		"linux": object{
			"namespaces": []object{{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}, {"type": "network"}},
			"resources": object{
				"devices": []object{{"allow": true, "access": "rwm"}},
				"cpu":     object{"quota": cpuPercent * 1000, "period": 100000},
				"pids":    object{"limit": maxProcesses},
				"memory":  object{"limit": 1 << 30},
			},
		},
	})
	h.Must(err)
	h.Must(os.WriteFile(filepath.Join(c.bundle, "config.json"), config, 0o644))
	h.T.Cleanup(func() { _ = c.runtime("delete", "--force", c.id).Run() })
	return c
}

func (c *container) runtime(args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(c.Bin, "gpuslice-runtime"), append([]string{"--root", filepath.Join(c.Dir, "runc")}, args...)...)
	cmd.Env = c.Env()
	return cmd
}

func (c *container) run() *exec.Cmd { return c.runtime("run", "--bundle", c.bundle, c.id) }

func (c *container) pid1() int {
	c.T.Helper()
	out := must.Get(c.runtime("state", c.id).Output())(c.T)
	var state struct{ Pid int }
	c.Must(json.Unmarshal(out, &state))
	return state.Pid
}

// Limits of each hostile actor, as on any shared host.
const (
	cpuPercent   = 30 // of one core
	maxProcesses = 200
)

// newCgroup creates a cgroup with these limits. It returns the files that take the pid of a process to move.
func (h *host) newCgroup(name string) (procs []string) {
	h.T.Helper()
	name = fmt.Sprintf("%s-%d", name, time.Now().UnixNano())
	limits := []struct{ controller, v1, v1Value, v2, v2Value string }{
		{"cpu", "cpu.cfs_quota_us", fmt.Sprint(cpuPercent * 1000), "cpu.max", fmt.Sprint(cpuPercent*1000, " 100000")},
		{"pids", "pids.max", fmt.Sprint(maxProcesses), "pids.max", fmt.Sprint(maxProcesses)},
	}
	_, err := os.Stat("/sys/fs/cgroup/cgroup.controllers")
	for i, l := range limits {
		dir, file, value := filepath.Join("/sys/fs/cgroup", l.controller, name), l.v1, l.v1Value
		if err == nil {
			dir, file, value = filepath.Join("/sys/fs/cgroup", name), l.v2, l.v2Value
			h.Must(os.WriteFile("/sys/fs/cgroup/cgroup.subtree_control", []byte("+"+l.controller), 0))
		}
		if err != nil || i == 0 {
			h.Must(os.Mkdir(dir, 0o755))
			h.cgroups = append(h.cgroups, dir)
			procs = append(procs, filepath.Join(dir, "cgroup.procs"))
		}
		h.Must(os.WriteFile(filepath.Join(dir, file), []byte(value), 0))
	}
	return procs
}

func (h *host) clear() {
	for _, dir := range h.cgroups {
		for range 500 {
			text, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
			for pid := range strings.FieldsSeq(string(text)) {
				if n, err := strconv.Atoi(pid); err == nil {
					_ = unix.Kill(n, unix.SIGKILL)
				}
			}
			if err := os.Remove(dir); err == nil || errors.Is(err, os.ErrNotExist) {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

type actor struct {
	as   string
	cmd  *exec.Cmd
	said testhost.Output
}

func (h *host) environment(as string, v victims) []string {
	text := must.Get(json.Marshal(v))(h.T)
	return []string{asEnv + "=" + as, forEnv + "=" + h.lasts.String(), victimsEnv + "=" + string(text)}
}

func (h *host) asUser(as string, uid int, v victims) *actor {
	h.T.Helper()
	a := &actor{as: as}
	words := []string{filepath.Join(h.programs(), "hostile")}
	if as == "subordinate" {
		words = append([]string{filepath.Join(h.programs(), "become")}, words...)
	}
	script := ""
	for _, procs := range h.newCgroup(as) {
		script += "echo $$ >" + procs + " && "
	}
	script += fmt.Sprintf("exec setpriv --reuid=%d --regid=%d --clear-groups \"$@\"", uid, uid)
	a.cmd = exec.Command("/bin/sh", append([]string{"-c", script, "sh"}, words...)...)
	a.cmd.Env = append([]string{"PATH=/usr/bin:/bin", "LD_LIBRARY_PATH=" + filepath.Join(h.Bin, "fakecuda"),
		"FAKECUDA_STATE=" + filepath.Join(h.Dir, "fake", "state")}, append(h.environment(as, v), h.cards...)...)
	a.cmd.Dir = "/"
	a.cmd.Stdout, a.cmd.Stderr = &a.said, &a.said
	in := must.Get(a.cmd.StdinPipe())(h.T)
	h.Must(a.cmd.Start())
	if as == "subordinate" {
		h.Eventually("it has a user namespace", func() bool { return a.said.String() == "unshared\n" })
		for _, file := range []string{"uid_map", "gid_map"} {
			h.Must(os.WriteFile(fmt.Sprintf("/proc/%d/%s", a.cmd.Process.Pid, file), fmt.Appendf(nil, "0 %d 1000", subordinates), 0))
		}
		_, err := in.Write([]byte("\n"))
		h.Must(err)
	}
	return a
}

func (h *host) inContainer(v victims) *actor {
	h.T.Helper()
	c := h.newContainer("hostile", "2G", h.environment("container", v), "/programs/hostile")
	a := &actor{as: "container", cmd: c.run()}
	a.cmd.Stdout, a.cmd.Stderr = &a.said, &a.said
	h.Must(a.cmd.Start())
	return a
}

func (h *host) begin(as string, v victims) *actor {
	h.T.Helper()
	switch as {
	case "container":
		return h.inContainer(v)
	case "stranger", "visitor":
		return h.asUser(as, strangerUser, v)
	case "neighbour":
		return h.asUser(as, neighbour, v)
	}
	return h.asUser(as, hostileUser, v)
}

func (a *actor) waitBegun(h *host) {
	h.T.Helper()
	h.Eventually(a.as+" has begun", func() bool { return strings.Contains(a.said.String(), "begun\n") })
}

func (a *actor) report(h *host) {
	h.T.Helper()
	for _, o := range a.ends(h) {
		h.T.Logf("%-12s %7d times, %6d not: %s", a.as, o.Done, o.Missed, o.Name)
		if o.Missed > o.Done {
			h.T.Logf("%-12s last failed attempt: %.200s", a.as, o.Why)
		}
		if o.Note != "" {
			h.T.Log(o.Note)
		}
		if o.Done < o.AtLeast {
			h.T.Errorf("%s %s %d times, but at least %d are needed to show anything. The last error: %s", a.as, o.Name, o.Done, o.AtLeast, o.Why)
		}
		if o.Harm != "" {
			h.T.Errorf("%s %s: %s", a.as, o.Name, o.Harm)
		}
	}
}

func (a *actor) ends(h *host) (all []outcome) {
	h.T.Helper()
	done := make(chan error, 1)
	go func() { done <- a.cmd.Wait() }()
	var err error
	select {
	case err = <-done:
	case <-time.After(longest + time.Minute):
		_ = a.cmd.Process.Signal(syscall.SIGQUIT)
		time.Sleep(time.Second)
		_ = a.cmd.Process.Kill()
		err = errors.Join(errors.New("it goes on"), <-done)
	}
	_, report, _ := strings.Cut(a.said.String(), "begun\n")
	if decodeErr := json.NewDecoder(bytes.NewReader([]byte(report))).Decode(&all); err != nil || decodeErr != nil {
		h.T.Errorf("%s: %v, %v: it said\n%.4000s", a.as, err, decodeErr, a.said.String())
	}
	return all
}
