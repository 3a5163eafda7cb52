// SPDX-License-Identifier: Apache-2.0

package core

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/admission/refusal"
	"github.com/gpuslice/gpuslice/test/must"
)

var (
	steps = flag.Int("steps", 30_000, "commands, facts and effects of the model test, each followed by all invariants")
	first = flag.Uint64("seed", 0, "the first seed of the model test")
)

// size is what sizes of the model are multiples of.
const size = 64 << 20

// world is the disk, the driver, the processes and the clients. It carries effects out in any order that keeps those of one key in theirs: late, twice, or
// never if the daemon is killed first.
type world struct {
	t      *testing.T
	r      *rand.Rand
	config Config
	c      *Core
	user   *refusal.User

	todo    []Effect
	answers []Fact // that are on their way to the core
	late    []Fact // figures that are longer on their way
	pages   map[uint64]*page
	disk    map[uint64]Record
	told    map[uint64]Command // by client: who is not answered yet
	acked   map[uint64]bool    // generations that a client was told of

	clients               uint64
	now                   time.Duration
	calm                  bool // no effect fails any more
	steps, crashes, moves int
	log                   []line
}

// page is a ledger with the processes that have it.
type page struct {
	Ref
	pools     []*page
	unlimited bool
	limits    Bytes
	closed    bool
	away      bool   // calls wait
	op        uint64 // of the last effect on it
	listening bool
	alive     bool
	held      Bytes // on devices
	host      Bytes
	native    Bytes
	asked     bool // SIGTERM was sent
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{t: t, r: rand.New(rand.NewPCG(seed, 7)), now: time.Second, pages: make(map[uint64]*page), disk: make(map[uint64]Record),
		told: make(map[uint64]Command), acked: make(map[uint64]bool), user: &refusal.User{UID: 7, MaxVRAM: api.Share{Bytes: 60 * size}, MaxSessions: 2}}
	w.config = Config{
		Limits:  refusal.Limits{Reserve: 4 * size, MaxVRAM: api.Share{Bytes: 90 * size}, Tenants: map[string]api.Share{"t": {Bytes: 70 * size}}},
		Devices: []refusal.Device{{UUID: "a", Shown: "0 (a)", Total: 100 * size}, {UUID: "b", Shown: "1 (b)", Total: 120 * size}},
		MaxTTL:  time.Hour, Grace: 10 * time.Second,
		Elastic: Elastic{Overcommit: 2000, MinResident: 5 * time.Second, Quantum: 20 * time.Second, Patience: time.Minute, MaxPriority: 5},
	}
	switch seed % 8 {
	case 5:
		w.config.Limits.Overcommit = 1500
	case 6:
		w.config.Devices, w.config.Elastic.Off = nil, "there is no driver truth"
	}
	w.c = New(w.config)
	w.say("seed %d", seed)
	return w
}

// line is a line of the log, formatted when the test fails.
type line struct {
	format string
	args   []any
}

func (w *world) say(format string, args ...any) {
	const most = 80
	if len(w.log) == 2*most {
		w.log = append(w.log[:0], w.log[most:]...)
	}
	w.log = append(w.log, line{format, args})
}

func (w *world) fail(format string, args ...any) {
	w.t.Helper()
	for _, l := range w.log {
		w.t.Logf(l.format, l.args...)
	}
	for _, h := range w.c.holders {
		w.t.Logf("  %+v counts %v pending %+v page %+v", h.Record, h.counted, h.pending, w.pages[h.Generation])
	}
	w.t.Fatalf(format, args...)
}

// random returns limits of some devices, with the quotas that they come from.
func (w *world) random(most int) (limits Bytes, quotas []api.Quota) {
	limits, quotas = make(Bytes), []api.Quota{}
	for _, uuid := range []string{"a", "b"} {
		if w.r.IntN(3) > 0 {
			limits[uuid] = uint64(w.r.IntN(most)+1) * size
			quotas = append(quotas, api.Quota{Device: uuid, Bytes: limits[uuid]})
		}
	}
	return limits, quotas
}

func (w *world) do(cmd Command) {
	w.say("%T %+v", cmd, cmd)
	w.c.Do(cmd)
	w.take()
}

func (w *world) note(f Fact) {
	w.say("%T %+v", f, f)
	w.c.Note(f)
	w.take()
}

// client returns a client that has to be answered.
func (w *world) client() uint64 { w.clients++; return w.clients }

func (w *world) ask(cmd Command) {
	w.told[cmd.client()] = cmd
	w.do(cmd)
}

func (w *world) id() string   { return fmt.Sprint("s", w.r.IntN(9)) }
func (w *world) pool() string { return fmt.Sprint("p", w.r.IntN(3)) }

// step is one command, fact or effect.
func (w *world) step() {
	w.steps++
	switch n := w.r.IntN(100); {
	case n < 12:
		w.command()
	case n < 24:
		w.process()
	case n < 29:
		w.now += time.Duration(w.r.IntN(4000)) * time.Millisecond
		w.note(Tick{w.now})
	case n < 30:
		w.note(Tick{w.now - time.Hour}) // earlier than the last one
	case n < 31:
		if w.r.IntN(3) == 0 {
			w.crash()
		}
	default:
		if w.r.IntN(2) == 0 || !w.deliver() {
			w.effect()
		}
	}
	w.check()
}

func (w *world) command() {
	r := w.r
	switch n := r.IntN(100); {
	case n < 34:
		w.register()
	case n < 44:
		id, ttl := w.id(), time.Duration(r.IntN(100))*time.Second
		limits, quotas := w.random(60)
		h := w.c.slices[id]
		cmd := Change{Client: w.client(), ID: id, Quotas: quotas, Limits: limits}
		if h != nil && (h.UID != nil || len(h.pools) > 0) {
			cmd.Quotas = nil
		}
		if h != nil {
			for uuid := range h.Limits {
				if limits[uuid] == 0 {
					limits[uuid] = size
				}
			}
		}
		if cmd.Quotas == nil || r.IntN(4) == 0 {
			cmd.TTL = &ttl
		}
		w.ask(cmd)
	case n < 58:
		w.ask(Release{Client: w.client(), ID: w.id(), Force: r.IntN(4) > 0})
	case n < 63:
		w.ask(Suspend{Client: w.client(), ID: w.id()})
	case n < 72:
		w.ask(Resume{Client: w.client(), ID: w.id()})
	case n < 76:
		w.ask(Attach{Client: w.client(), ID: w.id()})
	case n < 82:
		w.useDevice()
	case n < 90:
		limits, quotas := w.random(40)
		p := Record{ID: w.pool(), Limits: limits, Quotas: quotas, Elastic: w.config.Devices != nil && r.IntN(2) == 0, Private: r.IntN(5) == 0}
		if r.IntN(4) == 0 {
			p.Tenant = "t"
		}
		w.ask(CreatePool{Client: w.client(), Pool: p})
	case n < 96:
		limits, quotas := w.random(40)
		if p := w.c.pools[w.pool()]; p != nil {
			for uuid := range p.Limits {
				if limits[uuid] == 0 {
					limits[uuid] = size
					quotas = append(quotas, api.Quota{Device: uuid, Bytes: size})
				}
			}
			w.ask(ChangePool{Client: w.client(), ID: p.ID, Limits: limits, Quotas: quotas})
		}
	default:
		w.ask(DeletePool{Client: w.client(), ID: w.pool()})
	}
}

func (w *world) register() {
	r := w.r
	s := Record{ID: w.id(), Elastic: w.config.Devices != nil && r.IntN(2) == 0, Priority: r.IntN(4), Native: r.IntN(2) == 0}
	s.Limits, s.Quotas = w.random(70)
	cmd := Register{Client: w.client(), Grant: r.IntN(4) == 0}
	switch r.IntN(10) {
	case 0, 1:
		s.Tenant = "t"
	case 2, 3:
		s.UID, cmd.User = &w.user.UID, w.user
	case 4, 5, 6:
		s.Pools = []string{w.pool()}
		if r.IntN(3) == 0 {
			s.Pools = []string{"p0", "p1"}
		}
		s.Elastic, s.Limits, s.Quotas = false, make(Bytes), nil
		for _, name := range s.Pools {
			if p := w.c.pools[name]; p != nil {
				for uuid := range p.Limits {
					s.Limits[uuid] = NoLimit
				}
			}
		}
	case 7:
		s.Unlimited, s.Elastic = true, false
	}
	if r.IntN(4) == 0 {
		s.TTL = time.Duration(r.IntN(200)+1) * time.Second
	}
	if !s.Elastic {
		s.Priority = 0
	}
	cmd.Slice = s
	w.ask(cmd)
}

func (w *world) useDevice() {
	uuid := []string{"a", "b"}[w.r.IntN(2)]
	cmd := UseDevice{Client: w.client(), ID: w.id(), Device: uuid, Bytes: uint64(w.r.IntN(30)+1) * size}
	h := w.c.slices[cmd.ID]
	switch {
	case h != nil && h.UID != nil:
		cmd.Bytes = 0
	case h != nil && len(h.pools) > 0:
		cmd.Bytes = NoLimit
	}
	w.ask(cmd)
}

// process has processes charge, free, ask and end, and the enforcer's adapters report it.
func (w *world) process() {
	p := w.some()
	if p == nil {
		return
	}
	uuid := []string{"a", "b"}[w.r.IntN(2)]
	switch n := w.r.IntN(100); {
	case n < 45:
		if n := uint64(w.r.IntN(40)+1) * size; p.Kind == Slice && p.mayCharge(w, uuid, n) {
			p.held[uuid] += n
			w.say("%s charges %d of %s", p.ID, n/size, uuid)
		}
	case n < 55:
		p.held[uuid] -= min(p.held[uuid], uint64(w.r.IntN(40))*size)
	case n < 75:
		w.late = append(w.late, Used{p.Generation, p.op, w.used(p), w.r.IntN(4) == 0})
	case n < 88:
		for range 4 {
			if p = w.some(); p.alive && p.away {
				w.do(AskReturn{p.ID})
				break
			}
		}
	case n < 96:
		if p.alive && p.Kind == Slice {
			w.end(p)
		}
	case n < 97:
		w.answers = append(w.answers, Tampered{p.Generation, "it was overwritten"})
	default:
		w.answers = append(w.answers, Excess{p.Generation, []string{"", "a process holds more"}[w.r.IntN(2)]})
	}
}

// some returns a page; nil if there is none.
func (w *world) some() *page {
	if len(w.pages) == 0 {
		return nil
	}
	generations := slices.Sorted(maps.Keys(w.pages))
	return w.pages[generations[w.r.IntN(len(generations))]]
}

// end has all processes of a slice end.
func (w *world) end(p *page) {
	p.alive = false
	clear(p.held)
	clear(p.host)
	w.say("the processes of %s (%d) end", p.ID, p.Generation)
	w.answers = append(w.answers, Empty{p.Generation})
}

// used is what a ledger says is charged: of a pool also what its members have on the host.
func (w *world) used(p *page) Bytes {
	if p.Kind == Slice {
		return maps.Clone(p.held)
	}
	sum := make(Bytes)
	for _, m := range w.pages {
		if slices.Contains(m.pools, p) {
			for _, b := range []Bytes{m.held, m.host} {
				for uuid, n := range b {
					sum[uuid] += n
				}
			}
		}
	}
	return sum
}

// mayCharge is the interceptor's rule.
func (p *page) mayCharge(w *world, uuid string, n uint64) bool {
	limit, has := p.limits[uuid]
	switch {
	case !p.listening || !p.alive || p.closed || p.away || !has:
		return false
	case p.unlimited:
		return true
	case limit != NoLimit && p.held[uuid]+n > limit:
		return false
	}
	for _, pool := range p.pools {
		if limit, has := pool.limits[uuid]; has {
			return !pool.closed && w.used(pool)[uuid]+n <= limit
		}
	}
	return len(p.pools) == 0
}

// crash is a SIGKILL of the daemon: an effect that was under way may be done, and is not answered.
func (w *world) crash() {
	w.crashes++
	w.say("crash: %d effects are lost", len(w.todo))
	for range w.r.IntN(4) {
		w.carryOut(w.pick(), false)
	}
	w.todo, w.answers, w.late = nil, nil, nil
	w.now += time.Millisecond
	clear(w.told)
	maps.DeleteFunc(w.pages, func(generation uint64, _ *page) bool { _, stored := w.disk[generation]; return !stored })
	w.c = Restore(w.config, w.now, slices.Collect(maps.Values(w.disk)), func(r *Record) *refusal.User { return w.user })
	w.take()
	for _, generation := range slices.Sorted(maps.Keys(w.pages)) {
		p := w.pages[generation]
		p.op = 0
		if p.Kind == Slice && !p.alive {
			w.answers = append(w.answers, Empty{p.Generation})
		}
	}
}

// take takes what the core wants to be done, and checks what it says.
func (w *world) take() {
	for _, e := range w.c.Take() {
		switch e := e.(type) {
		case Reply:
			w.checkReply(e)
		case MoveOut:
			w.checkMoveOut(e)
		case Store:
			w.checkEvicted(e)
		case End:
			if h := w.holder(e.Generation); h == nil || h.Phase != Expiring {
				w.fail("the processes of %s are to end, which is not expired", e.ID)
			}
		}
		w.todo = append(w.todo, e)
	}
}

func (w *world) holder(generation uint64) *holder {
	if i, is := w.c.index(generation); is {
		return w.c.holders[i]
	}
	return nil
}

// pick removes an effect before which none of its key is to be done; nil if there is none.
func (w *world) pick() Effect {
	if len(w.todo) == 0 {
		return nil
	}
	i := w.r.IntN(len(w.todo))
	for j := range i {
		if w.todo[j].Key() == w.todo[i].Key() {
			i = j
			break
		}
	}
	e := w.todo[i]
	w.todo = slices.Delete(w.todo, i, i+1)
	return e
}

func (w *world) effect() {
	if e := w.pick(); e != nil {
		w.carryOut(e, true)
	}
}

// deliver has the core know one fact that is on its way.
func (w *world) deliver() bool {
	if len(w.late) > 0 && (w.calm || w.r.IntN(20) == 0) {
		i := w.r.IntN(len(w.late))
		w.answers = append(w.answers, w.late[i])
		w.late = slices.Delete(w.late, i, i+1)
	}
	if len(w.answers) == 0 {
		return false
	}
	i := w.r.IntN(len(w.answers))
	f := w.answers[i]
	w.answers = slices.Delete(w.answers, i, i+1)
	w.note(f)
	return true
}

var errNo = errors.New("it failed")

func (w *world) fails(of int) error {
	if !w.calm && w.r.IntN(of) == 0 {
		return errNo
	}
	return nil
}

// carryOut carries an effect out, at times twice, and answers it.
func (w *world) carryOut(e Effect, answered bool) {
	if e == nil {
		return
	}
	w.say("  %T %+v", e, e)
	f := w.carryOutOnce(e)
	for again := w.r.IntN(8) == 0; ; again = false {
		if f != nil && answered {
			w.answers = append(w.answers, f)
		}
		if !again || failed(f) {
			return
		}
		if reply, is := e.(Reply); is {
			w.told[reply.Client] = nil // sent twice, as any effect
		}
		calm := w.calm
		w.calm = true // it succeeds again
		f = w.carryOutOnce(e)
		w.calm = calm
	}
}

func failed(f Fact) bool {
	switch f := f.(type) {
	case Made:
		return f.Err != nil
	case Stored:
		return f.Err != nil
	case Opened:
		return f.Err != nil
	case Limited:
		return f.Err != nil
	case Moved:
		return f.Err != nil
	}
	return false
}

func (w *world) carryOutOnce(e Effect) Fact {
	p := w.pages[e.Key()]
	switch e := e.(type) {
	case Make:
		err := w.fails(20)
		if err == nil && p == nil {
			w.make(e)
		}
		return Made{e.Op, err}
	case Store:
		err := w.fails(12)
		if err == nil {
			w.store(e.Record)
		}
		return Stored{e.Op, err}
	case Forget:
		err := w.fails(12)
		if err == nil {
			w.forget(e)
		}
		return Stored{e.Op, err}
	case Listen:
		err := w.fails(20)
		if e.Op == 0 {
			err = nil
		}
		if err == nil && p != nil {
			p.listening = true
		}
		if e.Op != 0 {
			return Opened{e.Op, err}
		}
	case HangUp:
		delete(w.pages, e.Generation)
	case Limit:
		err := w.fails(60)
		if e.Op == 0 {
			err = nil
		}
		if err == nil || w.r.IntN(2) == 0 {
			p.limits, p.away = e.Limits, e.Away
		}
		if e.Op != 0 {
			return w.limited(p, e.Op, err)
		}
	case Close:
		err := w.fails(60)
		if e.Op == 0 {
			err = nil
		}
		if err == nil || w.r.IntN(2) == 0 {
			p.closed = true
		}
		if e.Op != 0 {
			return w.limited(p, e.Op, err)
		}
	case MoveOut:
		return w.moveOut(p, e)
	case MoveIn:
		return w.moveIn(p, e)
	case NativeLimit:
		if p != nil {
			p.native = e.Limits
		}
	case Reply:
		if _, asked := w.told[e.Client]; !asked {
			w.fail("client %d is answered twice, or never asked", e.Client)
		}
		delete(w.told, e.Client)
	case End:
		if e.Kill && !p.asked {
			w.fail("%s is killed, and was not asked to end", e.ID)
		}
		if p.asked = true; e.Kill && p.alive {
			w.end(p)
		}
	}
	return nil
}

func (w *world) limited(p *page, op uint64, err error) Fact {
	if err == nil {
		p.op = op
	}
	return Limited{op, err}
}

func (w *world) make(e Make) {
	h := w.holder(e.Generation)
	p := &page{Ref: e.Ref, limits: e.Limits, away: e.Away, alive: true, held: make(Bytes), host: make(Bytes), unlimited: h != nil && h.Unlimited}
	if h != nil {
		for _, pool := range h.pools {
			p.pools = append(p.pools, w.pages[pool.Generation])
		}
	}
	w.pages[e.Generation] = p
}

func (w *world) store(r Record) {
	if was, known := w.disk[r.Generation]; known && was.Phase > r.Phase {
		w.fail("%s of phase %d is stored with phase %d", r.ID, was.Phase, r.Phase)
	}
	if r.Phase == Admitted {
		w.fail("%s is stored as not stored", r.ID)
	}
	if p := w.pages[r.Generation]; r.Phase == Lingering && p.alive && len(p.host.without0()) > 0 {
		w.fail("%s is released, and its memory is on the host", r.ID)
	}
	w.disk[r.Generation] = r
}

func (w *world) forget(e Forget) {
	p := w.pages[e.Generation]
	if p != nil && len(p.held.without0()) > 0 && !p.unlimited {
		w.fail("%s is forgotten, and holds %v", e.ID, p.held)
	}
	if p != nil && p.Kind == Slice && p.alive && p.listening {
		w.fail("%s is forgotten, and has processes", e.ID)
	}
	for _, m := range w.pages {
		if _, stored := w.disk[m.Generation]; stored && slices.Contains(m.pools, p) {
			w.fail("pool %s is forgotten, and has member %s", e.ID, m.ID)
		}
	}
	delete(w.disk, e.Generation)
	delete(w.acked, e.Generation)
}

func (w *world) moveOut(p *page, e MoveOut) Fact {
	if err := w.fails(8); err != nil {
		return Moved{Op: e.Op, Stuck: w.r.IntN(2) == 0, Err: err}
	}
	w.moves++
	p.away, p.op = true, e.Op
	for uuid, n := range p.held {
		stays := min(n, e.Stay[uuid])
		p.host[uuid] += n - stays
		p.held[uuid] = stays
	}
	return Moved{Op: e.Op, Left: maps.Clone(p.held)}
}

func (w *world) moveIn(p *page, e MoveIn) Fact {
	if err := w.fails(8); err != nil {
		p.away = true
		return Moved{Op: e.Op, Left: maps.Clone(p.held), Err: err}
	}
	for uuid, n := range p.host {
		p.held[uuid] += n
	}
	clear(p.host)
	p.away, p.op = false, e.Op
	return Moved{Op: e.Op}
}

// checkMoveOut: the store knows of a move before it begins.
func (w *world) checkMoveOut(e MoveOut) {
	h := w.holder(e.Generation)
	if r, stored := w.disk[h.Generation]; !stored || r.Residence != h.Residence {
		w.fail("%s is moved, and the store does not know", h.ID)
	}
}

// checkEvicted: only idle elastic slices, and those beyond their quantum, are evicted.
func (w *world) checkEvicted(e Store) {
	h, o := w.holder(e.Generation), w.config.Elastic
	if e.Record.Residence != Leaving || h.Residence != Resident || e.Record.Manual {
		return
	}
	idle, stay := w.c.now-h.active, w.c.now-h.returned
	if !h.Elastic || min(idle, stay) < o.MinResident && stay < o.Quantum {
		w.fail("%s is evicted, is idle for %s, and returned %s ago", h.ID, idle, stay)
	}
}

// checkReply: a reply without an error is true, and so is the store.
func (w *world) checkReply(e Reply) {
	if e.Err != nil {
		return
	}
	cmd := w.told[e.Client]
	if cmd == nil {
		return
	}
	kind, id := cmd.target()
	h := w.c.find(kind, id)
	stored := func(what string, is func(*Record, *page) bool) {
		if h == nil {
			w.fail("%s of %s is answered, and it is gone", what, id)
		}
		r, p := w.disk[h.Generation], w.pages[h.Generation]
		if !is(&r, p) {
			w.fail("%s of %s is answered, and the store has %+v, the page %+v", what, id, r, p)
		}
	}
	switch cmd := cmd.(type) {
	case Register:
		w.acked[h.Generation] = true
		stored("Register", func(r *Record, p *page) bool { return r.Phase == Live && p.listening })
	case CreatePool:
		stored("CreatePool", func(r *Record, p *page) bool { return r.Phase == Live && p != nil })
	case Change:
		stored("Change", func(r *Record, p *page) bool {
			return cmd.Quotas == nil || maps.Equal(r.Limits, cmd.Limits) && (p.closed || maps.Equal(p.limits, r.page()))
		})
	case ChangePool:
		stored("ChangePool", func(r *Record, p *page) bool {
			return maps.Equal(r.Limits, cmd.Limits) && (p.closed || maps.Equal(p.limits, cmd.Limits))
		})
	case Suspend:
		stored("Suspend", func(r *Record, p *page) bool { return r.Residence == Away && r.Manual && (p.away || !p.alive) })
	case Resume:
		stored("Resume", func(r *Record, p *page) bool { return r.Residence == Resident && !p.away })
	case Release:
		if h != nil && h.Phase != Admitted && h.pending == nil {
			w.fail("%s is released, and is there", id)
		}
	}
}

// check has the invariants that hold after each step.
func (w *world) check() {
	w.checkSums()
	w.checkMemory()
	w.checkOperations()
	for _, h := range w.c.holders {
		w.checkRecord(h)
		w.checkPage(h)
		w.checkIndex(h)
	}
}

// checkSums: the cache is what the holders add up to, and no bound is exceeded.
func (w *world) checkSums() {
	c := w.c
	for uuid, s := range c.sums {
		var all, tenant, promised, user uint64
		sessions := 0
		for _, h := range c.holders {
			has := c.granted(h)[uuid]
			all, promised = all+has, promised+c.promise(h)[uuid]
			if h.Tenant == "t" {
				tenant += has
			}
			if h.UID != nil {
				sessions, user = sessions+1, user+has
			}
		}
		if s.all != all || s.tenants["t"] != tenant || s.promised != promised {
			w.fail("the sums of %s are %+v: the holders add up to %d, %d of the tenant, %d promised", uuid, s, all, tenant, promised)
		}
		if bound := w.config.Limits.Tenants["t"].Bytes; tenant > bound {
			w.fail("the tenant has %d of %s", tenant/size, uuid)
		}
		if sessions > w.user.MaxSessions {
			w.fail("the user has %d sessions", sessions)
		}
		if user > w.user.MaxVRAM.Bytes {
			w.fail("the user has %d of %s", user/size, uuid)
		}
		d := c.device(uuid)
		if d == nil {
			continue
		}
		if capacity := w.config.Limits.Capacity(d.Total); all > capacity {
			w.fail("%d of %s are granted: there are %d", all/size, uuid, capacity/size)
		}
		if most := refusal.Promisable(d.Total, w.config.Elastic.Overcommit); promised > most {
			w.fail("%d of %s are promised", promised/size, uuid)
		}
	}
}

// checkMemory: a device holds no more than was granted, nor does a slice or a pool.
func (w *world) checkMemory() {
	sum := make(Bytes)
	for _, p := range w.pages {
		h := w.holder(p.Generation)
		if p.unlimited || h == nil {
			continue
		}
		for uuid, n := range p.held {
			sum[uuid] += n
			if p.Kind == Slice && len(p.pools) == 0 && n > h.counted[uuid] {
				w.fail("%s holds %d of %s, and counts for %d", p.ID, n/size, uuid, h.counted[uuid]/size)
			}
		}
		if p.Kind != Pool {
			continue
		}
		for _, m := range h.members {
			for uuid, limit := range h.Limits {
				if o := m.pending; o != nil && !o.forget && o.next.Residence != Away && h.counted[uuid] < limit {
					w.fail("%s is on the way to devices, and %s counts for %d of %s", m.ID, h.ID, h.counted[uuid]/size, uuid)
				}
			}
		}
		members := make(Bytes)
		for _, m := range w.pages {
			if slices.Contains(m.pools, p) {
				for uuid, n := range m.held {
					members[uuid] += n
				}
			}
		}
		for uuid, n := range members {
			if _, its := h.Limits[uuid]; its && n > h.counted[uuid] {
				w.fail("the members of %s hold %d of %s, and it counts for %d", p.ID, n/size, uuid, h.counted[uuid]/size)
			}
		}
	}
	for uuid, n := range sum {
		if d := w.c.device(uuid); d != nil && n > w.config.Limits.Capacity(d.Total) {
			w.fail("%d of %s are held", n/size, uuid)
		}
	}
	for generation, r := range w.disk {
		h := w.holder(generation)
		if h == nil {
			w.fail("%s is stored, and unknown", r.ID)
		}
		if r.Kind == Slice {
			for uuid, n := range w.c.counts(&r) {
				if n > h.counted[uuid] {
					w.fail("%s counts for %d of %s, and for %d by the store", r.ID, h.counted[uuid]/size, uuid, n/size)
				}
			}
		}
	}
	for generation := range w.acked {
		if p := w.pages[generation]; p != nil && p.alive && w.holder(generation) == nil {
			w.fail("%s was registered, its client has the reply, and it is lost", p.ID)
		}
	}
}

// checkOperations: each operation waits for something that is going to happen.
func (w *world) checkOperations() {
	due := make(map[uint64]bool)
	for _, e := range w.todo {
		due[opOf(e)] = true
	}
	for _, f := range w.answers {
		due[answered(f)] = true
	}
	for _, h := range w.c.retries {
		due[h.pending.op] = true
	}
	for _, h := range w.c.holders {
		if h.pending != nil && !due[h.pending.op] {
			w.fail("%s waits for ever for %+v", h.ID, h.pending)
		}
		if h.pending == nil && len(h.queue) > 0 {
			w.fail("%s: %d commands wait for nothing", h.ID, len(h.queue))
		}
	}
}

func opOf(e Effect) uint64 {
	switch e := e.(type) {
	case Make:
		return e.Op
	case Store:
		return e.Op
	case Forget:
		return e.Op
	case Listen:
		return e.Op
	case Limit:
		return e.Op
	case Close:
		return e.Op
	case MoveOut:
		return e.Op
	case MoveIn:
		return e.Op
	}
	return 0
}

func answered(f Fact) uint64 {
	switch f := f.(type) {
	case Made:
		return f.Op
	case Stored:
		return f.Op
	case Opened:
		return f.Op
	case Limited:
		return f.Op
	case Moved:
		return f.Op
	}
	return 0
}

// checkRecord: the store has what is in force.
func (w *world) checkRecord(h *holder) {
	r, stored := w.disk[h.Generation]
	if h.Phase != Admitted && !stored && (h.pending == nil || !h.pending.forget) {
		w.fail("%s is in force, and not stored", h.ID)
	}
	if h.pending == nil && !same(&r, &h.Record) {
		w.fail("%s is %+v, and stored as %+v", h.ID, h.Record, r)
	}
	if h.pending == nil && h.moving() {
		w.fail("%s is moved for ever", h.ID)
	}
}

func same(a, b *Record) bool {
	return a.ID == b.ID && a.Phase == b.Phase && a.Residence == b.Residence && a.Trust == b.Trust && a.Why == b.Why && a.Manual == b.Manual &&
		a.Deadline == b.Deadline && a.Asked == b.Asked && a.Hosted == b.Hosted &&
		maps.Equal(a.Limits, b.Limits) && maps.Equal(a.Kept, b.Kept) && maps.Equal(a.Left, b.Left)
}

// checkPage: the ledger has the record's limits. Calls wait if and only if the slice is Away.
func (w *world) checkPage(h *holder) {
	p := w.pages[h.Generation]
	if p == nil {
		if h.Phase != Admitted {
			w.fail("%s has no ledger", h.ID)
		}
		return
	}
	if h.pending != nil {
		return
	}
	if h.closed() && !p.closed && h.page != 0 {
		w.fail("%s grants more, and is %s", h.ID, h.state())
	}
	for uuid, limit := range h.Limits {
		if h.Trust == Frozen {
			limit = 0
		}
		if !h.closed() && h.page != 0 && p.limits[uuid] != limit {
			w.fail("%s may hold %d of %s by its record, and %d by its ledger", h.ID, limit/size, uuid, p.limits[uuid]/size)
		}
	}
	if h.Kind == Slice && p.away != (h.Residence == Away) && h.page != 0 {
		w.fail("calls of %s wait: %v, and it is %s", h.ID, p.away, h.state())
	}
	for uuid, limit := range h.native {
		if len(h.pools) == 0 && limit > h.counted[uuid] {
			w.fail("the driver allows %s %d of %s, and it counts for %d", h.ID, limit/size, uuid, h.counted[uuid]/size)
		}
	}
}

// checkIndex: what is looked up is what there is.
func (w *world) checkIndex(h *holder) {
	c := w.c
	if other := c.find(h.Kind, h.ID); (other == h) == (h.Phase == Lingering) {
		w.fail("%s of generation %d is of phase %d, and its id is of %v", h.ID, h.Generation, h.Phase, other != nil)
	}
	for _, p := range h.pools {
		if p.gone || c.pools[p.ID] != p || !slices.Contains(p.members, h) {
			w.fail("%s is a member of %s, which does not know it", h.ID, p.ID)
		}
	}
	for _, m := range h.members {
		if m.gone || !slices.Contains(m.pools, h) {
			w.fail("%s has a member %s that is gone", h.ID, m.ID)
		}
	}
}

// rest carries out all that is to be done, while nothing fails any more: everything comes to its end.
func (w *world) rest() {
	w.calm = true
	for _, generation := range slices.Sorted(maps.Keys(w.pages)) {
		if p := w.pages[generation]; p.alive && p.away && w.holder(generation) != nil {
			w.do(AskReturn{p.ID})
		}
	}
	for ticks, n := 0, 0; ticks < 12 || len(w.todo)+len(w.answers)+len(w.late) > 0; n++ {
		if n > 20_000 {
			w.fail("it does not come to rest: %+v", w.todo)
		}
		w.steps++
		if len(w.todo)+len(w.answers)+len(w.late) > 0 {
			if w.r.IntN(2) == 0 || !w.deliver() {
				w.effect()
			}
		} else {
			ticks++
			w.now += time.Second
			w.note(Tick{w.now})
			w.report()
		}
		w.check()
	}
	w.checkRest()
}

// report has the waiting processes ask again, and the figures of all ledgers read.
func (w *world) report() {
	for _, h := range w.c.holders {
		p := w.pages[h.Generation]
		if h.waits != 0 && p.alive {
			w.do(AskReturn{h.ID})
		}
		w.answers = append(w.answers, Used{Generation: h.Generation, Op: p.op, Bytes: w.used(p)})
	}
}

func (w *world) checkRest() {
	if len(w.told) > 0 {
		w.fail("clients are not answered: %v", w.told)
	}
	generations := make(map[uint64]bool)
	for _, h := range w.c.holders {
		generations[h.Generation] = true
		p := w.pages[h.Generation]
		switch {
		case h.pending != nil:
			w.fail("%s waits for ever: %+v", h.ID, h.pending)
		case h.Kind == Slice && !p.alive:
			w.fail("%s has no process, and is there", h.ID)
		case h.Phase == Live && w.c.over(h):
			w.fail("%s is past its deadline, and live", h.ID)
		case h.Phase == Expiring && !p.asked:
			w.fail("%s is expired, and its processes were not asked to end", h.ID)
		case h.Phase == Expiring && w.now > h.Asked+w.config.Grace+10*time.Second:
			w.fail("%s is expired, and its processes live", h.ID)
		}
		if h.waits != 0 && h.mayReturn() {
			if _, err := w.c.roomToReturn(h); err == nil {
				w.fail("%s waits beside free room", h.ID)
			}
		}
		beyond := h.Kept
		if h.Phase == Lingering || h.Residence == Away {
			beyond = h.Left
		}
		for uuid, n := range beyond {
			if h.page != 0 && n > w.used(p)[uuid] {
				w.fail("%s holds %d of %s, and may hold %d", h.ID, w.used(p)[uuid]/size, uuid, n/size)
			}
		}
		if h.native != nil && !maps.Equal(h.native, p.native) {
			w.fail("the driver's limits of %s are %v, and should be %v", h.ID, p.native, h.native)
		}
	}
	for generation, r := range w.disk {
		if !generations[generation] {
			w.fail("%s of generation %d is in the store alone", r.ID, generation)
		}
	}
	if n := len(w.c.awaited) + len(w.c.retries); n > 0 {
		w.fail("%d answers are awaited", n)
	}
}

// processorTime returns the time that the test has spent on processors.
func processorTime(t *testing.T) time.Duration {
	var u unix.Rusage
	must.Do(t, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// The model test: the core in a world in which everything fails.
func TestModel(t *testing.T) {
	const each = 1000
	begun, before, sum := time.Now(), processorTime(t), world{}
	for seed := *first; sum.steps < *steps; seed++ {
		w := newWorld(t, seed)
		for range each {
			w.step()
		}
		w.rest()
		sum.steps, sum.crashes, sum.moves = sum.steps+w.steps, sum.crashes+w.crashes, sum.moves+w.moves
	}
	took, busy := time.Since(begun), processorTime(t)-before
	t.Logf("%d steps, %d crashes, %d moves: %.0f a second, %.0f a second of processor time", sum.steps, sum.crashes, sum.moves,
		float64(sum.steps)/took.Seconds(), float64(sum.steps)/busy.Seconds())
}
