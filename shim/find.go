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

// defaultPath is searched after PATH, which may lack the sbin directories if an engine was started by hand.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// ActiveEnv is set for the low-level runtime. If gpuslice-runtime finds it set, two runtimes wrap each other
// (nvidia-container-runtime → gpuslice-runtime → nvidia-container-runtime). Containers do not see it: their environment is in
// config.json.
const ActiveEnv = "GPUSLICE_RUNTIME_ACTIVE"

// ErrLoop is returned when gpuslice-runtime was started by itself.
var ErrLoop = errors.New("gpuslice-runtime was started by a runtime that it had started: " +
	"of two runtimes that wrap each other, one must name runc (runtimes in the [runtime] section of gpuslice's configuration, or that of the other)")

// findRuntime returns the first executable of names, absolute or in path. It skips the programs ours under any name: an operator
// may have replaced runc by one of them.
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

// findHook returns the path of the hook, or "". See findBeside.
func findHook(self, path string) string { return findBeside(spec.HookName, self, path) }

// findBeside looks up one of gpuslice's programs beside the running program self and in path. It returns "" if absent.
func findBeside(name, self, path string) string {
	for _, candidate := range append([]string{filepath.Join(filepath.Dir(self), name)}, candidates(name, path)...) {
		if _, ok := executable(candidate); ok && filepath.IsAbs(candidate) {
			return candidate
		}
	}
	return ""
}

// candidates returns the possible paths of a program. Unlike exec.LookPath it returns all, since the caller may reject some.
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
