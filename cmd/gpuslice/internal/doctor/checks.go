// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bufio"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/api/client"
	"github.com/gpuslice/gpuslice/daemon/config"
	"github.com/gpuslice/gpuslice/enforcer/advice"
)

func (h Host) path(name string) string { return filepath.Join(h.Root, name) }

func (h Host) exists(name string) bool {
	_, err := os.Stat(h.path(name))
	return err == nil
}

// driver looks for libcuda.so.1 in the loader's directories. It does not load it, which would start the driver.
func (h Host) driver(add adder) {
	dirs := append(filepath.SplitList(h.Env("LD_LIBRARY_PATH")), h.loaderDirs()...)
	for _, dir := range dirs {
		if !h.exists(filepath.Join(dir, "libcuda.so.1")) {
			continue
		}
		message := filepath.Join(dir, "libcuda.so.1")
		if version := h.kernelModule(); version != "" {
			message += ", kernel module " + version
		} else if !h.exists("/dev/nvidiactl") {
			add("driver", Warn, message+", but there is no /dev/nvidiactl",
				"load the NVIDIA kernel module (`nvidia-smi` does); with a simulated driver this is as it should be")
			return
		}
		add("driver", OK, message, "")
		return
	}
	add("driver", Fail, "libcuda.so.1 is not in the loader's directories",
		"install the NVIDIA driver, or run `sudo ldconfig` if it is there")
}

// simulated reports whether the enforcer's devices are those of the simulated driver (test/fakecuda), which says so in their names.
func (h Host) simulated(ctx context.Context) bool {
	devices, err := h.Enforcer.Devices(ctx)
	isReal := func(d api.Device) bool { return !strings.HasSuffix(d.Name, "(simulated)") }
	return err == nil && len(devices) > 0 && !slices.ContainsFunc(devices, isReal)
}

// kernelModule returns the version from "NVRM version: NVIDIA UNIX … Kernel Module  580.65.06  …".
func (h Host) kernelModule() string {
	text, err := os.ReadFile(h.path("/proc/driver/nvidia/version"))
	if err != nil {
		return ""
	}
	first, _, _ := strings.Cut(string(text), "\n")
	for _, word := range strings.Fields(first) {
		if strings.Count(word, ".") >= 1 && strings.Trim(word, "0123456789.") == "" {
			return word
		}
	}
	return ""
}

// loaderDirs returns the directories of ld.so.conf and the built-in ones.
func (h Host) loaderDirs() []string {
	dirs := h.loaderConf("/etc/ld.so.conf", 0)
	for _, lib := range []string{"/lib", "/usr/lib", "/lib64", "/usr/lib64"} {
		dirs = append(dirs, lib)
		if strings.HasSuffix(lib, "lib") {
			dirs = append(dirs, lib+"/x86_64-linux-gnu", lib+"/aarch64-linux-gnu", lib+"/wsl/lib")
		}
	}
	return dirs
}

func (h Host) loaderConf(name string, depth int) []string {
	file, err := os.Open(h.path(name))
	if err != nil || depth > 4 {
		return nil
	}
	defer file.Close()
	var dirs []string
	for lines := bufio.NewScanner(file); lines.Scan(); {
		line, _, _ := strings.Cut(lines.Text(), "#")
		words := strings.Fields(line)
		switch {
		case len(words) == 2 && words[0] == "include":
			pattern := words[1]
			if !filepath.IsAbs(pattern) {
				pattern = filepath.Join(filepath.Dir(name), pattern)
			}
			matches, _ := filepath.Glob(h.path(pattern))
			for _, match := range matches {
				rel, err := filepath.Rel(h.Root, match)
				if err == nil {
					dirs = append(dirs, h.loaderConf("/"+rel, depth+1)...)
				}
			}
		case len(words) == 1 && words[0] != "include":
			dirs = append(dirs, words[0])
		}
	}
	return dirs
}

// config reads the configuration as gpusliced does at its start. A running one may still use an older file, and fail at its next
// start.
func (h Host) config(add adder) {
	if h.Config == api.DefaultConfig && !h.exists(h.Config) {
		add("config", OK, "there is no "+h.Config+": the defaults hold", "")
		return
	}
	_, err := config.Load(h.path(h.Config))
	switch {
	case err == nil:
		add("config", OK, h.Config, "")
	case add.denied("config", "you may not read "+h.Config, err):
	default:
		add("config", Fail, err.Error(), "correct it, then "+advice.Restart("gpusliced")+" (running containers continue); until then gpuslice-runtime refuses new containers, and gpusliced would not start again")
	}
}

func (h Host) enforcer(add adder, info api.Info, err error) {
	switch {
	case err == nil && info.Version != api.Version:
		add("enforcer", Warn, fmt.Sprintf("answers on %s, version %s; this is %s", h.Socket, info.Version, api.Version),
			"restart it after an upgrade: "+advice.Restart("gpusliced")+" (running containers continue)")
	case err == nil:
		add("enforcer", OK, fmt.Sprintf("answers on %s, version %s, pid %d", h.Socket, info.Version, info.PID), "")
	case errors.Is(err, fs.ErrPermission):
		add("enforcer", Skip, "not checked: you may not use "+h.Socket, asRoot+"; root may use the socket, "+client.JoinGroup(h.Socket))
	case errors.Is(err, api.ErrUnreachable):
		add("enforcer", Fail, fmt.Sprintf("no enforcer answers on %s: no container can get a slice (`gpuslice run` can)", h.Socket), advice.Enable("gpusliced"))
	default:
		add("enforcer", Fail, err.Error(), "see "+advice.Log("gpusliced"))
	}
}

// devices checks the devices reported by the enforcer, or by NVML, which knows no quotas, if this user cannot get them from the
// enforcer.
func (h Host) devices(ctx context.Context, add adder, info api.Info, told bool) {
	var devices []api.Device
	var err error
	from := "NVML"
	if told {
		from = "the enforcer"
		devices, err = h.Enforcer.Devices(ctx)
	} else {
		devices, err = h.Devices()
	}
	switch {
	case add.denied("devices", fmt.Sprintf("%s: %v", from, err), err):
		return
	case err != nil:
		add("devices", Fail, fmt.Sprintf("asking %s: %v", from, err), "see whether `nvidia-smi` works")
		return
	case len(devices) == 0:
		add("devices", Fail, from+" shows no device", "see whether `nvidia-smi` shows one")
		return
	}
	for _, d := range devices {
		given := ""
		if told {
			given = ", of which quotas take " + api.FormatSize(d.Quotas)
		}
		if d.Free != nil {
			given += ", and " + api.FormatSize(*d.Free) + " may still be given"
		}
		add("devices", OK, fmt.Sprintf("%d: %s, %s, %s%s", d.Index, d.UUID, d.Name, api.FormatSize(d.Total), given), "")
	}
	for _, d := range devices {
		name := strconv.Itoa(d.Index)
		if d.Index < 0 { // a MIG instance
			name = d.UUID
		}
		if told { // else the enforcement is unknown
			add("enforce", OK, fmt.Sprintf("%s: %s, because %s", name, d.Enforcement, d.EnforcementReason), "")
		}
	}
	if told && info.Truth != "nvml" {
		add("devices", Warn, "NVML is not available: "+info.Truth,
			"make libnvidia-ml.so.1 loadable for the enforcer: without it memory that a process hides is not found, and quotas may add up to more than there is")
	}
}

func (h Host) cgroup(add adder) {
	switch {
	case h.exists("/sys/fs/cgroup/cgroup.controllers"):
		add("cgroup", OK, "version 2", "")
	case h.exists("/sys/fs/cgroup/unified/cgroup.controllers"), h.exists("/sys/fs/cgroup/unified/cgroup.procs"):
		add("cgroup", OK, "hybrid: version 1 with a unified mount", "")
	case h.exists("/sys/fs/cgroup/devices"), h.exists("/sys/fs/cgroup/memory"), h.exists("/sys/fs/cgroup/systemd"):
		add("cgroup", OK, "version 1", "")
	default:
		add("cgroup", Fail, "no cgroup is mounted at /sys/fs/cgroup",
			"mount it: gpuslice identifies a container's processes by their cgroup")
	}
}

func (h Host) runtimes(ctx context.Context, add adder) {
	found := false
	for _, name := range []string{"nvidia-container-runtime", "runc", "crun"} {
		path, err := h.LookPath(name)
		if err != nil {
			continue
		}
		version, err := h.RuntimeVersion(ctx, path)
		if add.denied("runtime", "you may not run "+path, err) {
			found = true
			continue
		}
		if err != nil {
			add("runtime", Warn, fmt.Sprintf("%s does not say its version: %v", path, err), "see whether it runs at all")
			continue
		}
		found = true
		add("runtime", OK, path+", "+version, "")
	}
	if !found {
		add("runtime", Fail, "no OCI runtime that works is in PATH: neither runc nor crun", "install runc, or name another by runtimes in [runtime] of the configuration")
	}
}

func (h Host) programs(add adder) {
	for _, name := range []string{"gpuslice-runtime", "gpuslice-hook", "gpusliced"} {
		path, err := h.Program(name)
		if err != nil {
			add("programs", Fail, err.Error(), "install it: `sudo make install`")
			continue
		}
		info, err := os.Stat(path)
		if add.denied("programs", "you may not look for "+path, err) {
			continue
		}
		if err != nil {
			add("programs", Fail, err.Error(), "`sudo make install`")
			continue
		}
		if info.Mode()&0o002 != 0 {
			add("programs", Fail, path+" may be written by everyone and is run as root", advice.AsRoot("chmod o-w", path))
			continue
		}
		add("programs", OK, path, "")
	}
}

// newestGlibc is the newest glibc symbol version that the interceptor may need, as images can have an old glibc.
const newestGlibc = "2.17"

func (h Host) library(add adder) {
	path, err := h.Library()
	if err != nil {
		add("library", Fail, err.Error(), "install it: `sudo make install`; from a build directory, use bin/gpuslice")
		return
	}
	file, err := elf.Open(path)
	if add.denied("library", "you may not read "+path, err) {
		return
	}
	if err != nil {
		add("library", Fail, fmt.Sprintf("%s: %v", path, err), "`sudo make install` again")
		return
	}
	defer file.Close()
	machines := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}
	if want, ok := machines[runtime.GOARCH]; ok && file.Machine != want {
		add("library", Fail, fmt.Sprintf("%s is for %v, this machine is %v", path, file.Machine, want), "build it on this machine: `make build`")
		return
	}
	symbols, err := file.ImportedSymbols()
	if err != nil {
		add("library", Fail, fmt.Sprintf("%s: %v", path, err), "`sudo make install` again")
		return
	}
	newest := "0"
	for _, s := range symbols {
		if version, found := strings.CutPrefix(s.Version, "GLIBC_"); found && newer(version, newest) {
			newest = version
		}
	}
	if newer(newest, newestGlibc) {
		add("library", Fail, fmt.Sprintf("%s needs glibc %s", path, newest),
			"install the library that `make build` makes: programs in images with an older glibc cannot load this one")
		return
	}
	add("library", OK, fmt.Sprintf("%s, glibc %s or newer", path, newest), "")
}

func newer(a, b string) bool {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	for i := range max(len(x), len(y)) {
		var m, n int
		if i < len(x) {
			m, _ = strconv.Atoi(x[i])
		}
		if i < len(y) {
			n, _ = strconv.Atoi(y[i])
		}
		if m != n {
			return m > n
		}
	}
	return false
}

// preload checks the host's ld.so.preload. It must not name the interceptor, which belongs only in containers: every process of
// the host would load it, and print an error if the file were missing.
func (h Host) preload(add adder) {
	text, err := os.ReadFile(h.path("/etc/ld.so.preload"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		add("preload", OK, "the host has no /etc/ld.so.preload", "")
	case add.denied("preload", "you may not read /etc/ld.so.preload", err):
	case err != nil:
		add("preload", Warn, err.Error(), "see what is wrong with the host's /etc/ld.so.preload")
	case strings.Contains(string(text), api.LibraryName):
		add("preload", Fail, "the host's own /etc/ld.so.preload names "+api.LibraryName,
			"remove that line: only containers and `gpuslice run` load it")
	default:
		add("preload", OK, "the host's /etc/ld.so.preload does not name "+api.LibraryName, "")
	}
}
