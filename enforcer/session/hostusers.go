// SPDX-License-Identifier: Apache-2.0

package session

import (
	"bufio"
	"context"
	"errors"
	"io/fs"
	"math"
	"os"
	"os/user"
	"strconv"
	"strings"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/guard"
)

// NoUser is the uid to which all uids count that belong to no user.
const NoUser = math.MaxUint32

const (
	// remembered is how long an answer is cached.
	remembered = 10 * time.Second
	// maxRemembered bounds the cached answers.
	maxRemembered = 1024
	// maxLookUps bounds the concurrent look-ups: the user database may be on a network.
	maxLookUps = 32
)

// HostUsers maps a uid to the host's user to which it counts, for limits on sessions and for slots. A uid is a user if the host's user
// database (NSS) knows it, and it is no other user's subordinate uid (subuid(5)): a user can leave setuid programs of all their subordinate
// uids, and run them outside of the user namespace that created them. The zero value is ready for use.
type HostUsers struct {
	Subuid string // path; "" is /etc/subuid

	lookUp func(name string) (uint32, error) // nil: the host's user database

	mu     guard.Mutex[guard.Leaf] // guards the fields below
	ranges []subordinates
	read   time.Time // when the ranges were read
	found  map[string]*found
	asking int
}

// subordinates is a range of uids that an owner may use in user namespaces.
type subordinates struct {
	owner string // a name or a number
	first uint64
	count uint64
}

// found is the database's answer for a name or a number.
type found struct {
	done chan struct{} // closed once the other fields are set
	at   time.Time
	uid  uint32
	err  error
}

// Of returns the uid to which uid counts. If this is another uid, err is an *api.Error with the reason. A subordinate uid counts to its
// owner; all other uids without a user count to NoUser. Of waits for the database until ctx ends.
func (h *HostUsers) Of(ctx context.Context, uid uint32) (counts uint32, err error) {
	owner, err := h.ownerOf(uid)
	if err != nil {
		return NoUser, api.Errorf(api.CodeBusy, "cannot tell whether uid %d belongs to a user: %v: try again later", uid, err)
	}
	if owner != "" {
		if counts, err = h.find(ctx, owner); err != nil {
			counts = NoUser
		}
		if counts != uid {
			return counts, api.Errorf(api.CodeForbidden, "uid %d may have no session on this host: it is a subordinate uid of %s (/etc/subuid): use that user", uid, owner)
		}
	}
	_, err = h.find(ctx, strconv.FormatUint(uint64(uid), 10))
	var unknown user.UnknownUserIdError
	switch {
	case errors.As(err, &unknown):
		return NoUser, api.Errorf(api.CodeForbidden, "uid %d may have no session on this host: the host's user database does not know it (getent passwd %[1]d)", uid)
	case err != nil:
		return NoUser, api.Errorf(api.CodeBusy, "cannot look up uid %d in the host's user database: %v: try again later", uid, err)
	}
	return uid, nil
}

// ownerOf returns the owner of a subordinate uid, or "". It ignores ranges of root, which can be any user.
func (h *HostUsers) ownerOf(uid uint32) (string, error) {
	h.mu.Lock()
	ranges, read := h.ranges, h.read
	h.mu.Unlock()
	if time.Since(read) > remembered {
		path := h.Subuid
		if path == "" {
			path = "/etc/subuid"
		}
		var err error
		if ranges, err = readSubordinates(path); err != nil {
			return "", err
		}
		h.mu.Lock()
		h.ranges, h.read = ranges, time.Now()
		h.mu.Unlock()
	}
	for _, r := range ranges {
		if n := uint64(uid); n >= r.first && n-r.first < r.count && r.owner != "root" && r.owner != "0" {
			return r.owner, nil
		}
	}
	return "", nil
}

func readSubordinates(path string) (all []subordinates, err error) {
	guard.MayWait("a file of the host")
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		fields := strings.Split(lines.Text(), ":")
		if len(fields) != 3 {
			continue
		}
		first, err := strconv.ParseUint(fields[1], 10, 32)
		count, err2 := strconv.ParseUint(fields[2], 10, 32)
		if err == nil && err2 == nil {
			all = append(all, subordinates{fields[0], first, count})
		}
	}
	return all, lines.Err()
}

var errNoAnswer = errors.New("no answer")

// find looks up a name or a number. A look-up that outlasts ctx continues, and a later call gets its answer.
func (h *HostUsers) find(ctx context.Context, name string) (uint32, error) {
	h.mu.Lock()
	f := h.found[name]
	if f == nil || f.isOver() {
		if h.asking >= maxLookUps {
			h.mu.Unlock()
			return NoUser, errNoAnswer
		}
		f = &found{done: make(chan struct{})}
		h.remember(name, f)
		h.asking++
		go h.ask(name, f)
	}
	h.mu.Unlock()
	select {
	case <-f.done:
		return f.uid, f.err
	case <-ctx.Done():
		return NoUser, errNoAnswer
	}
}

func (f *found) isOver() bool {
	select {
	case <-f.done:
		return time.Since(f.at) > remembered
	default:
		return false
	}
}

// remember caches an answer, and drops others if the cache is full. Called with mu held.
func (h *HostUsers) remember(name string, f *found) {
	if h.found == nil {
		h.found = make(map[string]*found)
	}
	for other := range h.found {
		if len(h.found) < maxRemembered {
			break
		}
		delete(h.found, other)
	}
	h.found[name] = f
}

func (h *HostUsers) ask(name string, f *found) {
	lookUp := h.lookUp
	if lookUp == nil {
		lookUp = inDatabase
	}
	f.uid, f.err = lookUp(name)
	f.at = time.Now()
	close(f.done)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asking--
}

func inDatabase(name string) (uint32, error) {
	guard.MayWait("the host's user database")
	lookUp := user.Lookup
	if _, err := strconv.ParseUint(name, 10, 32); err == nil {
		lookUp = user.LookupId
	}
	u, err := lookUp(name)
	if err != nil {
		return NoUser, err
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	return uint32(uid), err
}
