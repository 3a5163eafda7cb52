// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"time"

	"github.com/gpuslice/gpuslice/enforcer/api"
)

// turnedPerSecond is how many processes that get no place in a slice's ledger are told one by one; the others are told as a sum.
// Whoever can reach the attach socket can ask as often as it likes, and must fill neither the events nor the audit
// log.
const turnedPerSecond = 4

// turned is who got no place in the ledger.
type turned struct {
	second int64
	count  int
	rest   map[string]uint64 // by cause: not told yet
}

// turnAway tells that a process got no place in the ledger, and why: as attachResult says it, or "stranger".
func (s *slice) turnAway(pid int, cause string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := &s.turned
	if second := time.Now().Unix(); second != t.second {
		t.second, t.count = second, 0
	}
	if t.count == turnedPerSecond {
		if t.rest == nil {
			t.rest = make(map[string]uint64)
		}
		t.rest[cause]++
		return
	}
	t.count++
	s.tell(api.Event{Kind: api.EventAttachRefused, PID: pid, Command: command(pid), Cause: cause, Count: 1})
}

// tellTurned tells those that were not told one by one. Called with mu held.
func (s *slice) tellTurned() {
	for cause, n := range s.turned.rest {
		s.tell(api.Event{Kind: api.EventAttachRefused, Cause: cause, Count: n})
	}
	clear(s.turned.rest)
}
