// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/api/client"
	"github.com/gpuslice/gpuslice/daemon/config"
	"github.com/gpuslice/gpuslice/test/badconfig"
)

type fakeEnforcer struct {
	info   api.Info
	health api.Health
	err    error
	card   string // "" for an H100
}

func (f fakeEnforcer) Health(context.Context) (api.Health, error) { return f.health, f.err }

func (f fakeEnforcer) Info(context.Context) (api.Info, error) { return f.info, f.err }
func (f fakeEnforcer) Devices(context.Context) ([]api.Device, error) {
	free := uint64(30 << 30)
	return []api.Device{{UUID: "GPU-1", Name: cmp.Or(f.card, "H100"), Total: 80 << 30, Quotas: 50 << 30, Free: &free}}, f.err
}

func unwell(c api.Check) fakeEnforcer {
	return fakeEnforcer{info: api.Info{Version: api.Version, Truth: "nvml"}, health: api.Health{Checks: []api.Check{{Name: "loop", OK: true}, c}}}
}

func put(t *testing.T, root, name, text string) {
	t.Helper()
	path := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

func healthy(t *testing.T) Host {
	t.Helper()
	root := t.TempDir()
	put(t, root, "etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n")
	put(t, root, "etc/ld.so.conf.d/nvidia.conf", "# the driver\n/opt/nvidia/lib\n")
	put(t, root, "opt/nvidia/lib/libcuda.so.1", "")
	put(t, root, "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n")
	put(t, root, "sys/fs/cgroup/cgroup.controllers", "")
	for _, name := range []string{"gpuslice-runtime", "gpuslice-hook", "gpusliced"} {
		put(t, root, "bin/"+name, "")
	}
	sh, err := exec.LookPath("cat")
	if err != nil {
		t.Fatal(err)
	}
	return Host{
		Root:     root,
		Config:   api.DefaultConfig,
		Env:      func(string) string { return "" },
		Socket:   "/run/x.sock",
		Enforcer: fakeEnforcer{info: api.Info{Version: api.Version, Truth: "nvml"}},
		Devices:  func() ([]api.Device, error) { return nil, errors.New("not to be asked") },
		// Any ELF file of this machine; its need of glibc is not tested.
		Library: func() (string, error) { return filepath.EvalSymlinks(sh) },
		Program: func(name string) (string, error) { return filepath.Join(root, "bin", name), nil },
		RuntimeVersion: func(context.Context, string) (string, error) {
			return "runc version 1.2.3", nil
		},
		LookPath: func(name string) (string, error) {
			if name == "runc" {
				return "/usr/sbin/runc", nil
			}
			return "", exec.ErrNotFound
		},
	}
}

func find(findings []Finding, check string) (result []Finding) {
	for _, f := range findings {
		if f.Check == check {
			result = append(result, f)
		}
	}
	return result
}

func TestHealthyHostHasNothingToDo(t *testing.T) {
	for _, f := range healthy(t).Check(context.Background()) {
		if f.Check == "library" {
			continue
		}
		if f.Level != OK || f.Do != "" {
			t.Errorf("%+v", f)
		}
	}
}

func TestAPlaygroundNeedsNeitherADriverNorARuntime(t *testing.T) {
	h := healthy(t)
	h.Named, h.Enforcer = true, fakeEnforcer{info: api.Info{Version: api.Version, Truth: "nvml"}, card: "H100 (simulated)"}
	h.LookPath = func(string) (string, error) { return "", exec.ErrNotFound }
	h.Engines = func() []Engine { return []Engine{{Name: "docker"}} }
	if err := os.Remove(filepath.Join(h.Root, "opt/nvidia/lib/libcuda.so.1")); err != nil {
		t.Fatal(err)
	}
	findings := h.Check(context.Background())
	driver := find(findings, "driver")
	if len(driver) != 1 || !strings.Contains(driver[0].Message, "this is a playground") {
		t.Errorf("%+v", driver)
	}
	for _, f := range findings {
		if f.Level != OK && f.Check != "library" {
			t.Errorf("%+v", f)
		}
	}
	h.Named = false // a simulated driver in the place of the host's own
	if !Failed(h.Check(context.Background())) {
		t.Error("a host without a driver and a runtime is ready")
	}
}

func TestDeviceShowsTheMemoryLeftToGrant(t *testing.T) {
	for _, f := range find(healthy(t).Check(context.Background()), "devices") {
		if !strings.Contains(f.Message, "quotas take 50GiB, and 30GiB may still be given") {
			t.Errorf("%+v", f)
		}
	}
}

func TestTheDoctorClaimsNothingAboutAnUnreadableSocket(t *testing.T) {
	nvml := func() ([]api.Device, error) { return []api.Device{{UUID: "GPU-1", Name: "H100", Total: 80 << 30}}, nil }
	socket := filepath.Join(t.TempDir(), "s")
	if err := errors.Join(os.WriteFile(socket, nil, 0o660), os.Chmod(socket, 0o660)); err != nil {
		t.Fatal(err)
	}
	gid := os.Getgid()
	if gid == 0 { // no user but root is in that group
		gid = 1
		if err := os.Chown(socket, 0, gid); err != nil {
			t.Fatal(err)
		}
	}
	group, err := user.LookupGroupId(strconv.Itoa(gid))
	if err != nil {
		t.Fatal(err)
	}
	join := asRoot + "; root may use the socket, and members of the group " + group.Name + ": `sudo usermod -aG " + group.Name + " USER`, then log in again. " +
		"[[sessions.limits]] in gpusliced's configuration gives other users sessions, and `gpuslice run` works without gpusliced"
	for name, c := range map[string]struct {
		enforcer fakeEnforcer
		sessions bool
		want     []Finding
	}{
		"who may not ask": {fakeEnforcer{err: os.ErrPermission}, false, []Finding{{"enforcer", Skip, "not checked: you may not use " + socket, join}}},
		"a session's user": {fakeEnforcer{info: api.Info{Version: api.Version, Truth: "nvml"}}, true, []Finding{
			{"enforcer", OK, "answers on " + socket + ", version " + api.Version + ", pid 0", ""},
		}},
	} {
		h := healthy(t)
		h.Enforcer, h.Sessions, h.Devices, h.Socket = c.enforcer, c.sessions, nvml, socket
		findings := h.Check(context.Background())
		if got := find(findings, "enforcer"); !slices.Equal(got, c.want) {
			t.Errorf("%s: %+v", name, got)
		}
		if got := find(findings, "devices"); len(got) != 1 || got[0].Level != OK || got[0].Message != "0: GPU-1, H100, 80GiB" {
			t.Errorf("%s: %+v", name, got)
		}
		skipped := find(findings, "enforce")
		if c.sessions != (len(skipped) == 1 && skipped[0].Level == Skip && strings.Contains(skipped[0].Message, "control socket")) {
			t.Errorf("%s: %+v", name, skipped)
		}
	}
}

// A lack of permission is no defect of the host.
func TestACheckThatOnlyRootCanMakeIsNoDefect(t *testing.T) {
	denied := &fs.PathError{Op: "open", Path: "/x", Err: syscall.EACCES}
	for check, deny := range map[string]func(h *Host){
		"enforcer": func(h *Host) {
			h.Enforcer = fakeEnforcer{err: &client.DeniedError{Socket: "/x", Err: denied}}
			h.Devices = func() ([]api.Device, error) { return []api.Device{{UUID: "GPU-1"}}, nil }
		},
		"devices": func(h *Host) {
			h.Sessions, h.Devices = true, func() ([]api.Device, error) { return nil, denied }
		},
		"runtime": func(h *Host) {
			h.RuntimeVersion = func(context.Context, string) (string, error) { return "", denied }
		},
		"engine": func(h *Host) {
			h.Engines = func() []Engine { return []Engine{{Name: "docker", Err: denied}} }
		},
	} {
		h := healthy(t)
		h.User = 1000
		deny(&h)
		findings := h.Check(context.Background())
		if got := find(findings, check); len(got) != 1 || got[0].Level != Skip || !strings.Contains(got[0].Message, "not checked") || !strings.Contains(got[0].Do, asRoot) {
			t.Errorf("%s: %+v", check, got)
		}
		for _, f := range findings {
			if f.Level == Fail && f.Check != "library" { // any file serves as library here
				t.Errorf("%s: %+v", check, f)
			}
		}
	}
}

// TestDaemonRefusesTheConfigurationsThatDoctorRefuses in cmd/gpusliced tests the other direction.
func TestTheDoctorNamesFaultsAsTheDaemonDoes(t *testing.T) {
	for text := range badconfig.Files {
		h := healthy(t)
		put(t, h.Root, api.DefaultConfig, text)
		_, refusal := config.Load(filepath.Join(h.Root, api.DefaultConfig))
		findings := h.Check(context.Background())
		if got := find(findings, "config"); refusal == nil || len(got) != 1 || got[0].Level != Fail || got[0].Message != refusal.Error() || !Failed(findings) {
			t.Errorf("%q: %+v, want %v", text, got, refusal)
		}
	}
}

func TestEachDefectIsFoundWithARemedy(t *testing.T) {
	for name, c := range map[string]struct {
		check string
		level Level
		spoil func(h *Host)
	}{
		"no driver":           {"driver", Fail, func(h *Host) { os.Remove(filepath.Join(h.Root, "opt/nvidia/lib/libcuda.so.1")) }},
		"no kernel module":    {"driver", Warn, func(h *Host) { os.RemoveAll(filepath.Join(h.Root, "proc")) }},
		"a misspelt key":      {"config", Fail, func(h *Host) { put(t, h.Root, api.DefaultConfig, "[enforcer]\nsokcet = \"/x\"\n") }},
		"no such file":        {"config", Fail, func(h *Host) { h.Config = "/etc/gpuslice/other.toml" }},
		"no enforcer":         {"enforcer", Fail, func(h *Host) { h.Enforcer = fakeEnforcer{err: api.ErrUnreachable} }},
		"another version":     {"enforcer", Warn, func(h *Host) { h.Enforcer = fakeEnforcer{info: api.Info{Version: "9", Truth: "nvml"}} }},
		"a store that hangs":  {"health", Fail, func(h *Host) { h.Enforcer = unwell(api.Check{Name: "store", For: api.ForLive, Message: "m"}) }},
		"a driver that hangs": {"health", Warn, func(h *Host) { h.Enforcer = unwell(api.Check{Name: "truth", Device: "GPU-1", Message: "m"}) }},
		"no truth":            {"devices", Warn, func(h *Host) { h.Enforcer = fakeEnforcer{info: api.Info{Truth: "no NVML"}} }},
		"no device":           {"devices", Fail, func(h *Host) { h.Enforcer = fakeEnforcer{err: api.ErrUnreachable} }},
		"no cgroup":           {"cgroup", Fail, func(h *Host) { os.RemoveAll(filepath.Join(h.Root, "sys")) }},
		"no runc":             {"runtime", Fail, func(h *Host) { h.LookPath = func(string) (string, error) { return "", exec.ErrNotFound } }},
		"no hook":             {"programs", Fail, func(h *Host) { os.Remove(filepath.Join(h.Root, "bin/gpuslice-hook")) }},
		"writable hook":       {"programs", Fail, func(h *Host) { os.Chmod(filepath.Join(h.Root, "bin/gpuslice-hook"), 0o757) }},
		"no library":          {"library", Fail, func(h *Host) { h.Library = func() (string, error) { return "", errors.New("nowhere") } }},
		"damaged library": {"library", Fail, func(h *Host) {
			h.Library = func() (string, error) { return filepath.Join(h.Root, "etc/ld.so.conf"), nil }
		}},
		"preload on the host": {"preload", Fail, func(h *Host) { put(t, h.Root, "etc/ld.so.preload", "/usr/lib/libgpuslice.so\n") }},
	} {
		t.Run(name, func(t *testing.T) {
			h := healthy(t)
			c.spoil(&h)
			findings := h.Check(context.Background())
			for _, f := range find(findings, c.check) {
				if f.Level == c.level && f.Do != "" {
					if want := c.level == Fail; !want {
						return
					} else if Failed(findings) {
						return
					}
				}
			}
			t.Errorf("no %s of level %s in %+v", c.check, c.level, findings)
		})
	}
}

func TestDriverIsFoundThroughTheEnvironment(t *testing.T) {
	h := healthy(t)
	os.Remove(filepath.Join(h.Root, "opt/nvidia/lib/libcuda.so.1"))
	put(t, h.Root, "fake/libcuda.so.1", "")
	h.Env = func(name string) string {
		if name == "LD_LIBRARY_PATH" {
			return "/elsewhere:/fake"
		}
		return ""
	}
	driver := find(h.Check(context.Background()), "driver")
	if len(driver) != 1 || driver[0].Level != OK || !strings.Contains(driver[0].Message, "/fake/libcuda.so.1, kernel module 580.65.06") {
		t.Errorf("got %+v", driver)
	}
}

func TestVersionsAreComparedByNumber(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{{"2.2.5", "2.17", false}, {"2.34", "2.17", true}, {"2.17", "2.17", false}, {"2.17.1", "2.17", true}, {"0", "2.17", false}} {
		if got := newer(c.a, c.b); got != c.want {
			t.Errorf("newer(%s, %s) is %v", c.a, c.b, got)
		}
	}
}

func TestTheDoctorNamesFaultsOfTheConfiguration(t *testing.T) {
	for text, want := range map[string]string{
		"[enforcer]\nlog_level = \"info\"\n":                    api.DefaultConfig,
		"[enforcer]\n\nsokcet = \"/x\"\n":                       ":3: there is no key enforcer.sokcet",
		"[enforcer]\nlog_level = \"loud\"\n":                    "enforcer.log_level = \"loud\"",
		"[enforcer\n":                                           ":2: ",
		"[[sessions.limits]]\nuser = 5001\nmax_vram = \"4G\"\n": ":2: ",
	} {
		h := healthy(t)
		put(t, h.Root, api.DefaultConfig, text)
		level := Fail
		if want == api.DefaultConfig {
			level = OK
		}
		if got := find(h.Check(context.Background()), "config"); len(got) != 1 || got[0].Level != level || !strings.Contains(got[0].Message, want) {
			t.Errorf("%q: %+v: want %s, %q", text, got, level, want)
		}
	}
	if got := find(healthy(t).Check(context.Background()), "config"); len(got) != 1 || got[0].Level != OK || !strings.Contains(got[0].Message, "the defaults hold") {
		t.Errorf("without a file: %+v", got)
	}
}
