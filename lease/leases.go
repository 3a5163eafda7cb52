// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gpuslice/gpuslice/enforcer/advice"
	"github.com/gpuslice/gpuslice/enforcer/killpoint"
	"github.com/gpuslice/gpuslice/lease/leasepb"
)

// DefaultSocket is where a host's lease service listens.
const DefaultSocket = "/run/gpuslice/leases.sock"

// ErrUnreachable is returned when nobody answers on the lease service's socket, or who does refuses the client's certificate.
var ErrUnreachable = errors.New("the lease service does not answer")

// State of a lease.
type State string

// The states of a lease.
const (
	Active State = "active"
	Ended  State = "ended"  // dropped or expired
	Failed State = "failed" // neither: Reason says it
)

// Lease is a slice of a GPU that was acquired for a time. Sizes are in bytes.
type Lease struct {
	ID        string `json:"id"`
	Address   string `json:"address,omitempty"`    // of its session, for [Open] or, if it begins with tls:, [OpenTLS]; only of one that is active
	TokenFile string `json:"token_file,omitempty"` // readable by its owner alone
	Token     string `json:"token,omitempty"`      // itself, for a client on another machine
	// RemoteAddress is that of its session for clients on other machines, if they are served.
	RemoteAddress string `json:"remote_address,omitempty"`

	Device     string     `json:"device"` // UUID
	DeviceName string     `json:"device_name"`
	VRAM       uint64     `json:"vram"`     // for memory of its clients
	Overhead   uint64     `json:"overhead"` // admitted beside it, for the broker's context and code
	Reserved   bool       `json:"reserved"`
	Tenant     string     `json:"tenant,omitempty"`
	UID        uint32     `json:"uid"` // of who acquired it
	Acquired   time.Time  `json:"acquired"`
	Expires    *time.Time `json:"expires,omitempty"` // nil for never
	Charged    uint64     `json:"charged"`           // what its ledger has, overhead included
	State      State      `json:"state"`
	Reason     string     `json:"reason,omitempty"` // why it is not active
	// Restarts is how often another broker was started, since the one before had ended by itself, and RestartReason why it had. While none
	// serves it is why not.
	Restarts      uint64 `json:"restarts,omitempty"`
	RestartReason string `json:"restart_reason,omitempty"`
}

// Request asks for a lease.
type Request struct {
	VRAM    uint64         // bytes
	TTL     time.Duration  // 0: as long as the enforcer lets any slice live
	Device  string         // a UUID or an index; "": the one with the most room
	Tenant  string         // root and operators alone name one
	Reserve bool           // take the bytes from the card now, and hold them
	Linger  *time.Duration // not nil: the lease ends so long after its last connection
	Clients int            // how many may be connected at one time; 0 is the service's default
}

// Service is a host's lease service. Its zero value is the one on DefaultSocket.
type Service struct {
	Socket string
	// Address is that of one on another machine, tls:HOST:PORT; then TLS says who asks, and Socket is not used.
	Address string
	TLS     TLS
}

// Acquire returns a lease whose session is open.
func (s Service) Acquire(ctx context.Context, r Request) (*Lease, error) {
	request := &leasepb.AcquireRequest{Vram: r.VRAM, Device: r.Device, Tenant: r.Tenant, Reserve: r.Reserve, Clients: uint32(min(max(r.Clients, 0), 1<<31))}
	if r.TTL != 0 {
		request.Ttl = durationpb.New(r.TTL)
	}
	if r.Linger != nil {
		request.Linger = durationpb.New(*r.Linger)
	}
	return one(s, func(c leasepb.LeasesClient) (*leasepb.Lease, error) { return c.Acquire(ctx, request) })
}

// Renew lets a lease live for so long from now.
func (s Service) Renew(ctx context.Context, id string, ttl time.Duration) (*Lease, error) {
	return one(s, func(c leasepb.LeasesClient) (*leasepb.Lease, error) {
		return c.Renew(ctx, &leasepb.RenewRequest{Id: id, Ttl: durationpb.New(ttl)})
	})
}

// Drop ends a lease. When it returns its memory is free.
func (s Service) Drop(ctx context.Context, id string) (*Lease, error) {
	return one(s, func(c leasepb.LeasesClient) (*leasepb.Lease, error) {
		return c.Drop(ctx, &leasepb.DropRequest{Id: id})
	})
}

// Show returns one lease; one that has ended, for a while.
func (s Service) Show(ctx context.Context, id string) (*Lease, error) {
	return one(s, func(c leasepb.LeasesClient) (*leasepb.Lease, error) {
		return c.Show(ctx, &leasepb.ShowRequest{Id: id})
	})
}

// List returns the caller's active leases; root's are all.
func (s Service) List(ctx context.Context) ([]*Lease, error) {
	reply, err := ask(s, func(c leasepb.LeasesClient) (*leasepb.ListReply, error) { return c.List(ctx, &leasepb.ListRequest{}) })
	if err != nil {
		return nil, err
	}
	leases := make([]*Lease, 0, len(reply.GetLeases()))
	for _, l := range reply.GetLeases() {
		leases = append(leases, fromWire(l))
	}
	return leases, nil
}

// Acquire asks this host's lease service; so do the functions below.
func Acquire(ctx context.Context, r Request) (*Lease, error) { return Service{}.Acquire(ctx, r) }

// Renew is [Service.Renew] of this host's.
func Renew(ctx context.Context, id string, ttl time.Duration) (*Lease, error) {
	return Service{}.Renew(ctx, id, ttl)
}

// Drop is [Service.Drop] of this host's.
func Drop(ctx context.Context, id string) (*Lease, error) { return Service{}.Drop(ctx, id) }

// Show is [Service.Show] of this host's.
func Show(ctx context.Context, id string) (*Lease, error) { return Service{}.Show(ctx, id) }

// List is [Service.List] of this host's.
func List(ctx context.Context) ([]*Lease, error) { return Service{}.List(ctx) }

func one(s Service, call func(leasepb.LeasesClient) (*leasepb.Lease, error)) (*Lease, error) {
	l, err := ask(s, call)
	if err != nil {
		return nil, err
	}
	return fromWire(l), nil
}

// ask makes one call on a connection of its own.
func ask[T any](s Service, call func(leasepb.LeasesClient) (T, error)) (T, error) {
	var none T
	target, credentials, hint := "unix:"+cmp.Or(s.Socket, DefaultSocket), insecure.NewCredentials(), advice.Start("gpuslice-leased")
	if s.Address == "" && s.TLS != (TLS{}) {
		return none, errors.New("a certificate is shown to a lease service on another machine: name its address, tls:HOST:PORT, too")
	}
	if s.Address != "" {
		at, err := parseAddress(s.Address)
		if err == nil && at.lease != "" {
			err = fmt.Errorf("%q names a lease: tls:HOST:PORT is accepted", s.Address)
		}
		if err == nil {
			credentials, err = s.TLS.credentials()
		}
		if err != nil {
			return none, err
		}
		target, hint = at.target(), "tls_address in [leases] of that host's configuration says where it does"
	}
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(credentials), dialing(target), grpc.WithDisableServiceConfig())
	if err != nil {
		return none, err
	}
	defer func() { _ = conn.Close() }()
	reply, err := call(leasepb.NewLeasesClient(conn))
	if err == nil {
		killpoint.Pass("client.answered")
		return reply, nil
	}
	if err = called(err); status.Code(err) == codes.Unavailable {
		return none, fmt.Errorf("%w on %s (%s): %s", ErrUnreachable, strings.TrimPrefix(cmp.Or(s.Address, target), "unix:"), unreached(err), hint)
	}
	return none, err
}

func fromWire(l *leasepb.Lease) *Lease {
	lease := &Lease{
		ID: l.GetId(), Address: l.GetAddress(), TokenFile: l.GetTokenFile(), Device: l.GetDevice(), DeviceName: l.GetDeviceName(),
		VRAM: l.GetVram(), Overhead: l.GetOverhead(), Reserved: l.GetReserved(), Tenant: l.GetTenant(), UID: l.GetUid(),
		Token: l.GetToken(), RemoteAddress: l.GetRemoteAddress(), Acquired: l.GetAcquired().AsTime(), Charged: l.GetCharged(), Reason: l.GetReason(), State: Active,
		Restarts: l.GetRestarts(), RestartReason: l.GetRestartReason(),
	}
	if l.GetExpires() != nil {
		at := l.GetExpires().AsTime()
		lease.Expires = &at
	}
	switch l.GetState() {
	case leasepb.Lease_ENDED:
		lease.State = Ended
	case leasepb.Lease_FAILED:
		lease.State = Failed
	}
	return lease
}
