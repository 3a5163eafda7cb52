// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"os/exec"
	"testing"
)

func TestKillEndsACgroupAndAllBelowIt(t *testing.T) {
	eachHierarchy(t, func(t *testing.T, p Path) {
		inner := below(t, p, "inner")
		// Neither ends when it is asked to; the second has another child all the while.
		for cgroup, script := range map[Path]string{
			p:     `echo $$ >"$0/cgroup.procs"; trap "" TERM; while :; do sleep 1; done`,
			inner: `echo $$ >"$0/cgroup.procs"; trap "" TERM; while :; do sleep 0.01 & done`,
		} {
			cmd := exec.Command("/bin/sh", "-c", script, cgroup.Dir())
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
			})
			waitFor(t, "it is in its cgroup", func() bool {
				pids, err := PIDs(cgroup)
				return err == nil && len(pids) > 0
			})
		}
		other := p
		other.Inode++
		if err := Kill(other); p.V2 && err != nil {
			t.Error("a cgroup whose path another one has:", err)
		}
		if populated, err := Populated(p); !populated || err != nil {
			t.Fatal("another cgroup of that path was killed:", err)
		}
		err := Kill(p)
		if !p.V2 {
			if !errors.Is(err, ErrNoKill) {
				t.Error(err)
			}
			return
		}
		if errors.Is(err, ErrNoKill) {
			t.Skip("requires Linux 5.14")
		}
		if err != nil {
			t.Fatal(err)
		}
		waitFor(t, "nobody is left", func() bool {
			if err := Kill(p); err != nil {
				t.Fatal(err)
			}
			populated, err := Populated(p)
			return err == nil && !populated
		})
		p.Rel += "-none"
		if err := Kill(p); err != nil {
			t.Error("one that is gone:", err)
		}
	})
}
