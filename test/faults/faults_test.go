//go:build faults

// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// fault is a failure during operations. inject causes it, runs operations, ends it, and returns its outcome in a few words that
// do not depend on the seed, or "" if it was not possible.
type fault struct {
	name   string
	inject func(w *world, r *rand.Rand) string
	leases bool // needs a running lease service
}

func faults() []fault {
	list := []fault{
		{name: "enforcer killed while nothing happens", inject: killIdle},
		{name: "enforcer killed while all processes allocate", inject: killInStorm},
		{name: "enforcer killed while it registers or releases", inject: killInChange},
		{name: "enforcer stopped by SIGTERM while all processes allocate", inject: stopInStorm},
		{name: "enforcer away for a while", inject: away},
		{name: "enforcer stopped (SIGSTOP) for a while", inject: stopped},
		{name: "enforcer killed, and a process attaches before it is back", inject: attachMeanwhile},
		{name: "processes killed while they allocate", inject: killWorkers},
		{name: "process killed while it attaches", inject: killAttaching},
		{name: "hook killed at a system call", inject: killHookAtCall},
		{name: "hook killed at any moment", inject: killHookAnytime},
		{name: "disk full", inject: diskFull},
		{name: "disk full, and the enforcer killed", inject: diskFullAndKilled},
		{name: "run directory full", inject: runFull},
		{name: "run directory full, and the enforcer killed", inject: runFullAndKilled},
		{name: "state read-only when the enforcer starts", inject: readOnly},
		{name: "state becomes read-only", inject: stateTurnsReadOnly},
		{name: "state becomes read-only, and the enforcer killed", inject: stateTurnsReadOnlyAndKilled},
		{name: "disk fails", inject: diskFails},
		{name: "disk fails, and the enforcer killed", inject: diskFailsAndKilled},
		{name: "wall clock set by hours, days and years, to and fro", inject: jumpingClock},
		{name: "container frozen", inject: frozen},
		{name: "container frozen, and the enforcer killed", inject: frozenAndKilled},
		{name: "clients that send malformed requests on the control socket", inject: malformedRequests},
		{name: "processes that send nothing or malformed messages on the attach socket", inject: malformedAttaches},
		{name: "NVML fails", inject: func(w *world, r *rand.Rand) string { return w.breakNVML("fail", false) }},
		{name: "NVML fails, and the enforcer is killed", inject: func(w *world, r *rand.Rand) string { return w.breakNVML("fail", true) }},
		{name: "NVML hangs", inject: func(w *world, r *rand.Rand) string { return w.breakNVML("hang", false) }},
		{name: "ledger overwritten by a process of the slice", inject: overwriteLedger},
	}
	for _, point := range killPoints() {
		list = append(list, fault{name: "enforcer killed at `" + point + "`", inject: func(w *world, r *rand.Rand) string { return w.killAt(point, r) }})
	}
	return append(list, leaseFaults()...)
}

const repeated = 20

func onlyNamed(part string) []fault {
	var list []fault
	for _, f := range faults() {
		if strings.Contains(f.name, part) || part == "of leases" && f.leases {
			list = append(list, f)
		}
	}
	return slices.Repeat(list, repeated)
}

func (w *world) inject(f fault) {
	w.Helper()
	w.step++
	w.say("FAULT: %s", f.name)
	outcome := f.inject(w, w.random())
	w.mayFail, w.downReason = "", ""
	if f.leases {
		w.leased.check()
	}
	w.check()
	w.turnersGoOn()
	w.say("OVER: %s: %s", f.name, outcome)
	results.add(f.name, outcome)
}

func pause(r *rand.Rand, most time.Duration) time.Duration {
	return time.Duration(r.Int64N(int64(most)))
}

func (w *world) operations(n int) {
	for range n {
		w.operate()
	}
}

const whole = "nothing lost or leaked"

func killIdle(w *world, r *rand.Rand) string {
	w.restart(unix.SIGKILL)
	return whole
}

func killInStorm(w *world, r *rand.Rand) string { return inStorm(w, r, unix.SIGKILL) }
func stopInStorm(w *world, r *rand.Rand) string { return inStorm(w, r, unix.SIGTERM) }

func inStorm(w *world, r *rand.Rand, sig unix.Signal) string {
	w.populate(r)
	w.mayFail = "the enforcer is ended"
	wait := pause(r, 50*time.Millisecond)
	var err error
	if !storm(w, r, func() {
		time.Sleep(wait)
		err = w.daemon.ends(sig)
		time.Sleep(wait)
		err = errors.Join(err, w.daemon.launch("", 0))
	}) {
		return ""
	}
	w.must(err)
	w.must(w.daemon.up())
	return whole
}

func killInChange(w *world, r *rand.Rand) string {
	w.mayFail = "the enforcer is killed"
	w.trim(mostSlices - 1)
	before := slices.Clone(w.slices)
	for _, change := range []func(*world, *rand.Rand) bool{beginContainer, beginSession, releaseByForce, endSlice} {
		w.daemon.end(unix.SIGKILL)
		w.must(w.daemon.launch("", 20*time.Millisecond))
		w.must(w.daemon.up())
		cmd, _ := w.daemon.now()
		timer := time.AfterFunc(pause(r, 12*time.Millisecond), func() { _ = cmd.Process.Kill() })
		change(w, r)
		timer.Stop()
		_ = cmd.Process.Kill()
		w.eventually("the enforcer is started again", func() bool { newer, _ := w.daemon.now(); return newer != cmd })
		w.must(w.daemon.up())
		w.step++
	}
	w.mayFail = ""
	w.check()
	for _, s := range slices.Clone(w.slices) {
		if !slices.Contains(before, s) || s.state == released {
			w.stop(s)
		}
	}
	return whole
}

func (w *world) populate(r *rand.Rand) {
	for len(w.slices) < 3 {
		w.registerContainer(r)
	}
	for _, s := range w.slices {
		for s.state == active && !s.frozen && len(s.workers) < 2 && (s.session || !s.init.dead) && len(s.workers) > 0 {
			w.join(s)
		}
		for _, p := range slices.Clone(s.workers) {
			for device := range devices {
				if s.state == active && !s.frozen && !p.contexts[device] {
					p.makeContext(device)
				}
			}
		}
	}
}

// away: charges, refusals and returns work without an enforcer, as does reclaiming the memory of exited processes.
func away(w *world, r *rand.Rand) string {
	w.populate(r)
	w.daemon.end(unix.SIGKILL)
	w.downReason = "the enforcer is away"
	w.operations(8)
	if err := w.hook("prestart", &slice{id: w.name(), init: w.observer}); err == nil {
		w.fail("a container got a slice, but no enforcer runs")
	}
	w.start()
	return whole
}

func stopped(w *world, r *rand.Rand) string {
	w.populate(r)
	cmd, _ := w.daemon.now()
	w.must(cmd.Process.Signal(unix.SIGSTOP))
	w.downReason = "the enforcer is stopped"
	w.say("(hooks wait for their time, so slices end later)")
	for range 6 {
		w.step++
		r := w.random()
		[]func(*world, *rand.Rand) bool{allocate, free, allocateAll, killProcess, allocate, askTotal}[r.IntN(6)](w, r)
		w.check()
	}
	w.must(cmd.Process.Signal(unix.SIGCONT))
	return whole
}

func attachMeanwhile(w *world, r *rand.Rand) string {
	s := w.pickSlice(r, func(s *slice) bool { return s.state == active && len(s.workers) > 0 && (s.session || !s.init.dead) })
	if s == nil {
		s = w.registerContainer(r)
	}
	p := w.join(s)
	w.mayFail = "the enforcer is not there"
	w.daemon.end(unix.SIGKILL)
	begin := time.Now()
	p.writeLine("context 0")
	time.Sleep(pause(r, 500*time.Millisecond))
	w.start()
	p.tookContext(0, begin, p.readLine())
	w.mayFail = ""
	return whole
}

func killWorkers(w *world, r *rand.Rand) string {
	for range 3 {
		w.populate(r)
		if !storm(w, r, nil) {
			return ""
		}
		w.check()
	}
	return "all given back"
}

func killAttaching(w *world, r *rand.Rand) string {
	s := w.pickSlice(r, func(s *slice) bool { return s.state == active && len(s.workers) > 0 && (s.session || !s.init.dead) })
	if s == nil {
		s = w.registerContainer(r)
	}
	for range 5 {
		p := w.join(s)
		p.writeLine("context 0")
		time.Sleep(pause(r, 5*time.Millisecond))
		p.kill()
		w.check()
	}
	return "all given back"
}

// If its hook is killed, a container is not created: the runtime ends its init and runs poststop.
func killHookAtCall(w *world, r *rand.Rand) string {
	w.mayFail = "the hook is killed"
	calls := shuffled(r, []string{"connect", "openat2", "mkdirat", "flock", "pwrite64", "fstat", "open_tree", "mount_setattr", "move_mount", "write", "setns"})
	for _, call := range calls[:4] {
		inject := fmt.Sprintf("inject=%s:signal=KILL:when=%d", call, 1+r.IntN(2))
		w.say("the hook is killed at %s", inject)
		if s := w.registerContainer(r, "strace", "-f", "-o", "/dev/null", "-e", inject); s != nil {
			w.say("… it does not make that call")
			w.stopContainer(s)
		}
		w.mayFail = ""
		w.check()
		w.mayFail = "the hook is killed"
	}
	return whole
}

func killHookAnytime(w *world, r *rand.Rand) string {
	for range 4 {
		w.mayFail = "the hook is killed"
		limit := fmt.Sprintf("%.4f", (2*time.Millisecond + pause(r, 15*time.Millisecond)).Seconds())
		w.say("the hook is killed after %s s", limit)
		if s := w.registerContainer(r, "timeout", "--signal=KILL", limit); s != nil {
			w.say("… it was ready before")
			w.stopContainer(s)
		}
		w.mayFail = ""
		w.check()
	}
	return whole
}

func (w *world) trim(most int) {
	for len(w.slices) > most {
		w.stop(w.slices[0])
	}
}
