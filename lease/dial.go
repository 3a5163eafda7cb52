// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"errors"
	"net"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

// dialing makes connections to a local socket wait while the kernel's queue is full.
func dialing(target string) grpc.DialOption {
	path, ok := strings.CutPrefix(target, "unix:")
	if !ok {
		return grpc.EmptyDialOption{}
	}
	return grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dialUnix(ctx, path) })
}

func dialUnix(ctx context.Context, path string) (net.Conn, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", path)
	for ; errors.Is(err, syscall.EAGAIN) && ctx.Err() == nil; conn, err = dialer.DialContext(ctx, "unix", path) {
		time.Sleep(2 * time.Millisecond)
	}
	return conn, err
}

// unreached returns the cause of a failed connection, without gRPC's prefixes.
func unreached(err error) string {
	why := status.Convert(err).Message()
	if _, dialed, ok := strings.Cut(why, "Error while dialing: "); ok {
		why = strings.TrimSuffix(dialed, `"`)
		if i := strings.LastIndex(why, "connect: "); i >= 0 {
			why = why[i+len("connect: "):]
		}
	}
	return why
}
