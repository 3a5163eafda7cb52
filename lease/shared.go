// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/lease/leasepb"
)

// Shared is memory mapped by this process and pinned by the broker. Buffers copy to and from it directly.
type Shared struct {
	connection net.Conn
	number     uint64
	memory     []byte
}

// Share allocates shared memory, within the lease's limit. It needs a session on this host.
func (s *Session) Share(ctx context.Context, size int) (*Shared, error) {
	s.staging.drop(ctx)
	return s.share(ctx, size)
}

func (s *Session) share(ctx context.Context, size int) (*Shared, error) {
	if s.directory == "" {
		return nil, errors.New("share memory with a session: the session is on another host")
	}
	connection, err := dialUnix(ctx, filepath.Join(s.directory, "shared.sock"))
	if err != nil {
		return nil, fmt.Errorf("share memory with a session: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = connection.Close() })()
	shared, err := receiveShared(connection.(*net.UnixConn), s.token, size)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("share memory with a session: %w", err), connection.Close())
	}
	return shared, nil
}

func receiveShared(connection *net.UnixConn, token string, size int) (*Shared, error) {
	if _, err := fmt.Fprintf(connection, "%s %d\n", token, size); err != nil {
		return nil, err
	}
	line, control := make([]byte, 512), make([]byte, unix.CmsgSpace(4))
	n, controlled, _, _, err := connection.ReadMsgUnix(line, control)
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, io.ErrUnexpectedEOF
	}
	answer := strings.TrimSuffix(string(line[:n]), "\n")
	s := &Shared{connection: connection}
	if _, err := fmt.Sscanf(answer, "ok %d", &s.number); err != nil {
		return nil, errors.New(strings.TrimPrefix(answer, "error "))
	}
	messages, err := unix.ParseSocketControlMessage(control[:controlled])
	if err != nil || len(messages) != 1 {
		return nil, errors.New("the broker sent no memory")
	}
	descriptors, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(descriptors) != 1 {
		return nil, errors.New("the broker sent no memory")
	}
	killpoint.Pass("client.handed")
	s.memory, err = unix.Mmap(descriptors[0], 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return s, errors.Join(err, unix.Close(descriptors[0]))
}

// Bytes returns the memory. It is valid until Close.
func (s *Shared) Bytes() []byte { return s.memory }

// Close frees the memory.
func (s *Shared) Close() error { return errors.Join(unix.Munmap(s.memory), s.connection.Close()) }

func (s *Shared) part(offset, size uint64) *leasepb.Range {
	return &leasepb.Range{Memory: s.number, Offset: offset, Bytes: size}
}

// WriteShared copies to the buffer from shared memory.
func (b *Buffer) WriteShared(ctx context.Context, offset uint64, from *Shared, fromOffset, size uint64) error {
	b = b.orNone()
	_, err := b.session.ask(ctx, &leasepb.Request{Operation: &leasepb.Request_MemWrite{MemWrite: &leasepb.MemWrite{
		Handle: b.handle, Offset: offset, Source: &leasepb.MemWrite_Shared{Shared: from.part(fromOffset, size)},
	}}})
	return err
}

// ReadShared copies from the buffer to shared memory.
func (b *Buffer) ReadShared(ctx context.Context, offset uint64, to *Shared, toOffset, size uint64) error {
	b = b.orNone()
	_, err := b.session.ask(ctx, &leasepb.Request{Operation: &leasepb.Request_MemRead{MemRead: &leasepb.MemRead{
		Handle: b.handle, Offset: offset, Destination: &leasepb.MemRead_Shared{Shared: to.part(toOffset, size)},
	}}})
	return err
}
