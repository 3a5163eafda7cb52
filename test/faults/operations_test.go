//go:build faults

// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

type operation struct {
	name          string
	weight        int
	needsEnforcer bool // skipped while it does not run
	// run performs it and updates the model. It returns false if it is impossible now.
	run func(w *world, r *rand.Rand) bool
}

func operations() []operation {
	return []operation{
		{"begin a container", 3, true, beginContainer},
		{"begin a session", 2, true, beginSession},
		{"begin a container that is not accepted", 1, true, beginRefused},
		{"begin a container that expires", 1, true, expire}, // it takes a second, so it follows an operation that is always possible
		{"begin a process", 6, true, beginProcess},
		{"join a session", 2, true, joinSession},
		{"make a context", 8, true, makeContext},
		{"allocate", 24, false, allocate},
		{"allocate the last byte", 6, false, allocateAll},
		{"free", 14, false, free},
		{"ask how much there is", 4, false, askTotal},
		{"fork", 2, false, forkChild},
		{"execute anew", 2, true, executeAnew},
		{"end a process", 3, false, endProcess},
		{"kill a process", 4, false, killProcess},
		{"end a slice", 2, false, endSlice},
		{"end a container without its hook", 2, false, loseContainer},
		{"kill `gpuslice run`", 1, true, killRun},
		{"release by force", 2, true, releaseByForce},
		{"release what runs", 2, true, releaseWhatRuns},
		{"show", 3, true, show},
		{"change a quota", 4, true, changeQuota},
		{"renew", 1, true, renew},
		{"begin a container that requests too much", 1, true, askTooMuch},
		{"create a pool", 3, true, createPool},
		{"change a pool", 3, true, changePool},
		{"delete a pool", 2, true, deletePool},
		{"begin a container in a pool", 4, true, beginMember},
		{"use a pool", 3, true, memberWork},
		{"hide memory from the ledger", 1, true, hide},
		{"kill an elastic container", 1, true, killTurner},
		{"suspend an elastic container", 2, true, suspendTurner},
		{"all at once", 2, false, func(w *world, r *rand.Rand) bool { return storm(w, r, nil) }},
	}
}

// operate runs the next random operation and compares the host with the model. If the operation is impossible, the next possible
// one in the list runs.
func (w *world) operate() {
	w.Helper()
	w.step++
	r := w.random()
	var list []operation
	for _, o := range operations() {
		list = append(list, slices.Repeat([]operation{o}, o.weight)...)
	}
	n := r.IntN(len(list))
	for i := range list {
		o := list[(n+i)%len(list)]
		if o.needsEnforcer && w.downReason != "" || !o.run(w, w.random()) {
			continue
		}
		w.steps++
		results.operation(o.name)
		break
	}
	w.check()
}

// oneOf is the zero value if the list is empty. It takes one number from r in any case, so that a seed gives the same round again.
func oneOf[T any](list []T, r *rand.Rand) (one T) {
	n := r.Uint64()
	if len(list) > 0 {
		one = list[n%uint64(len(list))]
	}
	return one
}

func (w *world) pickSlice(r *rand.Rand, fits func(*slice) bool) *slice {
	var list []*slice
	for _, s := range w.slices {
		if !s.frozen && s.state != unknown && fits(s) {
			list = append(list, s)
		}
	}
	return oneOf(list, r)
}

func (w *world) pickWorker(r *rand.Rand, fits func(*worker) bool) *worker {
	var list []*worker
	for _, s := range w.slices {
		for _, p := range s.workers {
			if !s.frozen && s.state != unknown && fits(p) {
				list = append(list, p)
			}
		}
	}
	return oneOf(list, r)
}

func beginContainer(w *world, r *rand.Rand) bool {
	if len(w.slices) >= mostSlices {
		return false
	}
	w.say("begin a container, gsf-…-%d", w.named+1)
	w.registerContainer(r)
	return true
}

func beginSession(w *world, r *rand.Rand) bool {
	if len(w.slices) >= mostSlices {
		return false
	}
	w.say("begin a session, gsf-…-%d", w.named+1)
	w.registerSession(r)
	return true
}

func beginRefused(w *world, r *rand.Rand) bool {
	annotations := []map[string]string{
		{}, {"gpuslice.vram": "0"}, {"gpuslice.vram": "much"}, {"gpuslice.varm": "1G", "gpuslice.vram": "1G"}, {"gpuslice.vram": "1G", "gpuslice.mode": "hope"},
	}[r.IntN(5)]
	s := &slice{id: w.name(), state: active}
	s.cgroup = w.newCgroup(s.id)
	w.add(s)
	w.say("begin a container with %v", annotations)
	w.create(s, annotations)
	if err := w.hook("prestart", s); err == nil {
		w.fail("a container with the annotations %v was accepted", annotations)
	}
	w.stopContainer(s)
	return true
}

func beginProcess(w *world, r *rand.Rand) bool {
	s := w.pickSlice(r, func(s *slice) bool {
		return len(s.workers) > 0 && len(s.workers) < mostWorkers && s.workers[0].run == nil && (s.session || !s.init.dead)
	})
	if s == nil {
		return false
	}
	w.say("begin a process in %s", s.id)
	w.join(s)
	return true
}

// How long a process first waits for an enforcer, and how long until it retries: FIRST_PATIENCE and RETRY_AFTER of the
// interceptor.
const (
	firstPatience = 5 * time.Second
	retryAfter    = time.Second
)

// granted checks an answer against the model for a request of that size, and reports whether it was granted.
func (p *worker) granted(answer string, device int, bytes uint64) bool {
	p.w.Helper()
	s, ok := p.slice, strings.HasPrefix(answer, "ok")
	if !ok && answer != "oom" {
		p.w.fail("process %d of %s was answered %q", p.pid, s.id, answer)
	}
	upper, lower := s.room(p.w, device)
	switch {
	case s.state == damaged:
	case s.mayRefuseAttach && !ok:
		p.retryAt = time.Now().Add(retryAfter)
	case (s.state == released || s.state == closed) && ok:
		p.w.fail("process %d was given %d bytes, but its slice %s is %s", p.pid, bytes, s.id, s.state)
	case s.state == active && ok && bytes > upper, s.state == active && !ok && bytes <= lower:
		p.w.fail("process %d of %s, which has %d of %v bytes on device %d and may take %d, asked for %d and was answered %q", p.pid, s.id,
			s.used(device), s.limits(), device, upper, bytes, answer)
	}
	return ok
}

func makeContext(w *world, r *rand.Rand) bool {
	device := r.IntN(devices)
	p := w.pickWorker(r, func(p *worker) bool { return !p.contexts[device] })
	if p == nil {
		return false
	}
	w.say("process %d of %s makes a context on device %d", p.pid, p.slice.id, device)
	p.makeContext(device)
	return true
}

func (p *worker) makeContext(device int) {
	p.w.Helper()
	time.Sleep(time.Until(p.retryAt))
	begin := time.Now()
	p.tookContext(device, begin, p.ask("context %d", device))
}

// tookContext handles the answer to a context request made at begin.
func (p *worker) tookContext(device int, begin time.Time, answer string) {
	p.w.Helper()
	p.w.say("… %s", answer)
	// A process that waited in vain, for a dead enforcer or on a stalled machine, does not wait again.
	end := time.Now()
	took := end.Sub(begin)
	stood := took >= firstPatience && took-machine.Between(begin, end) < firstPatience
	p.gaveUp = (p.gaveUp || took >= firstPatience) && answer == "oom"
	if p.gaveUp && (p.w.mayFail != "" || stood) {
		p.attached, p.retryAt = false, time.Now().Add(retryAfter) // only its former image was attached
		return
	}
	p.contexts[device] = p.granted(answer, device, contextBytes)
	p.gaveUp = p.gaveUp || p.slice.mayRefuseAttach && answer == "oom" // attached without room and refused for lack of quota
	if p.slice.state == active && (p.contexts[device] || !p.slice.mayRefuseAttach) {
		p.attached = true
	}
}

func size(r *rand.Rand) uint64 {
	return block * []uint64{1, 1 + r.Uint64N(8), 1 + r.Uint64N(64), 1 + r.Uint64N(1024)}[r.IntN(4)]
}

func allocate(w *world, r *rand.Rand) bool {
	device, bytes, kind := r.IntN(devices), size(r), r.IntN(2)
	p := w.pickWorker(r, func(p *worker) bool { return p.contexts[device] })
	if p == nil {
		return false
	}
	w.say("process %d of %s allocates %d on device %d", p.pid, p.slice.id, bytes, device)
	p.allocate(device, bytes, kind)
	return true
}

func (p *worker) allocate(device int, bytes uint64, kind int) {
	p.w.Helper()
	answer := p.ask("alloc %d %d %d", device, bytes, kind)
	if p.granted(answer, device, bytes) {
		number, err := strconv.Atoi(strings.TrimPrefix(answer, "ok "))
		p.w.must(err)
		p.held = append(p.held, allocation{number, device, bytes})
	}
	p.w.say("… %s", answer)
}

func allocateAll(w *world, r *rand.Rand) bool {
	device := r.IntN(devices)
	p := w.pickWorker(r, func(p *worker) bool { return p.contexts[device] && p.slice.state == active })
	if p == nil {
		return false
	}
	s := p.slice
	_, rest := s.room(w, device)
	w.say("process %d of %s takes the last %d bytes on device %d", p.pid, s.id, rest, device)
	if rest > 0 {
		p.allocate(device, rest, r.IntN(2))
	}
	p.allocate(device, block, r.IntN(2))
	return true
}

func free(w *world, r *rand.Rand) bool {
	p := w.pickWorker(r, func(p *worker) bool { return len(p.held) > 0 })
	if p == nil {
		return false
	}
	n := r.IntN(len(p.held))
	a := p.held[n]
	w.say("process %d of %s frees %d on device %d", p.pid, p.slice.id, a.bytes, a.device)
	if answer := p.ask("free %d", a.number); answer != "ok" {
		w.fail("process %d of %s was answered %q to a free", p.pid, p.slice.id, answer)
	}
	p.held = append(p.held[:n:n], p.held[n+1:]...)
	return true
}

func askTotal(w *world, r *rand.Rand) bool {
	device := r.IntN(devices)
	p := w.pickWorker(r, func(p *worker) bool { return p.contexts[device] && p.slice.state == active })
	if p == nil {
		return false
	}
	s := p.slice
	w.say("process %d of %s asks how much there is on device %d", p.pid, s.id, device)
	var left, total uint64
	answer := p.ask("total %d", device)
	_, err := fmt.Sscanf(answer, "ok %d %d", &left, &total)
	upper, _ := s.room(w, device)
	size := s.limit
	if s.pool != nil {
		size = min(size, s.pool.limit)
	}
	// Memory of a process that exited unnoticed stays charged until the enforcer is back or another process needs the bytes.
	if sure := w.downReason == "" && w.mayFail == ""; err != nil || left > upper || sure && (left != upper || total != size) {
		w.fail("process %d of %s got answer %q for device %d, want %d of %d", p.pid, s.id, answer, device, upper, size)
	}
	return true
}

func forkChild(w *world, r *rand.Rand) bool {
	device := r.IntN(devices)
	p := w.pickWorker(r, func(p *worker) bool { return p.contexts[device] })
	if p == nil {
		return false
	}
	w.say("process %d of %s forks, and its child allocates", p.pid, p.slice.id)
	const notInitialized = "ok 3"
	if got := p.ask("fork %d", device); got != notInitialized {
		w.fail("a forked child of process %d was answered %q", p.pid, got)
	}
	return true
}

// executeAnew executes a new image that requests CUDA again; the former image's memory is then returned.
func executeAnew(w *world, r *rand.Rand) bool {
	p := w.pickWorker(r, func(p *worker) bool { return p.attached && p.slice.state == active })
	if p == nil {
		return false
	}
	w.say("process %d of %s executes itself anew", p.pid, p.slice.id)
	if got := p.ask("exec"); got != fmt.Sprint("ready ", p.pid) {
		w.fail("the new image of process %d: %q", p.pid, got)
	}
	p.held, p.contexts = nil, [devices]bool{}
	p.makeContext(r.IntN(devices))
	return true
}
