// SPDX-License-Identifier: Apache-2.0

package service

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/enforcer/unixsocket"
)

func TestASessionRejectsDescriptors(t *testing.T) {
	if !unixsocket.Refuses() {
		t.Skip("needs Linux 6.16")
	}
	path := filepath.Join(t.TempDir(), "s")
	file, err := listen(path, uint32(os.Getuid()), uint32(os.Getgid()))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, _, err := conn.WriteMsgUnix([]byte("x"), unix.UnixRights(0), nil); !errors.Is(err, unix.EPERM) {
		t.Errorf("sending a descriptor: %v, want that it is refused", err)
	}
}
