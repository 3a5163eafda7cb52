//go:build faults

// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	gpu "github.com/gpuslice/gpuslice/lease"
)

func leaseFaults() []fault {
	of := func(name string, inject func(l *leased, r *rand.Rand)) fault {
		return fault{name: name, leases: true, inject: func(w *world, r *rand.Rand) string {
			inject(w.leased, r)
			return whole
		}}
	}
	list := []fault{
		of("broker killed while its client works", killBrokers),
		of("lease service killed while nothing happens", func(l *leased, _ *rand.Rand) { l.restart(unix.SIGKILL, "") }),
		of("lease service stopped by SIGTERM while nothing happens", func(l *leased, _ *rand.Rand) { l.restart(unix.SIGTERM, "") }),
		of("lease service and enforcer killed at once", killBoth),
		of("enforcer killed while leases are acquired, used and dropped", killUnderLeases),
		of("client killed while it acquires a lease", killAcquiring),
		of("lease expires while no lease service runs", expireAlone),
	}
	for _, point := range leasePoints {
		list = append(list, fault{name: "enforcer killed at `" + point + "` with a lease under way", leases: true, inject: func(w *world, r *rand.Rand) string {
			return w.leased.killEnforcerAt(point, r)
		}})
	}
	for _, point := range killPointsIn("lease/service") {
		list = append(list, of("lease service killed at `"+point+"`", func(l *leased, r *rand.Rand) { l.killAt(point, r) }))
	}
	for _, point := range killPointsIn("lease/broker", "cmd/gpuslice-broker") {
		who, _, _ := strings.Cut(point, ".")
		list = append(list, of(who+" killed at `"+point+"`", func(l *leased, r *rand.Rand) { l.killBrokerAt(point, r) }))
	}
	for _, f := range killPointsIn("lease", "cmd/gpuslice") {
		if strings.HasPrefix(f, "client.") {
			list = append(list, of("client killed at `"+f+"`", func(l *leased, r *rand.Rand) { l.killClientAt(f, r) }))
		}
	}
	return list
}

// leasePoints are the enforcer's kill points in a lease's life: from acquisition to end, and at recovery by a new enforcer.
var leasePoints = []string{
	"register.decided", "register.ledger", "register.dir", "register.stored", "register.listening", "register.done",
	"attach.assigned", "attach.live", "attach.stored", "attach.replied",
	"release.marked", "release.closed", "release.removed", "release.done", "death.seen", "death.settled",
	"expire.marked", "expire.closed", "expire.asked", "expire.noted", "expire.killed",
	"restore.ledger", "restore.listening",
}

// killEnforcerAt kills the enforcer at a point of a lease's life and restarts it. A lease without an answer must leave nothing.
func (l *leased) killEnforcerAt(point string, r *rand.Rand) string {
	w := l.w
	part, _, _ := strings.Cut(point, ".")
	request := gpu.Request{VRAM: leaseBytes}
	if part == "expire" {
		request.TTL = time.Second
	}
	w.daemon.end(unix.SIGKILL)
	w.must(w.daemon.launch(point, time.Millisecond+pause(r, 100*time.Millisecond)))
	armed, _ := w.daemon.now()
	w.must(w.daemon.up())
	died := func() bool { return !alive(armed.Process.Pid) }
	for n := 0; n < 5 && !died(); n++ {
		g, err := l.acquire(request)
		if err != nil {
			continue // the enforcer died
		}
		if part == "expire" {
			if point == "expire.noted" || point == "expire.killed" { // it ignores the request to end
				w.must(unix.Kill(l.record(g.ID).PID, unix.SIGSTOP))
			}
			w.eventually("lease "+g.ID+" ends with its time", func() bool {
				all, err := l.list()
				return err == nil && !slices.ContainsFunc(all, func(one *gpu.Lease) bool { return one.ID == g.ID })
			})
			g.close()
		} else {
			g.worksOn()
			g.give()
		}
		time.Sleep(10 * time.Millisecond) // the kernel reports exits asynchronously
	}
	passed := died()
	if !passed {
		w.restart(unix.SIGKILL)
	}
	w.must(w.daemon.up())
	l.leases[0].use()
	if !passed {
		return "not passed"
	}
	return whole
}

func (l *leased) kill(pid int) {
	l.w.Helper()
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		l.w.fail("kill process %d: %v", pid, err)
	}
}

func (l *leased) another() *granted {
	l.w.Helper()
	return l.mustAcquire(gpu.Request{VRAM: leaseBytes})
}

func (l *leased) restarted(g *granted, before int) {
	l.w.Helper()
	l.w.eventually("lease "+g.ID+" has another broker", func() bool { pid := l.record(g.ID).PID; return pid != before && alive(pid) })
}

func killBrokers(l *leased, r *rand.Rand) {
	g := l.another()
	for range 2 {
		l.w.must(g.open())
		ctx, cancel := within(patience)
		done := make(chan error, 1)
		go func() { done <- work(ctx, g.session) }()
		time.Sleep(pause(r, 20*time.Millisecond))
		before := l.record(g.ID).PID
		l.kill(before)
		if err := <-done; errors.Is(err, errWrong) {
			l.w.fail("%v", err)
		}
		cancel()
		g.worksOn()
		l.restarted(g, before)
	}
	g.give()
}

// killBoth: the broker keeps running while neither service runs.
func killBoth(l *leased, r *rand.Rand) {
	w := l.w
	w.must(l.end(unix.SIGKILL))
	w.daemon.end(unix.SIGKILL)
	l.leases[0].use()
	if r.IntN(2) == 0 {
		w.start()
		l.start("")
		return
	}
	w.must(l.launch("")) // before the enforcer
	w.start()
	l.up()
}

func killUnderLeases(l *leased, r *rand.Rand) {
	w := l.w
	for range 3 {
		w.daemon.end(unix.SIGKILL)
		w.must(w.daemon.launch("", time.Millisecond+pause(r, 20*time.Millisecond)))
		w.must(w.daemon.up())
		cmd, _ := w.daemon.now()
		timer := time.AfterFunc(pause(r, 300*time.Millisecond), func() { _ = cmd.Process.Kill() })
		g, err := l.acquire(gpu.Request{VRAM: leaseBytes})
		if err == nil {
			g.worksOn()
			g.give()
		}
		timer.Stop()
		_ = cmd.Process.Kill()
		w.eventually("the enforcer is started again", func() bool { newer, _ := w.daemon.now(); return newer != cmd })
		w.must(w.daemon.up())
		l.leases[0].use()
	}
}

// killAcquiring: a lease without an answer ends no later than its time to live.
func killAcquiring(l *leased, r *rand.Rand) {
	const ttl = "1s"
	for range 2 {
		cmd := exec.Command(binary(l.w, "gpuslice"), "lease", "--lease-socket", l.client.Socket, "acquire", "--vram", "64M", "--ttl", ttl)
		l.w.must(cmd.Start())
		time.Sleep(pause(r, 400*time.Millisecond))
		_ = cmd.Process.Kill()
		_ = l.w.reap(cmd)
	}
}

func expireAlone(l *leased, r *rand.Rand) {
	g := l.mustAcquire(gpu.Request{VRAM: leaseBytes, TTL: time.Second})
	pid := l.record(g.ID).PID
	l.w.must(l.end(unix.SIGKILL))
	l.w.eventually("the enforcer has ended its broker", func() bool { return !alive(pid) })
	l.start("")
}

// killAt kills the service at a point, by an operation that passes it.
func (l *leased) killAt(point string, r *rand.Rand) {
	w := l.w
	part, _, _ := strings.Cut(point, ".")
	var g *granted
	if part == "end" || part == "restart" {
		g = l.another()
	}
	l.restart(unix.SIGKILL, point)
	armed, _ := l.now()
	dead := func() bool { return !alive(armed.Process.Pid) }
	if part != "takeup" {
		l.up()
	}
	switch part {
	case "takeup":
	case "acquire":
		if g, err := l.acquire(gpu.Request{VRAM: leaseBytes}); err == nil {
			w.fail("lease %s is answered by a service that died at %s", g.ID, point)
		}
		l.up()
		l.unanswered(point == "acquire.stored" || point == "acquire.done")
		g = l.another() // a new request succeeds
		g.worksOn()
		g.give()
	case "renew":
		ctx, cancel := within(patience)
		defer cancel()
		if _, err := l.client.Renew(ctx, l.leases[0].ID, time.Hour); err == nil {
			w.fail("a renewal is answered by a service that died at %s", point)
		}
		l.up()
		shown, err := l.client.Show(ctx, l.leases[0].ID)
		w.must(err)
		// Expiry is shown to a second.
		if shown.Expires == nil || time.Until(*shown.Expires) < 59*time.Minute || time.Until(*shown.Expires) > time.Hour+time.Second {
			w.fail("the lease was renewed for an hour, but expires %v", shown.Expires)
		}
	case "restart":
		before := l.record(g.ID).PID
		l.kill(before)
		w.eventually("the service dies at "+point, dead)
		l.up()
		g.worksOn()
		l.restarted(g, before)
		g.give()
	case "end":
		ctx, cancel := within(patience)
		defer cancel()
		if _, err := l.client.Drop(ctx, g.ID); err == nil {
			w.fail("a drop is answered by a service that died at %s", point)
		}
		l.up() // the next service completes the drop without another request
	}
	w.eventually("the service dies at "+point, dead)
	l.up()
}

// unanswered checks a lease without an answer: if it exists, its owner finds it in the list, can use it and drops it.
func (l *leased) unanswered(there bool) {
	w := l.w
	w.Helper()
	all, err := l.list()
	w.must(err)
	found := 0
	for _, one := range all {
		if one.ID == l.leases[0].ID {
			continue
		}
		found++
		g := &granted{Lease: one, l: l}
		g.worksOn()
		g.give()
	}
	if want := map[bool]int{true: 1}[there]; found != want {
		w.fail("%d unreported leases, want %d", found, want)
	}
}

func (l *leased) killBrokerAt(point string, r *rand.Rand) {
	w := l.w
	if point == "broker.configured" || point == "broker.opened" || point == "broker.ready" {
		// First at an acquisition, then at a broker's restart.
		l.arm(point)
		if g, err := l.acquire(gpu.Request{VRAM: leaseBytes}); err == nil {
			g.worksOn()
			g.give()
		} else if point == "broker.ready" {
			w.fail("a lease with a broker that exited after it served: %v", err)
		}
		g := l.another()
		l.arm(point)
		l.kill(l.record(g.ID).PID)
		w.eventually("a broker dies at "+point, func() bool { return !l.armed() })
		g.worksOn()
		g.give()
		return
	}
	l.arm(point)
	g, err := l.acquire(gpu.Request{VRAM: leaseBytes})
	w.must(err)
	before := l.record(g.ID)
	g.worksOn()
	l.restarted(g, before.PID)
	g.worksOn()
	g.give()
}

// Environment of this program run as a client.
const (
	clientAddress = "FAULTS_LEASE_ADDRESS"
	clientToken   = "FAULTS_LEASE_TOKEN"
)

func leaseClient(address string) int {
	ctx, cancel := within(patience)
	defer cancel()
	var err error
	if kernels, err = os.ReadFile("../lease/examples/kernels.ptx"); err != nil {
		return 1
	}
	s, err := gpu.Open(ctx, address, os.Getenv(clientToken))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	_ = work(ctx, s)
	fmt.Println("done")
	_ = s.Sync(ctx) // until the broker is killed
	for ctx.Err() == nil {
		_ = work(ctx, s)
	}
	return 1
}

// killClientAt kills a client at a point. With a linger time its memory is returned once no client is connected; otherwise
// another client continues.
func (l *leased) killClientAt(point string, r *rand.Rand) {
	w := l.w
	request := gpu.Request{VRAM: leaseBytes}
	if point != "client.lost" && r.IntN(2) == 0 { // a broker with the default linger waits longer for its clients
		linger := 10 * time.Millisecond
		request.Linger = &linger
	}
	if point == "client.answered" {
		cmd := exec.Command(binary(w, "gpuslice"), "lease", "--lease-socket", l.client.Socket, "acquire", "--vram", "64M")
		cmd.Env = append(os.Environ(), killpoint.Env+"="+point)
		w.must(cmd.Start())
		_ = w.reap(cmd)
		l.unanswered(true)
		return
	}
	g := l.mustAcquire(request)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), killpoint.Env+"="+point, clientAddress+"="+g.Address, clientToken+"="+g.TokenFile)
	out, err := cmd.StdoutPipe()
	w.must(err)
	cmd.Stderr = os.Stderr
	w.must(cmd.Start())
	if point == "client.lost" {
		if _, err := out.Read(make([]byte, 16)); err != nil {
			w.fail("a client has not done its work: %v", err)
		}
		l.kill(l.record(g.ID).PID)
	}
	err = w.reap(cmd)
	if status, ok := cmd.ProcessState.Sys().(interface{ Signal() unix.Signal }); !ok || status.Signal() != unix.SIGKILL {
		w.fail("a client that was to die at %s: %v", point, err)
	}
	if request.Linger != nil {
		return // no new client is needed
	}
	w.must(g.open())
	w.eventually("the dead client's connections and memory are given back", func() bool {
		ctx, cancel := within(patience)
		defer cancel()
		stats, err := g.session.Stats(ctx)
		return err == nil && stats.GetClients() == 1 && stats.GetShared() == 0
	})
	g.worksOn()
	g.give()
}
