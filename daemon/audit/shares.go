// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"time"

	"github.com/gpuslice/gpuslice/api"
)

// Share is whose part of the log an entry takes. What is asked on the users' socket, and what happens to a slice, is listed as long as it
// fits the user's or the slice's part of the minute; the rest is counted, in one entry a minute for each of them and each result. So nobody
// rotates away what others did.
type Share int

const (
	ShareHost     Share = iota // of the operator's socket, and events of pools: all is listed
	ShareUser                  // of the users' socket, of who may ask for something there
	ShareStranger              // of the users' socket, of one for whom there is no limit
	ShareSource                // an event, of who causes it: a container, or a user with all of his sessions
)

const (
	shareWindow = time.Minute
	// grantedBytes are listed of what one user or source was granted, or happened to it, some two hundred entries; refusedBytes of what it was
	// refused; strangerBytes of what a stranger was, and strangersBytes of what all of those were together.
	grantedBytes, refusedBytes, strangerBytes, strangersBytes = 64 << 10, 16 << 10, 4 << 10, 16 << 10
	// maxAskers is how many are counted one by one.
	maxAskers = 1024
)

// shares are what was listed in a minute, and what was not.
type shares struct {
	begun     time.Time
	of        map[asker]*share  // those of whom something was listed
	events    map[asker]*share  // the same of events: no more than have slices
	strangers int               // bytes that were listed of them all
	others    map[string]uint64 // left out by result, of those who are not in of
}

// asker is a user, or a source of events, and what became of it: refusals leave the place of what was granted to it.
type asker struct {
	uid    uint32
	source string
	result string // OK, or Refused
}

type share struct {
	bytes int    // that were listed
	left  uint64 // requests that were not, or what happened
	slice string // of all events that were not; "" if they are several
}

// lists says whether an entry of so many bytes is listed, and counts it if it is not.
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
		limit = min(strangerBytes, strangersBytes-s.strangers)
	}
	its := s.of[who]
	if its == nil {
		if bytes > limit || len(s.of) >= maxAskers {
			s.others[who.result]++
			return false
		}
		its = &share{}
		s.of[who] = its
	}
	if its.bytes+bytes > limit {
		its.left++
		return false
	}
	its.bytes += bytes
	if e.Share == ShareStranger {
		s.strangers += bytes
	}
	return true
}

func (s *shares) listsEvent(e Entry, bytes int) bool {
	who := asker{source: e.source, result: resultOf(e)}
	its := s.events[who]
	if its == nil {
		its = &share{}
		s.events[who] = its
	}
	if its.bytes+bytes <= limitOf(who.result) {
		its.bytes += bytes
		return true
	}
	if its.left == 0 {
		its.slice = e.Slice
	} else if its.slice != e.Slice {
		its.slice = ""
	}
	its.left += max(1, e.Count)
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

// over says whether the minute is over. A clock that was set back ends it, too.
func (s *shares) over(now time.Time) bool {
	passed := now.Sub(s.begun)
	return passed < 0 || passed >= shareWindow
}

// end begins another minute, and returns what was left out in this one.
func (s *shares) end(now time.Time) []Entry {
	var entries []Entry
	for who, its := range s.of {
		if its.left > 0 {
			entries = append(entries, leftOut(now, &who.uid, who.result, its.left))
		}
	}
	for result, count := range s.others {
		entries = append(entries, leftOut(now, nil, result, count))
	}
	for who, its := range s.events {
		if its.left > 0 {
			entries = append(entries, Entry{
				Event:  api.Event{Kind: KindEvents, Time: now, Slice: its.slice, Count: its.left, Cause: who.source},
				Result: who.result, Message: notListed, Share: ShareSource,
			})
		}
	}
	*s = shares{begun: now, of: make(map[asker]*share), events: make(map[asker]*share), others: make(map[string]uint64)}
	return entries
}

const notListed = "these are not listed one by one: they were too many in a minute"

// leftOut is the entry of a user's requests that are not listed; of several users' if uid is nil.
func leftOut(at time.Time, uid *uint32, result string, count uint64) Entry {
	return Entry{
		Event: api.Event{Kind: KindRequest, Time: at, Count: count}, Result: result, UID: uid, Share: ShareUser,
		Message: notListed,
	}
}
