// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/admission"
	"github.com/gpuslice/gpuslice/enforcer/admission/refusal"
)

// shadow asks the core and package admission the same, as today's enforcer asks admission.
type shadow struct {
	t       *testing.T
	r       *rand.Rand
	c       *Core
	b       *admission.Book
	user    *refusal.User
	holders map[uint64]*admission.Holder // by generation
	present map[uint64]bool              // slices and pools that admission counts as on their devices
	asked   int
	refused map[api.Code]int
}

func newShadow(t *testing.T, seed uint64) *shadow {
	s := &shadow{t: t, r: rand.New(rand.NewPCG(seed, 3)), holders: make(map[uint64]*admission.Holder), present: make(map[uint64]bool), refused: make(map[api.Code]int),
		user: &refusal.User{UID: 7, MaxVRAM: api.Share{Percent: 60}, MaxSessions: 3}}
	config := Config{
		Limits:  refusal.Limits{Reserve: 4 * size, MaxVRAM: api.Share{Percent: 90}, Tenants: map[string]api.Share{"t": {Bytes: 70 * size}, refusal.DefaultTenant: {Bytes: 110 * size}}},
		Devices: []refusal.Device{{UUID: "a", Shown: "0 (a)", Total: 100 * size}, {UUID: "b", Shown: "1 (b)", Total: 120 * size}},
		Elastic: Elastic{Overcommit: 3000, MinResident: 2 * time.Second, Quantum: 4 * time.Second},
	}
	switch seed % 4 {
	case 2:
		config.Limits.Overcommit = 1500
	case 3:
		config.Devices, config.Elastic.Off = nil, "there is no driver truth"
		config.Limits.MaxVRAM, s.user.MaxVRAM = api.Share{Bytes: 80 * size}, api.Share{Bytes: 90 * size}
	}
	s.c, s.b = New(config), admission.New(config.Limits, config.Devices)
	return s
}

// do has the core carry out a command, with all effects of it, and returns its reply.
func (s *shadow) do(cmd Command) (err error) {
	s.asked++
	s.c.Do(cmd)
	replied := false
	for effects := s.c.Take(); len(effects) > 0; effects = s.c.Take() {
		for _, e := range effects {
			if reply, is := e.(Reply); is {
				err, replied = reply.Err, true
			}
			if f := s.answerTo(e); f != nil {
				s.c.Note(f)
			}
		}
	}
	if cmd.client() != 0 && !replied {
		s.t.Fatalf("%+v is not answered", cmd)
	}
	if err != nil {
		s.refused[api.From(err).Code]++
	}
	return err
}

// answerTo answers MoveOut with all that may stay.
func (s *shadow) answerTo(e Effect) Fact {
	if out, is := e.(MoveOut); is {
		return Moved{Op: out.Op, Left: out.Stay}
	}
	return answerTo(e)
}

func (s *shadow) note(f Fact) {
	s.c.Note(f)
	_ = s.do(AskReturn{})
}

// same compares the answers. Where the core evicts slices, admission's answer is the same sentence without that.
func (s *shadow) same(cmd Command, core, book error) {
	s.t.Helper()
	told := api.From(orNil(core))
	said, busy := strings.CutSuffix(told.Message, ": idle elastic slices are being evicted for it: ask again")
	if want := api.From(orNil(book)); said != want.Message || !busy && told.Code != want.Code || told.Requested != want.Requested || told.Limit != want.Limit || told.Current != want.Current {
		s.t.Fatalf("%T %+v after %d: the core says\n%v, and admission\n%v", cmd, cmd, s.asked, core, book)
	}
}

func orNil(err error) error {
	if err == nil {
		return &api.Error{}
	}
	return err
}

// holder returns admission's of a core's holder, which it makes.
func (s *shadow) holder(h *holder) *admission.Holder {
	if s.holders[h.Generation] == nil {
		who := *h.who
		s.holders[h.Generation] = &who
	}
	return s.holders[h.Generation]
}

func clip(c *Core, limits Bytes) Bytes { return c.promisedBy(&Record{Limits: limits}) }

func (s *shadow) random(most int) (limits Bytes, quotas []api.Quota) {
	limits, quotas = make(Bytes), []api.Quota{}
	for _, uuid := range []string{"a", "b"} {
		if s.r.IntN(3) > 0 {
			limits[uuid] = uint64(s.r.IntN(most)+1) * size
			quotas = append(quotas, api.Quota{Device: uuid, Bytes: limits[uuid]})
		}
	}
	return limits, quotas
}

// step asks one thing of both.
func (s *shadow) step() {
	id, pool := fmt.Sprint("s", s.r.IntN(12)), fmt.Sprint("p", s.r.IntN(3))
	s.which()
	switch n := s.r.IntN(100); {
	case n < 30:
		s.register(id)
	case n < 42:
		s.change(s.c.slices[id])
	case n < 52:
		s.release(s.c.slices[id])
	case n < 58:
		s.useDevice(s.c.slices[id])
	case n < 64:
		_ = s.do(Suspend{1, id})
	case n < 70:
		_ = s.do(Resume{1, id})
	case n < 82:
		_ = s.do(AskReturn{id})
	case n < 87:
		s.createPool(pool)
	case n < 92:
		s.changePool(s.c.pools[pool])
	case n < 94:
		if p := s.c.pools[pool]; p != nil && s.do(DeletePool{1, pool}) == nil {
			s.b.Drop(s.holder(p))
		}
	default:
		s.note(Tick{s.c.now + time.Second})
	}
	s.follow()
	s.compare()
}

func (s *shadow) register(id string) {
	r := Record{ID: id, Elastic: s.c.devices != nil && s.r.IntN(2) == 0, Priority: 0}
	r.Limits, r.Quotas = s.random(95)
	cmd := Register{Client: 1}
	switch s.r.IntN(8) {
	case 0, 1:
		r.Tenant = "t"
	case 2, 3:
		r.UID, cmd.User = &s.user.UID, s.user
	case 4:
		if p := s.c.pools[fmt.Sprint("p", s.r.IntN(3))]; p != nil && !p.Private {
			r.Pools, r.Limits, r.Quotas, r.Elastic = []string{p.ID}, maps.Clone(p.Limits), nil, p.Elastic
		}
	}
	cmd.Slice = r
	if s.c.slices[id] != nil {
		return
	}
	h := newHolder(&r)
	who, err := *h.who, error(nil)
	if len(r.Pools) == 0 {
		if s.c.devices == nil {
			err = s.b.CheckSize(id, r.Quotas)
		}
		wants := clip(s.c, r.Limits)
		if err == nil && r.Elastic {
			err = s.b.Promise(&who, wants, s.c.config.Elastic.Overcommit, cmd.User)
			wants = Bytes{}
		}
		if err == nil {
			err = s.b.Begin(&who, wants, r.Quotas, cmd.User)
		}
	}
	s.same(cmd, s.do(cmd), err)
	if err != nil {
		s.b.Drop(&who)
		return
	}
	if h = s.c.slices[id]; len(r.Pools) == 0 {
		s.holders[h.Generation], s.present[h.Generation] = &who, !r.Elastic
	}
}

func (s *shadow) change(h *holder) {
	if h == nil || h.Residence != Resident || len(h.pools) > 0 {
		return
	}
	cmd := Change{Client: 1, ID: h.ID}
	cmd.Limits, cmd.Quotas = s.random(95)
	for uuid, limit := range h.Limits {
		if cmd.Limits[uuid] == 0 {
			cmd.Limits[uuid] = limit
		}
	}
	who, wants, was := s.holder(h), clip(s.c, cmd.Limits), clip(s.c, h.Limits)
	err := s.b.CheckSize(h.ID, cmd.Quotas)
	if err == nil && h.Elastic {
		err = s.b.Promise(who, wants, s.c.config.Elastic.Overcommit, h.user)
	}
	if err == nil {
		_, err = s.b.Admit(who, wants)
	}
	s.same(cmd, s.do(cmd), err)
	if h.Elastic && err != nil {
		s.b.NotePromise(who, was)
	}
	if err != nil {
		return
	}
	s.b.Note(who, cmd.Quotas)
	used, has := make(Bytes), maps.Clone(wants)
	for uuid, n := range s.b.Has(who) { // as quota.AtLeastUsed
		used[uuid] = uint64(s.r.Int64N(int64(n + 1)))
		has[uuid] = max(has[uuid], used[uuid])
	}
	s.b.Set(who, has.without0())
	s.note(Used{h.Generation, h.page, used, true})
}

func (s *shadow) release(h *holder) {
	if h == nil || s.do(Release{Client: 1, ID: h.ID, Force: true}) != nil {
		return
	}
	who, used := s.holder(h), make(Bytes)
	has := s.b.Has(who)
	for uuid, n := range has {
		used[uuid] = uint64(s.r.Int64N(int64(n + 1)))
		has[uuid] = used[uuid]
	}
	s.b.Set(who, Bytes(has).without0())
	s.note(Used{h.Generation, h.page, used, false})
	s.follow()
	s.compare()
	s.note(Empty{h.Generation})
	s.b.Drop(who)
}

func (s *shadow) useDevice(h *holder) {
	if h == nil || len(h.pools) > 0 || h.Elastic {
		return
	}
	uuid := []string{"a", "b"}[s.r.IntN(2)]
	if _, has := h.Limits[uuid]; has || h.Residence != Resident {
		return
	}
	cmd := UseDevice{Client: 1, ID: h.ID, Device: uuid, Bytes: uint64(s.r.IntN(60)+1) * size}
	_, err := s.b.Admit(s.holder(h), clip(s.c, Bytes{uuid: cmd.Bytes}))
	s.same(cmd, s.do(cmd), err)
}

func (s *shadow) createPool(name string) {
	if s.c.pools[name] != nil {
		return
	}
	cmd := CreatePool{Client: 1, Pool: Record{ID: name, Elastic: s.c.devices != nil && s.r.IntN(2) == 0, Private: s.r.IntN(4) == 0}}
	cmd.Pool.Limits, cmd.Pool.Quotas = s.random(60)
	if s.r.IntN(3) == 0 {
		cmd.Pool.Tenant = "t"
	}
	r := cmd.Pool
	r.Kind = Pool
	who, wants := *newHolder(&r).who, clip(s.c, r.Limits)
	var err error
	if r.Elastic {
		err = s.b.Promise(&who, wants, s.c.config.Elastic.Overcommit, nil)
	} else {
		_, err = s.b.Admit(&who, wants)
	}
	s.same(cmd, s.do(cmd), err)
	if err == nil {
		s.holders[s.c.pools[name].Generation] = &who
		s.present[s.c.pools[name].Generation] = !r.Elastic
	}
}

func (s *shadow) changePool(p *holder) {
	if p == nil {
		return
	}
	cmd := ChangePool{Client: 1, ID: p.ID}
	cmd.Limits, cmd.Quotas = s.random(60)
	for uuid, limit := range p.Limits {
		if cmd.Limits[uuid] == 0 {
			cmd.Limits[uuid] = limit
		}
	}
	who, wants, was, err := s.holder(p), clip(s.c, cmd.Limits), clip(s.c, p.Limits), error(nil)
	if p.Elastic {
		err = s.b.Promise(who, wants, s.c.config.Elastic.Overcommit, nil)
	}
	if err == nil && s.present[p.Generation] {
		_, err = s.b.Admit(who, wants)
	}
	s.same(cmd, s.do(cmd), err)
	if err != nil {
		if p.Elastic {
			s.b.NotePromise(who, was)
		}
		return
	}
	used := make(Bytes) // at least what members have left
	for _, m := range p.members {
		for uuid, n := range m.Left {
			used[uuid] += n
		}
	}
	if s.present[p.Generation] {
		has := maps.Clone(wants)
		has.raise(used)
		s.b.Set(who, has)
	}
	s.note(Used{p.Generation, p.page, used, false})
}

// follow tells admission of moves. Admission has to admit the slices that returned.
func (s *shadow) follow() {
	for _, back := range []bool{false, true} {
		for _, h := range s.c.holders {
			if len(h.pools) > 0 {
				continue
			}
			is := h.Residence != Away
			if h.Kind == Pool {
				is = !s.c.isAway(h)
			}
			switch {
			case !is && !back:
				s.b.Set(s.holder(h), h.counted.without0())
			case is && back && !s.present[h.Generation]:
				wants := s.c.present(&h.Record)
				if err := s.b.Begin(s.holder(h), wants, h.Quotas, h.user); err != nil {
					s.t.Fatalf("%s is back after %d, and admission refuses: %v", h.title(), s.asked, err)
				}
			default:
				continue
			}
			s.present[h.Generation] = is
		}
	}
}

// compare compares what both say is granted.
func (s *shadow) compare() {
	s.t.Helper()
	for _, h := range s.c.holders {
		if has := s.b.Has(s.holder(h)); !maps.Equal(has, h.counted.without0()) {
			s.t.Fatalf("%s of generation %d has %v after %d, and %v by admission: %+v", h.title(), h.Generation, h.counted, s.asked, has, h.Record)
		}
	}
	for _, uuid := range []string{"a", "b"} {
		core, book, promised := s.c.Device(uuid), s.b.Granted(uuid), s.b.Promised(uuid, s.c.config.Elastic.Overcommit)
		if s.c.devices != nil && (core.Promised != promised.Promised || core.Promisable != promised.Free || *core.Free != *book.Free) {
			s.t.Fatalf("of %s are promised and free %+v after %d, and by admission %+v, %d", uuid, core, s.asked, promised, *book.Free)
		}
		if core.Granted != book.Bytes || core.Holders != book.Holders || !maps.Equal(core.Pools, book.Pools) {
			s.t.Fatalf("of %s are granted %+v after %d, and by admission %+v", uuid, core, s.asked, book)
		}
	}
}

// which asks both for the slices to evict for a random want, and for the bytes that may stay.
func (s *shadow) which() {
	if s.c.devices == nil || len(s.c.holders) == 0 {
		return
	}
	h := s.c.holders[s.r.IntN(len(s.c.holders))]
	limits, quotas := s.random(95)
	w := want{h: h, bytes: limits, quotas: quotas, user: h.user, busy: true, priority: 9}
	may := s.c.candidates(w)
	holders := make([]*admission.Holder, len(may))
	for i := range may {
		holders[i] = s.holder(may[i].h)
	}
	units, enough := s.c.which(w, may)
	which, too := s.b.Which(s.holder(h), w.bytes, quotas, w.user, holders)
	same := enough == too && (!enough || len(units) == len(which))
	for i := range units {
		same = same && s.holder(units[i].h) == holders[which[i]]
	}
	if !same {
		s.t.Fatalf("for %v of %s have to go %v, %v, and by admission %v, %v", w.bytes, h.title(), units, enough, which, too)
	}
	for _, u := range units {
		stays := Bytes(s.b.Beside(s.holder(h), w.bytes, quotas, w.user, s.holder(u.h)))
		for uuid, n := range stays {
			stays[uuid] = n - min(n, stayMargin)
		}
		if stay := s.c.beside(w, u.h); !maps.Equal(stay, stays.without0()) {
			s.t.Fatalf("beside %v of %s may stay %v of %s, and by admission %v", w.bytes, h.title(), stay, u.h.title(), stays)
		}
	}
}

// The core decides as package admission does, in the same sentences.
func TestDecidesAsAdmission(t *testing.T) {
	const requests = 20_000
	refused := make(map[api.Code]int)
	asked := 0
	for seed := uint64(0); asked < requests; seed++ {
		s := newShadow(t, seed)
		for range 500 {
			s.step()
		}
		asked += s.asked
		for code, n := range s.refused {
			refused[code] += n
		}
	}
	codes := slices.Sorted(maps.Keys(refused))
	t.Logf("%d requests; refused: %v", asked, refused)
	for _, code := range []api.Code{api.CodeQuotaExceeded, api.CodeBusy} {
		if !slices.Contains(codes, code) {
			t.Errorf("nothing was refused with %s", code)
		}
	}
}
