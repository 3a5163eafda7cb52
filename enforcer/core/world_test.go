// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/admission/refusal"
)

// size is the unit of the model's sizes, in bytes.
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
	answers []Fact // on their way to the core
	late    []Fact // figures that are longer on their way
	pages   map[uint64]*page
	disk    map[uint64]Record
	told    map[uint64]Command // by client: commands without an answer
	acked   map[uint64]bool    // generations that a client knows

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
		Elastic: Elastic{Overcommit: 2000, MinResident: 5 * time.Second, Quantum: 20 * time.Second, Asking: 9 * time.Second, Obstacle: 10 * time.Second, Patience: time.Minute, MaxPriority: 5},
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
	const maxLines = 80
	if len(w.log) == 2*maxLines {
		w.log = append(w.log[:0], w.log[maxLines:]...)
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

// client returns a new client, still without an answer.
func (w *world) client() uint64 { w.clients++; return w.clients }

func (w *world) ask(cmd Command) {
	w.told[cmd.client()] = cmd
	w.do(cmd)
}

func (w *world) id() string {
	if w.r.IntN(4) == 0 {
		return w.session()
	}
	return fmt.Sprint("s", w.r.IntN(7))
}

// session returns an id that only sessions have: the user's limit holds unless an operator changes the quotas of a session, which no step does.
func (w *world) session() string { return fmt.Sprint("u", w.r.IntN(3)) }
func (w *world) pool() string    { return fmt.Sprint("p", w.r.IntN(3)) }

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
		if id[0] == 'u' || h != nil && len(h.pools) > 0 {
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
		cmd := Suspend{Client: w.client(), ID: w.id()}
		h := w.c.slices[cmd.ID]
		cmd.Evict = h != nil && h.Residence == Away && h.pending == nil
		w.ask(cmd)
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
	s := Record{ID: fmt.Sprint("s", r.IntN(7)), Elastic: w.config.Devices != nil && r.IntN(2) == 0, Priority: r.IntN(4), Native: r.IntN(2) == 0}
	s.Limits, s.Quotas = w.random(70)
	cmd := Register{Client: w.client(), Grant: r.IntN(4) == 0, Stay: r.IntN(8) == 0}
	switch r.IntN(10) {
	case 0, 1:
		s.Tenant = "t"
	case 2, 3:
		s.ID, s.UID, cmd.User = w.session(), &w.user.UID, w.user
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

// process has processes charge, free, ask and exit, and adapters report it.
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

// end has all processes of a slice exit.
func (w *world) end(p *page) {
	p.alive = false
	clear(p.held)
	clear(p.host)
	w.say("the processes of %s (%d) end", p.ID, p.Generation)
	w.answers = append(w.answers, Empty{p.Generation})
}

// used is the ledger's charged bytes: for a pool also its members' on the host.
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

// crash kills the daemon: an effect in progress may be done, and is not answered.
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
