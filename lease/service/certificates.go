// SPDX-License-Identifier: Apache-2.0

package service

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

// TLSFiles are the service's certificate and key, and the CA of its clients, in PEM.
type TLSFiles struct{ Certificate, Key, ClientCA string }

func (f TLSFiles) all() [3]string { return [3]string{f.Certificate, f.Key, f.ClientCA} }

// certificates holds the current contents of the files: new connections use a replaced certificate.
type certificates struct {
	files TLSFiles
	log   *slog.Logger

	mu     sync.Mutex // guards all below
	stamps [3]Stamp   // of the files last read, usable or not
	config *tls.Config
	host   string // from the certificate
}

// Stamp changes when a file is replaced or written.
type Stamp struct {
	inode    uint64 // files written within one clock tick have equal times
	modified time.Time
	size     int64
}

// StampOf returns the zero Stamp for a file that cannot be examined.
func StampOf(path string) Stamp {
	info, err := os.Stat(path)
	if err != nil {
		return Stamp{}
	}
	return Stamp{info.Sys().(*syscall.Stat_t).Ino, info.ModTime(), info.Size()}
}

func (f TLSFiles) stamps() (s [3]Stamp) {
	for i, path := range f.all() {
		s[i] = StampOf(path)
	}
	return s
}

func openCertificates(files TLSFiles, log *slog.Logger) (*certificates, error) {
	c := &certificates{files: files, log: log, stamps: files.stamps()}
	var err error
	c.config, c.host, err = files.read()
	return c, err
}

// current returns the configuration and the host's name. Unusable files leave the previous ones in force: certificate and key
// cannot be replaced at once.
func (c *certificates) current() (*tls.Config, string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if stamps := c.files.stamps(); stamps != c.stamps {
		c.stamps = stamps
		config, host, err := c.files.read()
		if err != nil {
			c.log.Error("the new certificates cannot be used: the former ones stay in use", "err", err)
		} else {
			c.config, c.host = config, host
			c.log.Info("certificates read again", "host", host)
		}
	}
	return c.config, c.host
}

func (f TLSFiles) read() (*tls.Config, string, error) {
	if info, err := os.Stat(f.Key); err != nil {
		return nil, "", fmt.Errorf("leases.tls_key: %w", err)
	} else if info.Mode().Perm()&0o007 != 0 {
		return nil, "", fmt.Errorf("leases.tls_key: %s has mode %04o, which lets every user read or write it: chmod 600", f.Key, info.Mode().Perm())
	}
	pair, err := tls.LoadX509KeyPair(f.Certificate, f.Key)
	if err != nil {
		return nil, "", fmt.Errorf("leases.tls_certificate and leases.tls_key: %w", err)
	}
	host, err := hostOf(pair.Leaf)
	if err != nil {
		return nil, "", fmt.Errorf("leases.tls_certificate: %s: %w", f.Certificate, err)
	}
	text, err := os.ReadFile(f.ClientCA)
	if err != nil {
		return nil, "", fmt.Errorf("leases.tls_client_ca: %w", err)
	}
	cas := x509.NewCertPool()
	if !cas.AppendCertsFromPEM(text) {
		return nil, "", fmt.Errorf("leases.tls_client_ca: %s has no certificate: one or more in PEM are accepted", f.ClientCA)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2"},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: cas,
		SessionTicketsDisabled: true, // every connection must present its certificate
	}, host, nil
}

// hostOf returns the name by which clients reach the certificate's host.
func hostOf(c *x509.Certificate) (string, error) {
	for _, name := range c.DNSNames {
		if !strings.Contains(name, "*") {
			return name, nil
		}
	}
	if len(c.IPAddresses) > 0 {
		return c.IPAddresses[0].String(), nil
	}
	return "", errors.New("it names no host: use one with the host's DNS name or IP address as a subject alternative name")
}
