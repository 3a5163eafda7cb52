// SPDX-License-Identifier: Apache-2.0

package unixsocket

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

func TestDescriptorsAreRefusedToTheirSender(t *testing.T) {
	for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_SEQPACKET} {
		pair := must.Get(unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0))(t)
		defer unix.Close(pair[0])
		defer unix.Close(pair[1])
		if err := RefuseDescriptors(pair[0]); err != nil {
			t.Fatal(err) // also on a kernel without the option
		}
		if !Refuses() {
			t.Skip("requires Linux 6.16")
		}
		rights := unix.UnixRights(0)
		expect.ErrorIs(t, unix.Sendmsg(pair[1], []byte{1}, rights, nil, 0), unix.EPERM, "kind", kind, "they were sent")
		expect.NoError(t, unix.Sendmsg(pair[1], []byte{1}, nil, nil, 0), "kind", kind, "a message without them")
		expect.NoError(t, unix.Sendmsg(pair[0], []byte{1}, rights, nil, 0), "kind", kind, "the other way")
	}
}

// Before SO_PEERPIDFD the pid identifies a peer only while the peer's end is open.
func TestDisconnectedPeerIsNotMistakenForAReusedPID(t *testing.T) {
	for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_SEQPACKET} {
		for name, hangUp := range map[string]func(theirs int) error{
			"it is there":       nil,
			"it closed its end": unix.Close,
			"it shut its end":   func(theirs int) error { return unix.Shutdown(theirs, unix.SHUT_RDWR) },
			"it sends no more":  func(theirs int) error { return unix.Shutdown(theirs, unix.SHUT_WR) },
			"it left a last word": func(theirs int) error {
				return errors.Join(unix.Sendmsg(theirs, []byte{1}, nil, nil, 0), unix.Close(theirs))
			},
		} {
			pair := must.Get(unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0))(t)
			if hangUp != nil {
				must.Do(t, hangUp(pair[1]))
			}
			peer, err := openNamed(pair[0], os.Getpid())
			switch {
			case hangUp == nil && (err != nil || peer.PID != os.Getpid()):
				t.Errorf("%s: %v", name, err)
			case hangUp != nil && !errors.Is(err, process.ErrDead):
				t.Errorf("%s: it is taken for process %d: %v", name, os.Getpid(), err)
			}
			if peer != nil {
				peer.Close()
			}
			unix.Close(pair[0])
		}
	}
}

func TestAPeerWhosePidIsFreeIsDead(t *testing.T) {
	pair := must.Get(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t)
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	const beyond = 1 << 22 // the kernel's pids are lower
	expect.ErrorIs(t, must.Err(openNamed(pair[0], beyond)), process.ErrDead)
}
