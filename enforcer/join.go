// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/enforcer/api"
	"github.com/gpuslice/gpuslice/enforcer/guard"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/enforcer/store"
)

// A session's token lets in processes that do not descend from its first one: of another terminal, a batch system,
// another user to whom it was given. It is made with the session, stands in a file of the session's directory that the
// session's user alone can read, and goes with that. The enforcer keeps its SHA-256 only: neither its memory nor
// its state says what to show.

// mostJoined bounds the processes that join a session, not those that descend from them: each is looked at when
// anybody attaches anywhere.
const mostJoined = 256

// Wrong tokens that a user may show within wrongWindow. A token cannot be guessed in the age of the universe; this is
// so that who tries costs nobody anything, and is noticed.
const (
	mostWrong   = 10
	wrongWindow = time.Minute
	// mostWrongUsers is of how many users at a time that is known; those who come then are refused as if they had tried.
	mostWrongUsers = 1024
)

// joined is a process that joined a session: it and its descendants are of the session.
type joined struct {
	*process.Handle
	uid uint32
}

// roots calls each with the processes below which the session's processes are, until each returns false.
func (s *slice) roots(each func(*process.Handle) bool) {
	if s.init != nil && !each(s.init) {
		return
	}
	if all := s.joined.Load(); all != nil {
		for _, j := range *all {
			if !each(j.Handle) {
				return
			}
		}
	}
}

// descends says whether a process is a session's, by its ancestors.
func (s *slice) descends(pid int) bool {
	found := false
	process.Ancestors(pid, func(above int) bool {
		s.roots(func(root *process.Handle) bool {
			found = root.PID == above && root.Alive()
			return !found
		})
		return !found
	})
	return found
}

// makeToken gives a session its token. Called before anybody knows the slice.
func (s *slice) makeToken() error {
	token := make([]byte, sha256.Size)
	if _, err := rand.Read(token); err != nil {
		return err
	}
	s.token = sha256.Sum256(token)
	file, err := os.OpenFile(filepath.Join(s.dir, api.TokenName), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.WriteString(api.FormatTokenFile(s.id(), token))
	if !s.e.options.Unprivileged {
		err = errors.Join(err, file.Chown(int(s.request.UID), int(s.request.GID)))
	}
	return errors.Join(err, file.Close())
}

// isToken compares in constant time. A slice without a token has none that could be shown.
func (s *slice) isToken(t api.Token) bool {
	shown, ok := t.Bytes()
	sum := sha256.Sum256(shown)
	return subtle.ConstantTimeCompare(sum[:], s.token[:]) == 1 && ok
}

// wrongTokens counts who showed them.
type wrongTokens struct {
	mu guard.Mutex[guard.Leaf]
	by map[uint32]*wrongs
}

type wrongs struct {
	since time.Time
	count int
}

// tooMany says whether a user has shown so many that another token of his is not even looked at.
func (w *wrongTokens) tooMany(uid uint32) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for user, by := range w.by {
		if time.Since(by.since) > wrongWindow {
			delete(w.by, user)
		}
	}
	by := w.by[uid]
	return by != nil && by.count >= mostWrong || by == nil && len(w.by) >= mostWrongUsers
}

// add returns how many it makes.
func (w *wrongTokens) add(uid uint32) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.by == nil {
		w.by = make(map[uint32]*wrongs)
	}
	if w.by[uid] == nil {
		w.by[uid] = &wrongs{since: time.Now()}
	}
	w.by[uid].count++
	return w.by[uid].count
}

// Asker is who asks: the process that connected, as the kernel says, which may have ended since.
type Asker struct {
	PID   int    // 0: it is not in the enforcer's pid namespace, nor below it
	Start uint64 // of the process; 0 if that is not known
	UID   uint32
}

// owns says why a process is neither who asks nor descends from it. The caller holds a Handle of pid, and looks afterwards
// whether that is alive.
func (a Asker) owns(pid int) error {
	if a.PID <= 0 {
		return errors.New("the one that asks is not in the enforcer's pid namespace, nor below it, so its processes are not known")
	}
	if !process.Ancestor(pid, a.PID) {
		return fmt.Errorf("process %d is neither the one that asks (%d) nor a descendant of it", pid, a.PID)
	}
	// It may have ended, its connection be another's that descends from it, and its pid a stranger's.
	asker, err := process.Again(a.PID, a.Start)
	if err != nil {
		return fmt.Errorf("the one that asks: %w", err)
	}
	return asker.Close()
}

// caller is who asks; this process itself if nobody else can.
func (e *Enforcer) caller(ctx context.Context) (who Asker, known bool) {
	if e.options.Caller == nil {
		start, err := process.StartTime(os.Getpid())
		return Asker{PID: os.Getpid(), Start: start, UID: uint32(os.Geteuid())}, err == nil
	}
	return e.options.Caller(ctx)
}

// shown is the session whose token is shown with a question. What is refused does not say whether there is such a
// session.
func (e *Enforcer) shown(ctx context.Context, id string) (*slice, error) {
	asker, known := e.caller(ctx)
	uid := asker.UID
	switch {
	case !known:
		return nil, api.Errorf(api.CodeForbidden, "the kernel does not say who shows the token")
	case e.wrong.tooMany(uid):
		e.countJoined("limited")
		return nil, api.Errorf(api.CodeBusy, "uid %d has shown too many wrong tokens: try again in %s", uid, wrongWindow)
	}
	s := e.find(id)
	if s == nil {
		s = &slice{} // as much work, and no token is its
	}
	if s.isToken(api.TokenOf(ctx)) {
		return s, nil
	}
	e.countJoined("wrong_token")
	if e.wrong.add(uid) == 1 { // of this minute: the log is not theirs to fill
		e.log.Warn("somebody has shown a token that is not the session's", "slice", id, "pid", asker.PID, "uid", uid)
	}
	return nil, api.Errorf(api.CodeForbidden, "there is no session %s with that token: the file that %s names in the session has it", id, api.TokenEnv)
}

func (e *Enforcer) countJoined(result string) {
	e.count(func(c Counter) { c.Joined(result) })
}

// Join makes a process one of a session's, by the session's token (api.TokenOf): from then on it and what descends from
// it draw on the session's quota. That is on disk when it returns. It ends with the session: what is charged then stays
// until the process ends, and it gets nothing more.
func (e *Enforcer) Join(ctx context.Context, id string, r api.JoinRequest) (api.RegisterReply, error) {
	if err := errors.Join(api.CheckID(id), r.Validate()); err != nil {
		return api.RegisterReply{}, err
	}
	s, err := e.shown(ctx, id)
	if err != nil {
		return api.RegisterReply{}, err
	}
	asker, _ := e.caller(ctx)
	if err := e.join(s, r.PID, asker); err != nil {
		e.countJoined("refused")
		return api.RegisterReply{}, err
	}
	killpoint.Pass("join.done")
	e.countJoined("ok")
	s.log.Info("a process joined the session", "pid", r.PID, "uid", asker.UID)
	return api.RegisterReply{Slice: s.show(false), Dir: s.dir, Library: e.options.Library}, nil
}

func (e *Enforcer) join(s *slice, pid int, asker Asker) error {
	p, err := process.Open(pid)
	if err != nil {
		return api.Errorf(api.CodeBadRequest, "process %d cannot join session %s: %v", pid, s.id(), err)
	}
	if err := e.mayJoin(s, p, asker); err != nil {
		p.Close()
		return api.Errorf(api.CodeBadRequest, "process %d cannot join session %s: %v", pid, s.id(), err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	j := joined{p, asker.UID}
	if err := s.addJoined(j); err != nil {
		p.Close()
		return err
	}
	err = s.openTo(asker.UID)
	if err == nil {
		err = e.watchJoined(s, j)
	}
	if err != nil {
		s.removeJoined(p)
	}
	return err
}

// mayJoin says why a process may not: as a session begins with one's own processes, so they are one's own that join it.
func (e *Enforcer) mayJoin(s *slice, p *process.Handle, asker Asker) error {
	if err := asker.owns(p.PID); err != nil {
		return err
	}
	if other := e.session(p.PID); other != nil {
		return fmt.Errorf("it is of session %s already", other.id())
	}
	// A container's processes stay in the container's slice, whatever session they are given a token of.
	if container := e.container(p.PID); container != nil && container != e.container(s.request.PID) {
		return fmt.Errorf("it is of slice %s, a container's", container.id())
	}
	if !p.Alive() {
		return process.ErrDead // and what was looked at may be another
	}
	return nil
}

// addJoined is called with mu held.
func (s *slice) addJoined(j joined) error {
	var all []joined
	if before := s.joined.Load(); before != nil {
		all = slices.Clone(*before) // others read it meanwhile
	}
	switch {
	case s.state != api.Active || s.init == nil || !s.init.Alive():
		return api.Errorf(api.CodeNotFound, "session %s is over", s.id())
	case len(all) >= mostJoined:
		return api.Errorf(api.CodeBusy, "%d processes have joined session %s: end one of them first", len(all), s.id())
	}
	all = append(all, j)
	s.joined.Store(&all)
	if err := s.put(); err != nil {
		s.removeJoined(j.Handle)
		return err
	}
	killpoint.Pass("join.stored")
	return nil
}

// removeJoined is called with mu held. On disk it stays, and is seen to be dead.
func (s *slice) removeJoined(p *process.Handle) {
	before := s.joined.Load()
	if before == nil {
		return
	}
	all := slices.DeleteFunc(slices.Clone(*before), func(j joined) bool { return j.Handle == p })
	if len(all) == len(*before) {
		return
	}
	s.joined.Store(&all)
	s.e.deaths.Unwatch(p)
	p.Close()
}

// watchJoined forgets a process that joined when it has ended.
func (e *Enforcer) watchJoined(s *slice, j joined) error {
	return e.deaths.Watch(j.Handle, func() {
		go func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.removeJoined(j.Handle)
		}()
	})
}

// letJoined closes what this process has open for those that joined. Called with mu held.
func (s *slice) letJoined() {
	all := s.joined.Swap(nil)
	if all == nil {
		return
	}
	for _, j := range *all {
		s.e.deaths.Unwatch(j.Handle)
		j.Close()
	}
}

// storedJoined is those that joined as the store keeps them. Called with mu held.
func (s *slice) storedJoined() []store.Joined {
	var stored []store.Joined
	if all := s.joined.Load(); all != nil {
		for _, j := range *all {
			stored = append(stored, store.Joined{Process: store.Process{PID: j.PID, Start: j.Start}, UID: j.uid})
		}
	}
	return stored
}

// rejoin takes up those that had joined and are alive.
func (s *slice) rejoin(stored []store.Joined) {
	var all []joined
	for _, r := range stored {
		if p, err := process.Again(r.PID, r.Start); err == nil {
			all = append(all, joined{p, r.UID})
		}
	}
	if len(all) > 0 {
		s.joined.Store(&all)
	}
}

// serveJoined opens the attach socket to those that had joined, and watches them, for a slice that was taken up again.
func (s *slice) serveJoined() error {
	all := s.joined.Load()
	if all == nil {
		return nil
	}
	for _, j := range *all {
		if err := errors.Join(s.openTo(j.uid), s.e.watchJoined(s, j)); err != nil {
			return err
		}
	}
	return nil
}

// openTo lets a user connect to the session's attach socket who does not own it. (An access list, not a mode: all
// other users stay out.)
func (s *slice) openTo(uid uint32) error {
	if uid == 0 || uid == s.request.UID || s.e.options.Unprivileged {
		return nil
	}
	path := filepath.Join(s.dir, bindName, api.AttachSocketName)
	users := []uint32{uid}
	if all := s.joined.Load(); all != nil {
		for _, j := range *all {
			if j.uid != 0 && j.uid != s.request.UID {
				users = append(users, j.uid)
			}
		}
	}
	slices.Sort(users)
	err := unix.Setxattr(path, "system.posix_acl_access", accessList(slices.Compact(users)), 0)
	if err == nil {
		return nil
	}
	return fmt.Errorf("let uid %d use the session's attach socket: %w", uid, &fs.PathError{Op: "setxattr", Path: path, Err: err})
}

// accessList is a file's, in the form of linux/posix_acl_xattr.h, which lets its owner and users read and write it, and
// nobody else do anything. users are in order.
func accessList(users []uint32) []byte {
	const (
		version                                = 2
		owner, user, group, mask, other uint16 = 0x01, 0x02, 0x04, 0x10, 0x20
		nothing, both                   uint16 = 0, 6
		undefined                       uint32 = 1<<32 - 1
	)
	list := binary.LittleEndian.AppendUint32(nil, version)
	add := func(tag, may uint16, id uint32) {
		list = binary.LittleEndian.AppendUint16(list, tag)
		list = binary.LittleEndian.AppendUint16(list, may)
		list = binary.LittleEndian.AppendUint32(list, id)
	}
	add(owner, both, undefined)
	for _, uid := range users {
		add(user, both, uid)
	}
	add(group, nothing, undefined)
	add(mask, both, undefined)
	add(other, nothing, undefined)
	return list
}
