//go:build engines

// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// setuidWorks: the loader ignores LD_PRELOAD for a setuid program, and a program without the preload has no quota.
func setuidWorks(s *site) {
	name := s.run(container{})
	// An ordinary user runs the inner su, so it is setuid. A loader error would be the first line.
	said := s.exec(name, "su", "nobody", "-s", "/bin/sh", "-c", "su --version")
	expect.True(s.t, strings.HasPrefix(said, "su "), "a setuid program says", said)
	id := s.id(name)
	hog := func(bytes uint64) hog {
		return s.startHog(name, "su nobody -s /bin/sh -c '"+
			"LD_LIBRARY_PATH=/fakecuda FAKECUDA_STATE=/fake/state exec /demo/cuda_hog "+strconv.FormatUint(bytes, 10)+"'")
	}
	must.Equal(s.t, hog(gib).said, fmt.Sprintf("holds %d of %d", gib, quota), "another user's process")
	expect.Contains(s.t, hog(3*gib).said, ": CUDA_ERROR_OUT_OF_MEMORY", "3 GiB beside 1 GiB")
	s.killHogs(id)
}

// imageIsLeftAlone: an image without glibc gets no preload, and runs without complaint.
func imageIsLeftAlone(image string) func(*site) {
	return func(s *site) {
		name := s.run(container{image: image})
		expect.Equal(s.t, strings.TrimSpace(s.exec(name, "/bin/sh", "-c", "echo works")), "works")
		if use := s.Use(s.id(name)); use.Limit != quota || use.Used != 0 {
			s.t.Errorf("the slice shows %+v", use)
		}
		s.remove(name)
		s.Eventually("the slice is gone", s.IsGone(s.id(name)))
	}
}

// readOnlyRoot: a slice is bound even if the root is read-only, as long as the layer below is writable. Otherwise the user sees
// an error.
func readOnlyRoot(s *site) {
	s.works(s.run(container{readOnly: true}))
}

func hasUserns(e engine) string {
	if u, ok := e.(interface{ noUserns() string }); ok {
		return u.noUserns()
	}
	return ""
}

func userNamespace(s *site) {
	name := s.run(container{userns: true})
	if out := s.exec(name, "cat", "/proc/self/uid_map"); strings.Contains(out, "4294967295") {
		s.t.Fatalf("it is in no user namespace: %s", out)
	}
	s.works(name)
}

func hostPID(s *site) {
	name := s.run(container{hostPID: true})
	s.works(name)
	id := s.id(name)
	s.mustHold(name, gib, quota)
	// Without a pid namespace processes outlive init; the engine must find them all.
	s.remove(name)
	s.Eventually("the slice is gone", s.IsGone(id))
}

func privileged(s *site) { s.works(s.run(container{privileged: true})) }
