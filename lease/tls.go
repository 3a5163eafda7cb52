// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"google.golang.org/grpc/credentials"
)

// TLS names the client's certificate and the CA that it trusts: files in PEM.
type TLS struct {
	Certificate, Key string // the common name is a user of the host
	CA               string // that signed the host's certificate
}

func (t TLS) credentials() (credentials.TransportCredentials, error) {
	if t.Certificate == "" || t.Key == "" || t.CA == "" {
		return nil, errors.New("a lease service on another machine needs a certificate, its key, and the CA of that machine's certificate: name all three files")
	}
	own, err := tls.LoadX509KeyPair(t.Certificate, t.Key)
	if err != nil {
		return nil, fmt.Errorf("the certificate %s and its key %s: %w", t.Certificate, t.Key, err)
	}
	text, err := os.ReadFile(t.CA)
	if err != nil {
		return nil, err
	}
	cas := x509.NewCertPool()
	if !cas.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s has no certificate: one or more in PEM are accepted", t.CA)
	}
	return credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{own}, RootCAs: cas}), nil
}

type address struct {
	host, port string
	lease      string // empty for the lease service itself
}

func parseAddress(text string) (a address, err error) {
	refuse := func() (address, error) {
		return address{}, fmt.Errorf("%.200q is no address on another machine: tls:HOST:PORT, and /LEASE of a session, are accepted", text)
	}
	rest, ok := strings.CutPrefix(text, "tls:")
	if !ok {
		return refuse()
	}
	rest, a.lease, ok = strings.Cut(rest, "/")
	if ok && (a.lease == "" || strings.IndexFunc(a.lease, func(r rune) bool { return r <= ' ' || r > '~' || r == '/' }) >= 0) {
		return refuse()
	}
	a.host, a.port, err = net.SplitHostPort(rest)
	if err != nil || a.host == "" || strings.ContainsAny(a.host, "/%?# ") {
		return refuse()
	}
	if n, err := strconv.ParseUint(a.port, 10, 16); err != nil || n == 0 {
		return refuse()
	}
	return a, nil
}

func (a address) target() string { return "dns:///" + net.JoinHostPort(a.host, a.port) }
