// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"time"

	"github.com/gpuslice/gpuslice/api"
)

// Share is the budget of the log that an entry counts against. Requests on the users' socket and events of slices have a budget
// per minute, user or source, and result; entries beyond it are counted in one entry a minute. So no user can cause others'
// entries to be rotated away.
type Share int

const (
	ShareHost     Share = iota // the operator's socket, and events of pools: unlimited
	ShareUser                  // the users' socket: a user with a limit
	ShareStranger              // the users' socket: a user without one
	ShareSource                // events of a source: a container, or a user with all sessions
)

const (
	shareWindow = time.Minute
	// Budgets in bytes a minute. Each user or source has grantedBytes, some two hundred entries, for what it was granted and its
	// events, and refusedBytes for its rejections. A stranger has strangerBytes, all strangers together strangersBytes.
	grantedBytes, refusedBytes, strangerBytes, strangersBytes = 64 << 10, 16 << 10, 4 << 10, 16 << 10
	// maxAskers limits the number of separate counters.
	maxAskers = 1024
)

// shares has the listed and the omitted entries of the current minute.
type shares struct {
	start       time.Time
	of          map[asker]*share  // by user, with entries listed
	events      map[asker]*share  // by source; bounded by the number of slices
	strangerSum int               // bytes listed of all strangers
	others      map[string]uint64 // omitted entries of users not in of, by result
}

// asker is a user or a source of events, and a result. Rejections have a budget of their own, so they use up none of that of the
// granted requests.
type asker struct {
	uid    uint32
	source string
	result string // OK or Refused
}

type share struct {
	bytes int    // listed
	left  uint64 // requests or events that were omitted
	slice string // of all omitted events; "" if there are several
}

// lists reports whether an entry of the given size is to be listed, and counts it otherwise.
func (s *shares) lists(e Entry, bytes int) bool {
	if e.Share == ShareSource {
		return s.listsEvent(e, bytes)
	}
	who := asker{result: resultOf(e)}
	if e.UID != nil {
		who.uid = *e.UID
	}
	limit := limitOf(who.result)
	if e.Share == ShareStranger {
		limit = min(strangerBytes, strangersBytes-s.strangerSum)
	}
	held := s.of[who]
	if held == nil {
		if bytes > limit || len(s.of) >= maxAskers {
			s.others[who.result]++
			return false
		}
		held = &share{}
		s.of[who] = held
	}
	if held.bytes+bytes > limit {
		held.left++
		return false
	}
	held.bytes += bytes
	if e.Share == ShareStranger {
		s.strangerSum += bytes
	}
	return true
}

func (s *shares) listsEvent(e Entry, bytes int) bool {
	who := asker{source: e.source, result: resultOf(e)}
	held := s.events[who]
	if held == nil {
		held = &share{}
		s.events[who] = held
	}
	if held.bytes+bytes <= limitOf(who.result) {
		held.bytes += bytes
		return true
	}
	if held.left == 0 {
		held.slice = e.Slice
	} else if held.slice != e.Slice {
		held.slice = ""
	}
	held.left += max(1, e.Count)
	return false
}

func resultOf(e Entry) string {
	if e.Result == OK {
		return OK
	}
	return Refused
}

func limitOf(result string) int {
	if result == OK {
		return grantedBytes
	}
	return refusedBytes
}

// hasEnded reports whether the minute is over. A clock that was set back ends it, too.
func (s *shares) hasEnded(now time.Time) bool {
	passed := now.Sub(s.start)
	return passed < 0 || passed >= shareWindow
}

// end begins another minute, and returns the entries for the omitted ones of the last.
func (s *shares) end(now time.Time) []Entry {
	var entries []Entry
	for who, held := range s.of {
		if held.left > 0 {
			entries = append(entries, leftOut(now, &who.uid, who.result, held.left))
		}
	}
	for result, count := range s.others {
		entries = append(entries, leftOut(now, nil, result, count))
	}
	for who, held := range s.events {
		if held.left > 0 {
			entries = append(entries, Entry{
				Event:  api.Event{Kind: KindEvents, Time: now, Slice: held.slice, Count: held.left, Cause: who.source},
				Result: who.result, Message: notListed, Share: ShareSource,
			})
		}
	}
	*s = shares{start: now, of: make(map[asker]*share), events: make(map[asker]*share), others: make(map[string]uint64)}
	return entries
}

const notListed = "not listed one by one: too many in one minute"

// leftOut returns the entry for omitted requests of a user, or of several users if uid is nil.
func leftOut(at time.Time, uid *uint32, result string, count uint64) Entry {
	return Entry{
		Event: api.Event{Kind: KindRequest, Time: at, Count: count}, Result: result, UID: uid, Share: ShareUser,
		Message: notListed,
	}
}
