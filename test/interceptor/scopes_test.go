// SPDX-License-Identifier: Apache-2.0

package interceptor

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/gpuslice/gpuslice/test/must"
)

func scopes(t *testing.T) (program, directory string) {
	t.Helper()
	directory = t.TempDir()
	build := func(output string, args ...string) string {
		t.Helper()
		return compileTo(t, filepath.Join(directory, output), args...)
	}
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
