// SPDX-License-Identifier: Apache-2.0

package unixsocket

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

func TestDescriptorsAreRefusedToTheirSender(t *testing.T) {
	for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_SEQPACKET} {
		pair, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(pair[0])
		defer unix.Close(pair[1])
		if err := RefuseDescriptors(pair[0]); err != nil {
			t.Fatal(err) // also where the kernel does not know of it
		}
		if !Refuses() {
			t.Skip("requires Linux 6.16")
		}
		rights := unix.UnixRights(0)
		if err := unix.Sendmsg(pair[1], []byte{1}, rights, nil, 0); !errors.Is(err, unix.EPERM) {
			t.Errorf("kind %d: they were sent: %v", kind, err)
		}
		if err := unix.Sendmsg(pair[1], []byte{1}, nil, nil, 0); err != nil {
			t.Errorf("kind %d: a message without them: %v", kind, err)
		}
		if err := unix.Sendmsg(pair[0], []byte{1}, rights, nil, 0); err != nil {
			t.Errorf("kind %d: the other way: %v", kind, err)
		}
	}
}
