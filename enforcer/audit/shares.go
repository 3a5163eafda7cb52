// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"time"

	"github.com/gpuslice/gpuslice/enforcer/api"
)

// Share is whose part of the log an entry takes. What is asked on the users' socket is listed as long as it fits the user's part of the
// minute; the rest is counted, in one entry a minute for each user and result. So nobody rotates away what others did.
type Share int

const (
	ShareHost     Share = iota // of the operator's socket, and events: all is listed
	ShareUser                  // of the users' socket, of who may ask for something there
	ShareStranger              // of the users' socket, of one for whom there is no limit
)

const (
	shareWindow = time.Minute
	// grantedBytes are listed of what one user was granted, some two hundred requests; refusedBytes of what he was refused; strangerBytes of
	// what a stranger was, and strangersBytes of what all of those were together.
	grantedBytes, refusedBytes, strangerBytes, strangersBytes = 64 << 10, 16 << 10, 4 << 10, 16 << 10
	// maxAskers is how many are counted one by one.
	maxAskers = 1024
)

// shares are what was listed in a minute, and what was not.
type shares struct {
	begun     time.Time
	of        map[asker]*share  // those of whom something was listed
	strangers int               // bytes that were listed of them all
	others    map[string]uint64 // left out by result, of those who are not in of
}

// asker is a user, and what became of his requests: refusals leave the place of what was granted to it.
type asker struct {
	uid    uint32
	result string // OK, or Refused
}

type share struct {
	bytes int    // that were listed
	left  uint64 // requests that were not
}

// lists says whether an entry of so many bytes is listed, and counts it if it is not.
func (s *shares) lists(e Entry, bytes int) bool {
	who := asker{result: Refused}
	if e.Result == OK {
		who.result = OK
	}
	if e.UID != nil {
		who.uid = *e.UID
	}
	limit := refusedBytes
	switch {
	case e.Share == ShareStranger:
		limit = min(strangerBytes, strangersBytes-s.strangers)
	case who.result == OK:
		limit = grantedBytes
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
	*s = shares{begun: now, of: make(map[asker]*share), others: make(map[string]uint64)}
	return entries
}

// leftOut is the entry of a user's requests that are not listed; of several users' if uid is nil.
func leftOut(at time.Time, uid *uint32, result string, count uint64) Entry {
	return Entry{
		Event: api.Event{Kind: KindRequest, Time: at, Count: count}, Result: result, UID: uid, Share: ShareUser,
		Message: "these are not listed one by one: they were too many in a minute",
	}
}
