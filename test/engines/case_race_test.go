//go:build engines

// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/testhost"
)

// raceForTheLast has processes of two containers allocate the rest of the card in the smallest steps. Their quotas together
// exceed the card. Each charge for an allocation that the card refused must be undone.
func raceForTheLast(s *site) {
	const racers, step = 3, 2 * mib
	out, err := exec.Command("cc", "-std=gnu11", "-O1", "-Wall", "-o", s.in("fake", "racer"), "programs/racer.c", "-ldl").CombinedOutput()
	must.Do(s.t, err, out)
	start := s.in("fake", "go")
	defer os.Remove(start)
	containers := []string{s.run(container{annotations: vram("60G")}), s.run(container{annotations: vram("60G")})}
	outputs := map[string][]string{} // files, by container
	for _, name := range containers {
		must.True(s.t, strings.HasPrefix(s.hog(name, 36*gib).said, "holds "), "it got no memory")
		for i := range racers {
			file := fmt.Sprintf("racer-%s-%d", name, i)
			outputs[name] = append(outputs[name], file)
			defer os.Remove(s.in("fake", file))
			s.exec(name, "/bin/sh", "-c", fmt.Sprintf("/fake/racer /fake/go %d >/fake/%s 2>&1 </dev/null &", step, file))
		}
	}
	all := func(word string) func() bool {
		return func() bool {
			for _, files := range outputs {
				for _, file := range files {
					if text, _ := os.ReadFile(s.in("fake", file)); !strings.HasPrefix(testhost.LastLine(string(text)), word) {
						return false
					}
				}
			}
			return true
		}
	}
	s.Eventually("all have a context", all("ready"))
	s.Must(os.WriteFile(start, nil, 0o644))
	s.Eventually("the card is full", all("took "))
	total := 0
	for name, files := range outputs {
		took := 0
		for _, file := range files {
			text, _ := os.ReadFile(s.in("fake", file))
			n := must.Get(strconv.Atoi(strings.TrimPrefix(testhost.LastLine(string(text)), "took ")))(s.T)
			took += n
		}
		total += took
		want := uint64(36*gib + took*step)
		s.Eventually(fmt.Sprintf("the slice shows what its processes took, %d", want), s.Holds(s.id(name), want))
	}
	expect.True(s.t, total != 0, "no process allocated memory")
	for _, name := range containers {
		s.killHogs(s.id(name))
	}
}

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
