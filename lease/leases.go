// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
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

// DefaultSocket is the socket of a host's lease service.
const DefaultSocket = "/run/gpuslice/leases.sock"

// ErrUnreachable is returned if the lease service does not answer, or rejects the client's certificate.
var ErrUnreachable = errors.New("the lease service does not answer")

// State is the state of a lease.
type State string

// States of a lease.
const (
	Active State = "active"
	Ended  State = "ended"  // dropped or expired
	Failed State = "failed" // for another cause, in Reason
)

// Lease is a slice of a GPU acquired for a limited time. Sizes are in bytes.
type Lease struct {
	ID        string `json:"id"`
	Address   string `json:"address,omitempty"`    // of the session, for [Open], or [OpenTLS] if it begins with tls:; only while active
	TokenFile string `json:"token_file,omitempty"` // readable by its owner only
	Token     string `json:"token,omitempty"`      // for clients on other machines
	// RemoteAddress is the session's address for clients on other machines, if they are served.
	RemoteAddress string `json:"remote_address,omitempty"`

	Device            string     `json:"device"` // UUID
	DeviceName        string     `json:"device_name"`
	ComputeCapability string     `json:"compute_capability,omitempty"` // of the device, such as 9.0
	VRAM              uint64     `json:"vram"`                         // available to clients
	Overhead          uint64     `json:"overhead"`                     // added for the broker's context and code
	Reserved          bool       `json:"reserved"`
	Tenant            string     `json:"tenant,omitempty"`
	UID               uint32     `json:"uid"` // of the user that acquired it
	Acquired          time.Time  `json:"acquired"`
	Expires           *time.Time `json:"expires,omitempty"` // nil: never
	Charged           uint64     `json:"charged"`           // in the slice's ledger, including overhead
	State             State      `json:"state"`
	Reason            string     `json:"reason,omitempty"` // why it is not active
	// Restarts counts the brokers that replaced one that had ended by itself. RestartReason is the cause of the last such
	// end, or why no broker serves now.
	Restarts      uint64 `json:"restarts,omitempty"`
	RestartReason string `json:"restart_reason,omitempty"`
}

// Request holds the parameters of a lease.
type Request struct {
	VRAM    uint64         // bytes
	TTL     time.Duration  // 0: the enforcer's maximum
	Device  string         // UUID or index; "": the device with the most free memory
	Tenant  string         // only for root and operators
	Reserve bool           // allocate the bytes on the device at once
	Linger  *time.Duration // time from the last disconnect to the lease's end; nil: no such limit
	Clients int            // maximum of connected clients; 0: the service's default
}

// Service is a lease service. Its zero value is the one at DefaultSocket.
type Service struct {
	Socket string
	// Address is tls:HOST:PORT, for a service on another machine. It replaces Socket, and requires TLS.
	Address string
	TLS     TLS
}

// Acquire acquires a lease. Its session is ready for clients on return.
func (s Service) Acquire(ctx context.Context, r Request) (*Lease, error) {
	if r.Clients < 0 {
		return nil, &Error{Code: InvalidRequest, Message: fmt.Sprintf("%d clients at one time: 1 and more are accepted, and 0 for the service's default", r.Clients)}
	}
	request := &leasepb.AcquireRequest{Vram: r.VRAM, Device: r.Device, Tenant: r.Tenant, Reserve: r.Reserve, Clients: uint32(min(r.Clients, math.MaxInt32))}
	if r.TTL != 0 {
		request.Ttl = durationpb.New(r.TTL)
	}
	if r.Linger != nil {
		request.Linger = durationpb.New(*r.Linger)
	}
	return one(s, func(c leasepb.LeasesClient) (*leasepb.Lease, error) { return c.Acquire(ctx, request) })
}

// Renew sets the remaining time of a lease to ttl.
func (s Service) Renew(ctx context.Context, id string, ttl time.Duration) (*Lease, error) {
	return one(s, func(c leasepb.LeasesClient) (*leasepb.Lease, error) {
		return c.Renew(ctx, &leasepb.RenewRequest{Id: id, Ttl: durationpb.New(ttl)})
	})
}

// KeepAlive renews a lease for ttl, at once and then each third of that, until ctx ends. It returns nil then, or why the lease has ended. While
// the service does not answer it tries again.
func (s Service) KeepAlive(ctx context.Context, id string, ttl time.Duration) error {
	for {
		pause := ttl / 3
		_, err := s.Renew(ctx, id, ttl)
		var ended *Error
		switch {
		case errors.As(err, &ended) && (ended.Code == Expired || ended.Code == NotFound || ended.Code == InvalidRequest):
			return err
		case err != nil:
			pause = min(ttl/20, 5*time.Second)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// Open connects to a lease's session, on this host or another.
func (s Service) Open(ctx context.Context, l *Lease) (*Session, error) {
	if strings.HasPrefix(l.Address, "tls:") {
		return OpenTLS(ctx, l.Address, l.Token, s.TLS)
	}
	return Open(ctx, l.Address, l.TokenFile)
}

// Drop ends a lease. Its memory is free on return.
func (s Service) Drop(ctx context.Context, id string) (*Lease, error) {
	return one(s, func(c leasepb.LeasesClient) (*leasepb.Lease, error) {
		return c.Drop(ctx, &leasepb.DropRequest{Id: id})
	})
}

// Show returns one lease, for some time also after its end.
func (s Service) Show(ctx context.Context, id string) (*Lease, error) {
	return one(s, func(c leasepb.LeasesClient) (*leasepb.Lease, error) {
		return c.Show(ctx, &leasepb.ShowRequest{Id: id})
	})
}

// List returns the caller's active leases; for root those of all users.
func (s Service) List(ctx context.Context) ([]*Lease, error) { return s.list(ctx, false) }

// ListAll also returns those that have ended, as long as Show knows them.
func (s Service) ListAll(ctx context.Context) ([]*Lease, error) { return s.list(ctx, true) }

func (s Service) list(ctx context.Context, ended bool) ([]*Lease, error) {
	reply, err := ask(s, func(c leasepb.LeasesClient) (*leasepb.ListReply, error) {
		return c.List(ctx, &leasepb.ListRequest{Ended: ended})
	})
	if err != nil {
		return nil, err
	}
	leases := make([]*Lease, 0, len(reply.GetLeases()))
	for _, l := range reply.GetLeases() {
		leases = append(leases, fromWire(l))
	}
	return leases, nil
}

// Acquire calls [Service.Acquire] of this host.
func Acquire(ctx context.Context, r Request) (*Lease, error) { return Service{}.Acquire(ctx, r) }

// Renew calls [Service.Renew] of this host.
func Renew(ctx context.Context, id string, ttl time.Duration) (*Lease, error) {
	return Service{}.Renew(ctx, id, ttl)
}

// Drop calls [Service.Drop] of this host.
func Drop(ctx context.Context, id string) (*Lease, error) { return Service{}.Drop(ctx, id) }

// Show calls [Service.Show] of this host.
func Show(ctx context.Context, id string) (*Lease, error) { return Service{}.Show(ctx, id) }

// List calls [Service.List] of this host.
func List(ctx context.Context) ([]*Lease, error) { return Service{}.List(ctx) }

func one(s Service, call func(leasepb.LeasesClient) (*leasepb.Lease, error)) (*Lease, error) {
	l, err := ask(s, call)
	if err != nil {
		return nil, err
	}
	return fromWire(l), nil
}

func ask[T any](s Service, call func(leasepb.LeasesClient) (T, error)) (T, error) {
	var none T
	target, credentials, hint := "unix:"+cmp.Or(s.Socket, DefaultSocket), insecure.NewCredentials(), advice.Start("gpuslice-leased")
	if s.Address == "" && s.TLS != (TLS{}) {
		return none, errors.New("a certificate is for a lease service on another machine: name its address, too (tls:HOST:PORT)")
	}
	if s.Address != "" {
		at, err := parseAddress(s.Address)
		if err == nil && at.lease != "" {
			err = fmt.Errorf("%q names a lease: use tls:HOST:PORT", s.Address)
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
	if err = fromStatus(err); status.Code(err) == codes.Unavailable {
		return none, fmt.Errorf("%w on %s (%s): %s", ErrUnreachable, strings.TrimPrefix(cmp.Or(s.Address, target), "unix:"), unreached(err), hint)
	}
	return none, err
}

func fromWire(l *leasepb.Lease) *Lease {
	lease := &Lease{
		ID: l.GetId(), Address: l.GetAddress(), TokenFile: l.GetTokenFile(), Device: l.GetDevice(), DeviceName: l.GetDeviceName(), ComputeCapability: l.GetComputeCapability(),
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
