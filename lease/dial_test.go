// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/gpuslice/gpuslice/lease/leasepb"
	"github.com/gpuslice/gpuslice/test/await"
)

type noLeases struct {
	leasepb.UnimplementedLeasesServer
}

func (noLeases) List(context.Context, *leasepb.ListRequest) (*leasepb.ListReply, error) {
	return &leasepb.ListReply{}, nil
}

func TestADialWaitsForAPlaceInAFullQueue(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 1))
	}
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "listener")
	defer file.Close()
	l, err := net.FileListener(file)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var crowd []net.Conn
	for {
		conn, err := net.Dial("unix", path)
		if errors.Is(err, syscall.EAGAIN) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		crowd = append(crowd, conn)
	}
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	answered := make(chan error, 1)
	go func() {
		_, err := Service{Socket: path}.List(ctx)
		answered <- err
	}()
	select {
	case err := <-answered:
		t.Fatalf("while the queue is full: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	for _, conn := range crowd {
		conn.Close()
	}
	server := grpc.NewServer()
	leasepb.RegisterLeasesServer(server, noLeases{})
	go func() { _ = server.Serve(l) }()
	defer server.Stop()
	if err := <-answered; err != nil {
		t.Error(err)
	}
	// A missing socket fails at once.
	if _, err := (Service{Socket: path + "x"}).List(ctx); !errors.Is(err, ErrUnreachable) {
		t.Error(err)
	}
}
