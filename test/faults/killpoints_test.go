//go:build faults

// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/testhost"
)

// killPoints returns the enforcer's kill points. It omits programs that checkpoint themselves and host memory with its cgroup
// and holder: only test/e2e covers these.
func killPoints() []string {
	return slices.DeleteFunc(killPointsIn("enforcer", "hostmem"), func(point string) bool {
		part, _, _ := strings.Cut(point, ".")
		return part == "suspend" || part == "host" || part == "holder"
	})
}

// killPointsIn returns the kill points in the sources below some directories.
func killPointsIn(dirs ...string) []string {
	points, err := testhost.KillPoints("../..", dirs...)
	if err != nil {
		panic(err)
	}
	return points
}

// killAt arms a point and runs operations until the enforcer dies at it. The enforcer is then restarted, as by systemd, while
// operations continue.
func (w *world) killAt(point string, r *rand.Rand) string {
	part, _, _ := strings.Cut(point, ".")
	if part == "restore" {
		w.populate(r)
		w.trim(mostSlices - 1)
		createPool(w, r)
		beginMember(w, r)
		w.populate(r)
		w.check()
	}
	if strings.HasPrefix(point, "pool.") {
		w.dropPools()
	}
	w.daemon.end(unix.SIGKILL)
	policy := w.policy
	w.configure(configuredFor(point, w.policy, r))
	if part == "restore" {
		w.downReason = "the enforcer is away"
		for range 4 {
			if killProcess(w, r) {
				w.check()
			}
			w.step++
			r = w.random()
		}
		w.downReason = ""
	}
	if strings.Contains(point, "pool") {
		part = "pool"
	}
	if strings.HasPrefix(point, "device.") { // with driver truth, all visible devices are known at the start
		w.must(os.WriteFile(w.nvmlFault(), []byte("fail"), 0o644))
		w.noTruth = true
	}
	w.mayFail = "the enforcer dies at " + point
	w.must(w.daemon.launch(point, time.Millisecond+pause(r, 100*time.Millisecond)))
	armed, _ := w.daemon.now()
	w.must(w.daemon.up())
	died := func() bool { return !alive(armed.Process.Pid) }
	// These operations reach the points of that part eventually; others are random.
	way := map[string][]func(*world, *rand.Rand) bool{
		"register": {beginContainer}, "release": {beginContainer, endSlice, releaseByForce, endSlice}, "attach": {beginContainer, beginProcess, makeContext, executeAnew},
		"death": {beginContainer, beginProcess, makeContext, killProcess}, "device": {beginContainer, beginProcess, makeContext},
		"set": {beginContainer, changeQuota}, "expire": {expire}, "policy": {beginContainer, makeContext, hide}, "join": {beginSession, joinSession, killProcess},
		"pool": {createPool, beginMember, memberWork, changePool, deletePool},
	}[part]
	for n := 0; n < 8 || n < 40 && !died(); n++ {
		w.step++
		if len(way) > 0 && n%2 == 0 {
			w.trim(mostSlices - 1)
			way[n/2%len(way)](w, w.random())
			w.check()
		} else {
			w.operate()
		}
		time.Sleep(10 * time.Millisecond) // the kernel reports exits asynchronously
		if !alive(armed.Process.Pid) {    // so that the next operation finds a running enforcer
			w.must(w.daemon.up())
		}
	}
	passed := died()
	w.must(os.RemoveAll(w.nvmlFault()))
	if !passed || w.noTruth {
		w.noTruth = false
		w.restart(unix.SIGKILL)
	}
	if err := w.daemon.up(); err != nil {
		w.fail("after a death at %s: %v", point, err)
	}
	w.mayFail = ""
	w.check()
	if w.native || w.policy != policy {
		w.configure(policy, false)
		w.restart(unix.SIGTERM)
		w.check()
	}
	if !passed {
		return "not passed"
	}
	return "nothing lost or leaked"
}

// configuredFor returns the settings with which an enforcer passes the point.
func configuredFor(point string, policy api.Action, r *rand.Rand) (_ api.Action, native bool) {
	switch {
	case point == "policy.killed":
		policy = api.Kill
	case point == "policy.found":
		policy = []api.Action{api.Log, api.Refuse, api.Kill}[r.IntN(3)]
	case strings.HasPrefix(point, "policy."):
		policy = api.Refuse
	}
	return policy, strings.HasSuffix(point, "limited")
}
