//go:build engines

// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/test/must"
)

func isByHand(e engine) string {
	if _, ok := e.(*oci); ok {
		return ""
	}
	return "engines pass on no such option"
}

// execElsewhere: an exec'd process belongs to the container's slice, whatever cgroup it enters by.
func execElsewhere(s *site) {
	e := s.engine.(*oci)
	c := container{name: "exec-" + strconv.Itoa(os.Getpid())}.complete(s)
	s.t.Cleanup(func() { _, _ = e.remove(c.name) })
	s.Must(e.prepare(e.bundle(c.name), c))
	must.Output(e.invoke("create", "--bundle", e.bundle(c.name), c.name))(s.t, "create")
	s.mustHold(c.name, gib, quota, "before start it")
	s.killHogs(c.name)
	must.Output(e.invoke("start", c.name))(s.t, "start")
	for _, cgroup := range lookCgroups(s.Dir) {
		if filepath.Base(cgroup) != c.name {
			continue
		}
		below := filepath.Join(cgroup, "below")
		s.Must(os.Mkdir(below, 0o755))
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} { // cgroup v1 only: a new cgroup has none set
			if text, err := os.ReadFile(filepath.Join(cgroup, file)); err == nil {
				s.Must(os.WriteFile(filepath.Join(below, file), text, 0o644))
			}
		}
	}
	for _, elsewhere := range []struct {
		cgroup string
		may    bool
	}{{"/below", true}, {"/..", false}, {"/../../..", false}} {
		out, err := e.invoke("exec", "--cgroup", elsewhere.cgroup, c.name, "sh", "-c", fmt.Sprintf("cat /proc/self/cgroup; /demo/cuda_hog 0; /demo/cuda_hog %d", quota))
		held := strings.Contains(out, "/below\n") && strings.Contains(out, fmt.Sprintf("holds 0 of %d\n", quota)) && strings.Contains(out, "CUDA_ERROR_OUT_OF_MEMORY")
		if elsewhere.may != held || err == nil {
			s.t.Errorf("exec --cgroup %s: %v\n%s", elsewhere.cgroup, err, out)
		}
	}
	// With crun the caller chooses the cgroup of a process.
	other := s.run(container{annotations: vram("2G")})
	out, err := e.invoke("exec", "--cgroup", "/../"+other, c.name, "/demo/cuda_hog", "0")
	if !strings.Contains(out, "sub cgroup path") && !strings.HasSuffix(out, fmt.Sprintf("holds 0 of %d\n", quota)) {
		s.t.Errorf("exec into another container's cgroup: %v\n%s", err, out)
	}
	s.works(c.name)
}
