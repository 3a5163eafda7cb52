//go:build faults

// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"

	"github.com/gpuslice/gpuslice/api"
)

// hide has a container's process hold memory unknown to the interceptor. It checks that the enforcer applies its policy and that
// no memory remains.
func hide(w *world, r *rand.Rand) bool {
	s := w.pickSlice(r, func(s *slice) bool { return s.state == active && !s.mayRefuseAttach && !s.session && s.pool == nil })
	_, silent := os.Stat(w.nvmlFault())
	if s == nil || silent == nil || w.noTruth {
		return false
	}
	device, bytes := r.IntN(devices), 128*mib
	p := w.newWorker(s, exec.Command(programs["enter"], "hide", s.cgroup, "--", programs["worker"]))
	w.say("process %d of %s hides %d bytes from the ledger on device %d; the policy: %s", p.pid, s.id, bytes, device, w.policy)
	if said := p.readLine(); said != fmt.Sprint("ready ", p.pid) {
		w.fail("begin a process that hides: %q", said)
	}
	upper, lower := s.room(w, device)
	p.writeLine("context %d", device)
	first := p.readLine()
	p.writeLine("alloc %d %d 0", device, bytes)
	switch ok := strings.HasPrefix(first, "ok") && strings.HasPrefix(p.readLine(), "ok"); {
	case w.native && ok && bytes+contextBytes > upper:
		w.fail("the driver gave %d bytes to process %d of %s, which may have %d", bytes+contextBytes, p.pid, s.id, upper)
	case w.native && !ok && bytes+contextBytes > lower:
		w.say("… the driver refuses it")
		p.kill()
		return true
	case !ok && w.policy != api.Kill:
		w.fail("process %d, which hides, was refused %d bytes", p.pid, bytes)
	}
	sliceHas := func(is func(api.Slice) bool) func() bool {
		return func() bool {
			got, err := w.client.Slice(w.Context(), s.id)
			return err == nil && is(got)
		}
	}
	switch w.policy {
	case api.Kill:
		w.eventually("the process that hides is dead", func() bool { return !alive(p.pid) })
	case api.Refuse:
		w.eventually("the slice gets nothing more", sliceHas(func(got api.Slice) bool { return got.State == api.Frozen }))
		for _, honest := range s.workers {
			if !honest.contexts[device] {
				continue
			}
			if answer := honest.ask("alloc %d %d 0", device, block); answer != "oom" {
				w.fail("process %d of %s, which gets nothing more, was answered %q", honest.pid, s.id, answer)
			}
		}
	default:
		w.eventually("the violation is reported", sliceHas(func(got api.Slice) bool {
			for _, q := range got.Processes {
				if q.PID == p.pid && q.Bypass == api.BypassUnattached {
					return true
				}
			}
			return false
		}))
	}
	p.kill()
	w.eventually("the slice is as before", sliceHas(func(got api.Slice) bool { return s.differs(w, got) == nil }))
	return true
}
