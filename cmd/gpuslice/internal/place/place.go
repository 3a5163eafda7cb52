// SPDX-License-Identifier: Apache-2.0

// Package place finds the other parts of gpuslice on this machine. It searches the running program's directory first, so that a
// build directory and an installation under any prefix use their own parts. It must never run what it finds.
package place

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/gpuslice/gpuslice/api"
)

// ErrNotFound is returned for a part that is not installed.
var ErrNotFound = errors.New("not found")

// Finder finds the parts. The zero value searches no directory of a program.
type Finder struct {
	Dir     string // directory of the running program
	Default string // library of a standard installation
}

// New returns the Finder of the running program.
func New() Finder {
	f := Finder{Default: api.DefaultLibrary}
	if exe, err := os.Executable(); err == nil {
		f.Dir = filepath.Dir(exe)
	}
	return f
}

// Library returns the path of the interceptor, by preference preferred, the enforcer's value. Symbolic links are resolved, so the
// path names the version: an upgrade does not affect later processes of a running slice.
func (f Finder) Library(preferred string) (string, error) {
	candidates := []string{preferred}
	if f.Dir != "" {
		candidates = append(candidates,
			filepath.Join(f.Dir, "..", "lib", "gpuslice", api.LibraryName),
			filepath.Join(f.Dir, api.LibraryName))
	}
	candidates = append(candidates, f.Default)

	var tried []string
	for _, c := range candidates {
		if c == "" {
			continue
		}
		path, err := filepath.EvalSymlinks(c)
		if err == nil {
			if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
				return filepath.Abs(path)
			}
		}
		tried = append(tried, filepath.Clean(c))
	}
	return "", fmt.Errorf("the interceptor %s was %w (looked at %s): install gpuslice with `sudo make install`",
		api.LibraryName, ErrNotFound, strings.Join(tried, ", "))
}

// Program returns the path of one of gpuslice's programs.
func (f Finder) Program(name string) (string, error) {
	if f.Dir != "" {
		path := filepath.Join(f.Dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%s was %w beside %s or in PATH", name, ErrNotFound, f.Dir)
	}
	return filepath.Abs(path)
}
