// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"testing"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

func TestKillEndsACgroupAndAllBelowIt(t *testing.T) {
	eachHierarchy(t, func(t *testing.T, p Path) {
		inner := below(t, p, "inner")
		theirIn, in, err := os.Pipe()
		must.Do(t, err)
		defer in.Close()
		defer theirIn.Close()
		out, theirOut, err := os.Pipe()
		must.Do(t, err)
		defer out.Close()
		// Both ignore SIGTERM. The first echoes its input, the second forks all the time.
		for cgroup, script := range map[Path]string{
			p:     `echo $$ >"$0/cgroup.procs"; trap "" TERM; while read -r line; do echo "$line"; done`,
			inner: `echo $$ >"$0/cgroup.procs"; trap "" TERM; while :; do sleep 0.01 & done`,
		} {
			cmd := exec.Command("/bin/sh", "-c", script, cgroup.Dir())
			if cgroup == p {
				cmd.Stdin, cmd.Stdout = theirIn, theirOut
			}
			must.Start(t, cmd)
			waitFor(t, "the process is in its cgroup", func() bool {
				pids, err := PIDs(cgroup)
				return err == nil && len(pids) > 0
			})
		}
		other := p
		other.Inode++
		if err := Kill(other); p.V2 && err != nil {
			t.Error("a cgroup with a reused path:", err)
		}
		theirOut.Close()
		must.Get(in.WriteString("alive\n"))(t)
		must.Equal(t, must.Get(bufio.NewReader(out).ReadString('\n'))(t), "alive\n", "the other cgroup at that path was killed")
		err = Kill(p)
		if !p.V2 {
			expect.ErrorIs(t, err, ErrNoKill)
			return
		}
		if errors.Is(err, ErrNoKill) {
			t.Skip("requires Linux 5.14")
		}
		must.Do(t, err)
		waitFor(t, "nobody is left", func() bool {
			must.Do(t, Kill(p))
			populated, err := Populated(p)
			return err == nil && !populated
		})
		p.Rel += "-none"
		expect.NoError(t, Kill(p), "one that is gone")
	})
}
