// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os/user"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/pace"
	"github.com/gpuslice/gpuslice/enforcer/session"
	"github.com/gpuslice/gpuslice/lease/leasepb"
)

// Limits of clients on other machines: per address until the certificate is verified, then per user.
const (
	handshakeTimeout    = 5 * time.Second
	maxHandshakes       = 256 // at a time
	maxHandshakesOfOne  = 16  // per IPv4 address or IPv6 /64 network
	handshakesPerSecond = 200 // further ones wait
	maxRemote           = 256 // connections with a certificate
	maxRemoteOfUser     = 32
	farewellBytes       = 64 << 10 // read from a rejected client, so that it can read the reason
)

// Causes of rejected connections from other machines, as a label.
const (
	refusedHandshake = "handshake"
	refusedPlaces    = "places"
	refusedUser      = "user"
)

// remoteListener accepts only connections with a verified client certificate.
type remoteListener struct {
	net.Listener
	certificates *certificates
	users        *session.HostUsers
	log          *slog.Logger
	refused      func(cause string)
	pace         *pace.Limiter
	in           chan *remote
	closed       chan struct{}

	mu         sync.Mutex // guards all below
	handshakes int
	of         map[netip.Prefix]int // handshakes in progress
	all        int
	by         map[string]int // connections per user
}

func newRemoteListener(l net.Listener, c *certificates, users *session.HostUsers, log *slog.Logger, refused func(string)) *remoteListener {
	return &remoteListener{
		Listener: l, certificates: c, users: users, log: log, refused: refused, pace: pace.New(handshakesPerSecond, handshakesPerSecond),
		in: make(chan *remote), closed: make(chan struct{}), of: make(map[netip.Prefix]int), by: make(map[string]int),
	}
}

// Accept implements net.Listener.
func (d *remoteListener) Accept() (net.Conn, error) {
	select {
	case r := <-d.in:
		return r, nil
	case <-d.closed:
		return nil, net.ErrClosed
	}
}

// run accepts connections until ctx ends.
func (d *remoteListener) run(ctx context.Context) error {
	defer close(d.closed)
	defer context.AfterFunc(ctx, func() { d.Close() })()
	var admitting sync.WaitGroup
	defer admitting.Wait()
	for {
		conn, err := d.Listener.Accept()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		case err != nil: // no free descriptor, or the peer has disconnected
			d.log.Warn("no connection from another machine was accepted", "err", err)
			time.Sleep(10 * time.Millisecond)
			continue
		}
		from := network(conn.RemoteAddr())
		if !d.begin(from) {
			conn.Close()
			d.refused(refusedPlaces)
			continue
		}
		admitting.Go(func() {
			defer d.end(from)
			d.admit(ctx, conn)
		})
	}
}

// network returns the key for counting handshakes: an IPv4 address or an IPv6 /64 prefix.
func network(a net.Addr) netip.Prefix {
	at, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.Prefix{}
	}
	address := at.Addr().Unmap().WithZone("")
	bits := address.BitLen()
	if address.Is6() {
		bits = 64
	}
	p, _ := address.Prefix(bits) // bits is in range
	return p
}

func (d *remoteListener) begin(from netip.Prefix) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.handshakes >= maxHandshakes || d.of[from] >= maxHandshakesOfOne {
		return false
	}
	d.handshakes++
	d.of[from]++
	return true
}

func (d *remoteListener) end(from netip.Prefix) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.handshakes--
	if d.of[from]--; d.of[from] == 0 {
		delete(d.of, from)
	}
}

// admit passes a connection to Accept, or closes it.
func (d *remoteListener) admit(ctx context.Context, conn net.Conn) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	if d.pace.Wait(ctx) != nil {
		conn.Close()
		d.refused(refusedPlaces)
		return
	}
	config, _ := d.certificates.current()
	c := tls.Server(conn, config)
	if err := c.HandshakeContext(ctx); err != nil {
		d.refused(refusedHandshake)
		d.log.Warn("a client on another machine was refused", "remote", conn.RemoteAddr().String(), "err", err)
		hangUp(ctx, conn)
		return
	}
	r := &remote{Conn: c}
	leaf := c.ConnectionState().PeerCertificates[0]
	if r.who, r.refusal = userOf(leaf.Subject.CommonName); r.refusal == nil {
		if _, err := d.users.Of(ctx, r.who.UID); err != nil {
			r.refusal = refusal(err)
		}
	}
	r.who.remote = conn.RemoteAddr().String()
	name := leaf.Subject.CommonName
	if r.refusal != nil {
		name = "" // all unknown users count as one
		d.refused(refusedUser)
		d.log.Warn("a client on another machine has the certificate of no user of this host", "remote", r.who.remote, "err", r.refusal)
	}
	if !d.addConnection(name) {
		d.refused(refusedPlaces)
		d.log.Warn("a client on another machine has too many connections", "remote", r.who.remote, "user", name)
		_ = c.Close()
		return
	}
	r.release = func() { d.removeConnection(name) }
	r.expiry = time.AfterFunc(time.Until(leaf.NotAfter), func() { _ = r.Close() })
	select {
	case d.in <- r:
	case <-d.closed:
		_ = r.Close()
	case <-ctx.Done():
		_ = r.Close()
	}
}

// hangUp closes a connection so that the peer can still read the reason: closing with unread input would reset the
// connection.
func hangUp(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	if half, ok := conn.(interface{ CloseWrite() error }); !ok || half.CloseWrite() != nil {
		return
	}
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	_ = conn.SetReadDeadline(time.Now().Add(time.Second))
	_, _ = io.CopyN(io.Discard, conn, farewellBytes)
}

func (d *remoteListener) addConnection(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.all >= maxRemote || d.by[name] >= maxRemoteOfUser {
		return false
	}
	d.all++
	d.by[name]++
	return true
}

func (d *remoteListener) removeConnection(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all--
	if d.by[name]--; d.by[name] == 0 {
		delete(d.by, name)
	}
}

func (d *remoteListener) connections() map[string]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make(map[string]int, len(d.by))
	for name, n := range d.by {
		all[name] = n
	}
	return all
}

// remote is a connection with a verified client certificate.
type remote struct {
	net.Conn
	who       Peer
	refusal   error // why the certificate names no user of this host
	release   func()
	expiry    *time.Timer // of the certificate
	closeOnce sync.Once

	mu     sync.Mutex
	relays map[string]*http.Transport // to brokers, by lease; not shared with other clients
}

func (r *remote) Close() error {
	r.closeOnce.Do(func() {
		r.release()
		r.expiry.Stop()
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, t := range r.relays {
			t.CloseIdleConnections()
		}
	})
	return r.Conn.Close()
}

// userOf returns the user of this host named by a certificate.
func userOf(name string) (Peer, error) {
	nobody := func(why string) (Peer, error) {
		return Peer{}, failed(leasepb.Code_REFUSED, "", "the certificate's common name %.80q %s: use a certificate that names a user of this host other than root", name, why)
	}
	if !isUserName(name) {
		return nobody("is not a valid user name")
	}
	u, err := user.Lookup(name)
	var unknown user.UnknownUserError
	if errors.As(err, &unknown) {
		return nobody("is not a user of this host")
	}
	if err != nil {
		return Peer{}, failed(leasepb.Code_REFUSED, "", "user %q cannot be looked up: %v", name, err)
	}
	uid, err := id(u.Uid)
	if err != nil || uid == 0 || u.Username != name {
		return nobody("is root on this host")
	}
	gid, err := id(u.Gid)
	if err != nil {
		return nobody("is a user without a group")
	}
	who := Peer{UID: uid, Groups: []uint32{gid}}
	groups, err := u.GroupIds()
	if err != nil {
		return Peer{}, failed(leasepb.Code_REFUSED, "", "the groups of user %q cannot be looked up: %v", name, err)
	}
	for _, g := range groups {
		if n, err := id(g); err == nil && n != gid {
			who.Groups = append(who.Groups, n)
		}
	}
	return who, nil
}

func id(text string) (uint32, error) {
	n, err := strconv.ParseUint(text, 10, 32)
	return uint32(n), err
}

// isUserName accepts only names without special meaning for directory services and C, to which the name is passed.
func isUserName(name string) bool {
	const maxBytes = 256
	if name == "" || len(name) > maxBytes || name[0] == '-' || strings.Trim(name, "0123456789") == "" {
		return false
	}
	return strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-@") == ""
}
