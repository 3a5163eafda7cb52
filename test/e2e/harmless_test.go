// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/testhost"
)

// loading lists the loader's calls that map a library.
var loading = []string{"openat", "read", "pread64", "fstat", "newfstatat", "mmap", "mprotect", "munmap", "close"}

var callName = regexp.MustCompile(`^(\w+)\(`)

// trace runs a program under strace. It returns the opened paths and all other calls, without values that vary between runs.
func trace(t *testing.T, preload string, args ...string) (opened, calls []string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "trace")
	strace := []string{"-qq", "-o", file}
	if preload != "" {
		// For the program, not for strace. Set in both cases, so that the environments have the same size.
		strace = append(strace, "-E", "LD_PRELOAD="+preload)
	} else {
		strace = append(strace, "-E", "LD_PRELOAD=")
	}
	must.Output(exec.Command("strace", append(strace, args...)...).CombinedOutput())(t, "strace", args)
	text := must.Get(os.ReadFile(file))(t)
	// Addresses, sizes and pids; the output of getrandom.
	differs := regexp.MustCompile(`0x[0-9a-f]+|\b\d{3,}\b|getrandom\("[^"]*"`)
	path := regexp.MustCompile(`"([^"]*)"`)
	for line := range strings.Lines(string(text)) {
		m := callName.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		if m[1] == "openat" && !strings.Contains(line, "ENOENT") {
			opened = append(opened, path.FindStringSubmatch(line)[1])
		}
		if m[1] != "execve" && !slices.Contains(loading, m[1]) {
			calls = append(calls, differs.ReplaceAllString(strings.TrimSpace(line), "N"))
		}
	}
	return opened, calls
}

func TestProgramThatNeverCallsCUDADoesNothingElseThanWithoutUs(t *testing.T) {
	if _, err := exec.LookPath("strace"); err != nil {
		t.Skip("needs strace: make deps")
	}
	library := filepath.Join(testhost.BinDir(t), "libgpuslice.so")
	for _, args := range [][]string{
		{"true"},
		{"ls", "/"},
		{"sh", "-c", "echo a; exit 0"},
	} {
		plainOpened, plainCalls := trace(t, "", args...)
		ourOpened, ourCalls := trace(t, library, args...)

		rest := slices.DeleteFunc(slices.Clone(ourOpened), func(path string) bool { return path == library })
		// Separate libraries before glibc 2.34, empty stubs since.
		for _, part := range []string{"libdl.so.2", "libpthread.so.0"} {
			if !containsBase(plainOpened, part) {
				rest = slices.DeleteFunc(rest, func(path string) bool { return filepath.Base(path) == part })
			}
		}
		expect.True(t, len(ourOpened) != len(rest), args, "the library was not loaded, so nothing was tested:", ourOpened)
		expect.EqualSlices(t, rest, plainOpened, args, "opens")
		expect.EqualSlices(t, ourCalls, plainCalls, args, "calls")
	}
}

func containsBase(paths []string, base string) bool {
	return slices.ContainsFunc(paths, func(path string) bool { return filepath.Base(path) == base })
}

func TestProgramThatNeverCallsCUDASeesNoTraceOfUs(t *testing.T) {
	library := filepath.Join(testhost.BinDir(t), "libgpuslice.so")
	look := []string{"sh", "-c", `grep -E '^(Threads|SigPnd|SigBlk|SigIgn|SigCgt|CapEff|Umask|NoNewPrivs)' /proc/self/status; ls -1 /proc/self/fd; ulimit -a; umask`}
	run := func(preload string) []byte {
		cmd := exec.Command(look[0], look[1:]...)
		cmd.Env = []string{"PATH=/usr/bin:/bin", "LD_PRELOAD=" + preload}
		out := must.Output(cmd.CombinedOutput())(t)
		return out
	}
	if plain, ours := run(""), run(library); !bytes.Equal(plain, ours) {
		t.Errorf("without us:\n%s\nwith us:\n%s", plain, ours)
	}
}
