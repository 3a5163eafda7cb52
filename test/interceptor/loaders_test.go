// SPDX-License-Identifier: Apache-2.0

package interceptor

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/gpuslice/gpuslice/test/must"
)

// builder returns a new directory, and a function that compiles to a file there.
func builder(t *testing.T) (directory string, build func(output string, args ...string) string) {
	directory = t.TempDir()
	return directory, func(output string, args ...string) string {
		t.Helper()
		return compileTo(t, filepath.Join(directory, output), args...)
	}
}

func loaders(t *testing.T) (program, directory string) {
	t.Helper()
	directory, build := builder(t)
	driver := filepath.Join(bin(t), "fakecuda", "libcuda.so.1")
	build("plugin-linked.so", "-shared", "-fPIC", "-DLINKED", "programs/plugin.c", driver, "-ldl")
	build("plugin-opens.so", "-shared", "-fPIC", "-DOPENS", "programs/plugin.c", "-ldl")
	build("plugin-nested.so", "-shared", "-fPIC", "-DNESTS", "programs/plugin.c", "-ldl")
	build("plugin-next.so", "-shared", "-fPIC", "-DNEXT", "programs/plugin.c", "-ldl")
	return build("loaders", "programs/loaders.c", "-ldl"), directory
}

// However a program loads the driver without hiding it, and whatever it opened before, the quota applies and requests within it
// succeed.
func TestNoLoaderLeadsPastTheQuota(t *testing.T) {
	program, directory := loaders(t)
	for _, way := range []string{"by-path", "copy", "dlmopen", "libc-dlsym", "libc-dlvsym", "next-dlsym",
		"plugin-linked", "plugin-opens", "plugin-nested"} {
		for _, order := range []string{"alone", "after", "before"} {
			t.Run(way+" "+order, func(t *testing.T) {
				must.Output(inSlice(t, environment(t), "4G", program, way, order, fmt.Sprint(4*gib), directory))(t)
			})
		}
	}
}

func scopes(t *testing.T) (program, directory string) {
	t.Helper()
	directory, build := builder(t)
	guest := func(name string, args ...string) {
		build(name+".so", append([]string{"-shared", "-fPIC", "programs/guest.c"}, append(args, "-ldl", "-lpthread")...)...)
	}
	cuda, nvml := filepath.Join(bin(t), "fakecuda", "libcuda.so.1"), filepath.Join(bin(t), "fakecuda", "libnvidia-ml.so.1")
	guest("plain")
	guest("other", "-DOTHER", "-Wl,-soname,libcuda.so.1")
	guest("linked", "-DLINKED", cuda, nvml, "-Wl,-z,lazy")
	guest("now", "-DLINKED", cuda, nvml, "-Wl,-z,now", "-Wl,-z,relro")
	return build("scopes", "programs/scopes.c", "-ldl", "-lpthread"), directory
}

func TestObjectsThatAPreloadDoesNotReachAreHeld(t *testing.T) {
	program, directory := scopes(t)
	for _, way := range []string{"linked", "now", "deepbind", "deepbind-now", "later", "keys", "next", "other", "asked", "nothing", "threads"} {
		t.Run(way, func(t *testing.T) {
			must.Output(inSlice(t, environment(t), "4G", program, way, directory, fmt.Sprint(4*gib)))(t)
		})
	}
}
