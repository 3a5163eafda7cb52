// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/contrib/seccomp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/testhost"
)

// profile denies one call only.
func profile(call string) *specs.LinuxSeccomp {
	errno := uint(2)
	return &specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Syscalls: []specs.LinuxSyscall{{
		Names: []string{call}, Action: specs.ActErrno, ErrnoRet: &errno,
	}}}
}

// The runtime can hide the interceptor after the hook has run. Each of these containers once ran without its quota.
func TestAContainerThatHidesTheInterceptorIsRefused(t *testing.T) {
	h := newHost(t)
	for name, c := range map[string]struct {
		key   string
		value any
		says  string
	}{
		"the preload file is masked":           {"maskedPaths", []string{"/proc/kcore", "/etc/ld.so.preload"}, `the masked path "/etc/ld.so.preload" hides /etc/ld.so.preload`},
		"the preload file is masked by a link": {"maskedPaths", []string{"/link"}, `the masked path "/link" hides`},
		"access is denied":                     {"seccomp", profile("access"), "the container's seccomp profile denies the dynamic loader access(2)"},
	} {
		box := h.newContainer(vram(), "/bin/sleep", "600")
		h.Must(os.Symlink("/etc/ld.so.preload", filepath.Join(box.bundle, "rootfs", "link")))
		box.configure(func(config map[string]any) { config["linux"].(map[string]any)[c.key] = c.value })
		out, err := box.output(box.runtime("run", "--detach", "--bundle", box.bundle, box.id))
		if err == nil {
			t.Errorf("%s: it was created, but a process of it says %q", name, box.hog(5*gib).said)
		} else if !strings.Contains(out, c.says) || strings.Count(out, "gpuslice: ") != 1 {
			t.Errorf("%s: %q does not say %q", name, out, c.says)
		}
	}
	must.Len(t, h.Slices(), 0, "slices are left")
}

func TestMasksAndSeccompOfEnginesLeaveTheQuotaInForce(t *testing.T) {
	h := newHost(t)
	for name, linux := range map[string]map[string]any{
		"defaults": {
			"maskedPaths": []string{"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
				"/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap"},
			"readonlyPaths": []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
			"seccomp":       seccomp.DefaultProfile(&specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{}}}),
		},
		"made read-only": {"readonlyPaths": []string{"/etc/ld.so.preload", "/.gpuslice", "/.gpuslice/libgpuslice.so", "/etc", "/"}},
		"an old call":    {"seccomp": profile("open")},
		"attaching":      {"seccomp": profile("connect")}, // a process that cannot attach gets no memory
	} {
		box := h.newContainer(vram(), "/bin/sleep", "600")
		box.configure(func(config map[string]any) {
			for key, value := range linux {
				config["linux"].(map[string]any)[key] = value
			}
		})
		box.run()
		box.mustRefuse(5*gib, name, "of a quota of 4 GiB")
	}
}

func TestNoUmaskChangesAModeOrKeepsAUserFromTheInterceptor(t *testing.T) {
	for _, umask := range []string{"000", "027", "077"} {
		t.Run(umask, func(t *testing.T) {
			t.Parallel()
			runc := runcPath(t)
			under := []string{"sh", "-c", "umask " + umask + `; exec "$@"`, "sh"}
			h := &host{testhost.New(t, testhost.Options{Runtimes: []string{runc}, Enter: under, Enforcer: "group = \"\""}), runc}
			// Start again without its directories and with a socket for users.
			h.Stop(unix.SIGTERM)
			h.Must(os.RemoveAll(filepath.Join(h.Dir, "run")))
			h.Must(os.RemoveAll(filepath.Join(h.Dir, "state")))
			text := must.Get(os.ReadFile(h.Config()))(h.T)
			h.Must(os.Mkdir(filepath.Join(h.Dir, "log"), 0o755))
			h.Must(os.WriteFile(h.Config(), fmt.Appendf(text, "\n[sessions]\nsocket = %q\n[[sessions.limits]]\nuser = \"%d\"\nmax_vram = \"4G\"\n[audit]\nfile = %q\n",
				filepath.Join(h.Dir, "run", "session.sock"), nobody, filepath.Join(h.Dir, "log", "audit.jsonl")), 0o644))
			h.Start()
			dirs := map[string]string{"RUN": "run", "STATE": "state", "LOG/audit.jsonl": "log/audit.jsonl"}

			c := h.newContainer(map[string]string{"gpuslice.vram": "4G", "gpuslice.elastic": "true"}, "/bin/sleep", "600")
			c.configure(func(config map[string]any) {
				process := config["process"].(map[string]any)
				process["user"] = map[string]any{"uid": 1000, "gid": 1000}
				process["env"] = []string{"PATH=/usr/bin:/bin", "LD_LIBRARY_PATH=/fakecuda", "FAKECUDA_STATE=/fake/user"}
			})
			h.Must(os.Chmod(filepath.Join(h.Dir, "fake"), 0o777))
			h.Must(os.Remove(filepath.Join(c.bundle, "rootfs", "etc"))) // the hook creates it
			run := c.runtime("run", "--detach", "--bundle", c.bundle, c.id)
			run.Path, run.Args = "/bin/sh", append(append([]string{}, under...), run.Args...)
			must.Output(c.output(run))(t, "run the container")
			c.mustRefuse(5*gib, "a process of uid 1000, of a quota of 4 GiB")
			expect.Contains(t, c.hog(gib).said, fmt.Sprint("holds ", gib), "a process of uid 1000")
			must.Get(h.Client.Suspend(t.Context(), c.id))(h.T)
			must.Get(h.Client.Resume(t.Context(), c.id))(h.T)
			h.Must(checkModes(h.Host, []string{"gpusliced", "hook"}, dirs))
			h.Stop(unix.SIGTERM)
			binds, _ := filepath.Glob(filepath.Join(h.Dir, "run", "slices", "*", "bind"))
			for _, dir := range binds {
				h.Must(os.Chmod(dir, 0o700)) // the mode that an earlier version set
			}
			h.Start()
			h.Must(checkModes(h.Host, []string{"gpusliced", "hook"}, dirs))
		})
	}
}

// A limit that is too small for the interceptor is too small for libc, which the loader maps after it.
func TestNoLimitLetsAProgramStartWithoutTheInterceptor(t *testing.T) {
	h := newHost(t)
	c := h.runContainer(vram(), "/bin/sleep", "600")
	out, err := c.exec("sh", "-c", `
		try() {
			maps=$(ulimit "$1" "$2" && exec cat /proc/self/maps) || return 0
			case $maps in */.gpuslice/libgpuslice.so*) echo loaded;; *) echo "without it: ulimit $1 $2";; esac
		}
		for n in 0 1 2 3 4 5 6 8; do try -n $n; done
		kib=16
		while [ $kib -lt 640 ]; do try -d $kib; try -v $((kib * 8)); kib=$((kib + 16)); done 2>/dev/null`)
	h.Must(err)
	if !strings.Contains(out, "loaded") || strings.Contains(out, "without it") {
		t.Errorf("%s", out)
	}
}
