//go:build engines

// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/test/must"
)

// churnCount returns the number of containers to start, by default 200; GPUSLICE_CHURN overrides it.
func churnCount(s *site) int {
	n := 200
	if text := os.Getenv("GPUSLICE_CHURN"); text != "" {
		n = must.Get(strconv.Atoi(text))(s.T)
	}
	return n
}

// churn starts and removes containers concurrently, and kills some of their processes.
func churn(s *site) {
	count, seed := churnCount(s), uint64(time.Now().UnixNano())
	s.t.Logf("seed %d", seed)
	var next atomic.Int64
	var group sync.WaitGroup
	for worker := range 4 {
		group.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(worker)))
			for next.Add(1) <= int64(count) {
				name := "churn" + strconv.FormatUint(names.Add(1), 10) + "-" + strconv.Itoa(os.Getpid())
				c := container{name: name, args: []string{"/demo/cuda_hog", strconv.Itoa((1 + r.IntN(3)) * gib)}}
				if out, err := s.engine.run(c.complete(s)); err != nil {
					s.t.Errorf("start %s: %v\n%s", name, err, out)
				} else {
					s.disturb(r, s.engine.id(name))
				}
				if out, err := s.engine.remove(name); err != nil {
					s.t.Errorf("remove %s: %v\n%s", name, err, out)
				}
			}
		})
	}
	group.Wait()
}

// disturb kills the first process of a container, those that hold memory, or none.
func (s *site) disturb(r *rand.Rand, id string) {
	time.Sleep(time.Duration(r.IntN(30)) * time.Millisecond)
	slice, err := s.Client.Slice(context.Background(), id)
	if err != nil {
		return
	}
	switch r.IntN(4) {
	case 0: // it is removed while it runs
	case 1:
		_ = unix.Kill(slice.PID, unix.SIGKILL)
	case 2:
		for _, p := range slice.Processes {
			_ = unix.Kill(p.PID, unix.SIGKILL)
		}
	case 3:
		_ = unix.Kill(slice.PID, unix.SIGTERM)
	}
}
