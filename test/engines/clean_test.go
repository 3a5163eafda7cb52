//go:build engines

// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/test/must"
)

type world struct {
	mounts    []string // of the host, related to the site
	processes []string // started by the engine, except daemons
	cgroups   []string // in all hierarchies, except the machine's own
	dirs      []string // of the enforcer and the hook
	bundles   []string // what engines keep for each container
	sources   []string // host files bound into containers, with sizes and times
}

func (s *site) look() world {
	return world{
		mounts:    s.lookMounts(),
		processes: s.lookProcesses(),
		cgroups:   lookCgroups(s.Dir),
		dirs:      append(children(s.in("run", "slices")), children(s.in("run", "hook"))...),
		bundles:   s.lookBundles(),
		sources:   s.lookSources(),
	}
}

// clean waits until the case's leftovers are gone and reports those that remain.
func (s *site) clean(before world) {
	s.t.Helper()
	for _, slice := range s.Slices() {
		_, _ = s.engine.remove(slice.Container)
	}
	if s.t.Failed() {
		return // the first error is the cause
	}
	for _, what := range []struct {
		name string
		left func() []string
	}{
		{"slices", func() (ids []string) {
			for _, slice := range s.Slices() {
				ids = append(ids, slice.ID)
			}
			return ids
		}},
		{"mounts", func() []string { return without(s.lookMounts(), before.mounts) }},
		{"processes", func() []string { return without(s.lookProcesses(), before.processes) }},
		{"cgroups", func() []string { return without(lookCgroups(s.Dir), before.cgroups) }},
		{"files", func() []string { return without(s.look().dirs, before.dirs) }},
		{"bundles", func() []string { return without(s.lookBundles(), before.bundles) }},
		{"changes of host files", func() []string { return without(s.lookSources(), before.sources) }},
	} {
		var left []string
		if !s.becomesTrue(func() bool { left = what.left(); return len(left) == 0 }) {
			s.t.Errorf("%s are left: %q", what.name, left)
		}
	}
}

// sweep removes what remains after the engine's daemons have stopped: after a failure anything, else only parent cgroups, which
// engines never remove.
func (s *site) sweep() {
	left := append(s.lookMounts(), append(s.lookProcesses(), s.lookBundles()...)...)
	if len(left) > 0 && !s.t.Failed() {
		s.t.Errorf("when the engine has ended there is still %q", left)
	}
	for _, line := range s.lookProcesses() { // shims first, so that they report nothing
		name, _, _ := strings.Cut(line, " ")
		kill(name)
	}
	cgroups := lookCgroups(s.Dir)
	slices.Reverse(cgroups)
	for _, dir := range cgroups {
		text, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		for _, name := range strings.Fields(string(text)) {
			kill(name)
		}
	}
	mounts := s.lookMounts()
	slices.Reverse(mounts)
	for _, point := range mounts {
		_, _ = s.output("umount", "--lazy", point)
	}
	for _, root := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} { // v2 alone, and v1 or hybrid
		parents, _ := filepath.Glob(root + cgroupParent(s.Dir))
		cgroups = append(cgroups, parents...)
	}
	for _, dir := range cgroups {
		s.becomesTrue(func() bool { return os.Remove(dir) == nil || !exists(dir) })
	}
	_ = os.RemoveAll(runcRoot(s.containerdNamespace()))
}

func kill(pid string) {
	if n, err := strconv.Atoi(pid); err == nil {
		_ = unix.Kill(n, unix.SIGKILL)
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func without(all, known []string) []string {
	return slices.DeleteFunc(all, func(s string) bool { return slices.Contains(known, s) })
}

func (s *site) lookMounts() (points []string) {
	text := must.Get(os.ReadFile(s.apart.mountinfo()))(s.T)
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); strings.Contains(line, s.Dir) {
			points = append(points, fields[4])
		}
	}
	return points
}

// lookProcesses returns processes with the site's environment, except its daemons and enforcer. Processes of containers have
// another environment; lookCgroups covers them.
func (s *site) lookProcesses() (found []string) {
	mark := []byte("GPUSLICE_CONFIG=" + s.Config() + "\x00")
	for _, name := range children("/proc") {
		pid, err := strconv.Atoi(name)
		if err != nil || s.isDaemon(pid) {
			continue
		}
		env, err := os.ReadFile(filepath.Join("/proc", name, "environ"))
		if err != nil || !bytes.Contains(env, mark) {
			continue
		}
		line, _ := os.ReadFile(filepath.Join("/proc", name, "cmdline"))
		if program, _, _ := bytes.Cut(line, []byte{0}); filepath.Base(string(program)) == "gpusliced" {
			continue
		}
		found = append(found, name+" "+string(bytes.ReplaceAll(bytes.TrimRight(line, "\x00"), []byte{0}, []byte{' '})))
	}
	return found
}

func (s *site) isDaemon(pid int) bool {
	for _, d := range s.daemons {
		if d.command != nil && d.command.Process.Pid == pid {
			return true
		}
	}
	return false
}

// cgroupParent names the parent cgroup of a site's containers, for engines with such a setting.
func cgroupParent(dir string) string { return filepath.Base(dir) }

func lookCgroups(dir string) (found []string) {
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.Contains(path, cgroupParent(dir)+"/") {
			found = append(found, path)
		}
		return nil // removed during the walk
	})
	return found
}

// lookSources returns the files, sizes and times of host directories that containers bind or use as root.
func (s *site) lookSources() (found []string) {
	for _, dir := range []string{s.Bin + "/demo", s.Bin + "/fakecuda", tools + "/images/*", tools + "/images/*/etc"} {
		for _, file := range must.Get(filepath.Glob(dir + "/*"))(s.T) {
			if info, err := os.Lstat(file); err == nil {
				found = append(found, fmt.Sprintf("%s %v %d %d", file, info.Mode(), info.Size(), info.ModTime().UnixNano()))
			}
		}
	}
	return found
}

// lookBundles returns the per-container directories of engines and runtimes.
func (s *site) lookBundles() (found []string) {
	for _, pattern := range []string{
		"*/state/io.containerd.runtime.v2.task/*/*", "*/exec/runtime-*/*/*", "*/exec/containerd/daemon/io.containerd.runtime.v2.task/*/*",
		"runc/*", "*/runc/*/*", "bundles/*", "podman/*/overlay-containers/*/userdata",
	} {
		paths := must.Get(filepath.Glob(s.in(pattern)))(s.T)
		found = append(found, paths...)
	}
	for _, name := range children(runcRoot(s.containerdNamespace())) {
		found = append(found, filepath.Join(runcRoot(s.containerdNamespace()), name))
	}
	return found
}

func children(dir string) (names []string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
