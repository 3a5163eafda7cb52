// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/shim/spec"
)

// defaultPath is searched after PATH, which an engine started by hand may have without the sbin directories.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// ActiveEnv is in the environment of the low-level runtime. If it comes back to us, two runtimes each have the other
// for their low-level one (nvidia-container-runtime → gpuslice-runtime → nvidia-container-runtime), and the
// chain would go on until the engine gives up. Containers do not see it: theirs is what config.json says.
const ActiveEnv = "GPUSLICE_RUNTIME_ACTIVE"

// ErrLoop is returned when the runtime was executed by itself.
var ErrLoop = errors.New("gpuslice-runtime was started by the runtime that it started itself: " +
	"of two runtimes that wrap each other, one must name runc (runtimes in the [runtime] section of gpuslice's configuration, or that of the other)")

// findRuntime finds the first of names, which are looked up in path, or absolute. It passes over the programs ours,
// by whatever name they are found: an operator may have put one in the place of runc.
func findRuntime(names []string, path string, ours ...string) (string, error) {
	var passed []os.FileInfo
	for _, program := range ours {
		if info, ok := executable(program); ok {
			passed = append(passed, info)
		}
	}
	for _, name := range names {
		for _, candidate := range candidates(name, path) {
			info, ok := executable(candidate)
			if ok && !slices.ContainsFunc(passed, func(own os.FileInfo) bool { return os.SameFile(info, own) }) {
				return candidate, nil
			}
		}
	}
	return "", fmt.Errorf("no low-level runtime: none of %s is in PATH (%.256q): install runc or crun, or name one by runtimes in the [runtime] section of the configuration",
		strings.Join(names, ", "), path)
}

// findHook finds our hook: beside the running program, or in path. "" means nowhere.
func findHook(self, path string) string { return findBeside(spec.HookName, self, path) }

// findBeside finds one of gpuslice's programs: beside self, the running one, or in path. "" means nowhere.
func findBeside(name, self, path string) string {
	for _, candidate := range append([]string{filepath.Join(filepath.Dir(self), name)}, candidates(name, path)...) {
		if _, ok := executable(candidate); ok && filepath.IsAbs(candidate) {
			return candidate
		}
	}
	return ""
}

// candidates are the places of a program. Unlike exec.LookPath's they leave nothing out that is ours: the search
// goes on behind a file that is not wanted.
func candidates(name, path string) []string {
	if filepath.IsAbs(name) {
		return []string{name}
	}
	var all []string
	for _, dir := range filepath.SplitList(path + ":" + defaultPath) {
		if filepath.IsAbs(dir) { // never the engine's working directory
			all = append(all, filepath.Join(dir, name))
		}
	}
	return all
}

func executable(path string) (os.FileInfo, bool) {
	info, err := os.Stat(path)
	return info, err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}
