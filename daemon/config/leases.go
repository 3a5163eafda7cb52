// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"
	"time"
)

// Leases is the section [leases], read by gpuslice-leased together with the control socket's path in Enforcer.
type Leases struct {
	Socket         string        `toml:"socket"`
	Dir            string        `toml:"dir"`
	UIDs           UIDs          `toml:"uids"`
	Cgroup         string        `toml:"cgroup"`
	MaxLeases      int           `toml:"max_leases"`
	MaxClients     int           `toml:"max_clients"`
	CodeOverhead   Size          `toml:"code_overhead"`
	LoadTimeout    time.Duration `toml:"load_timeout"`
	MemoryMax      Size          `toml:"memory_max"`
	PIDsMax        int           `toml:"pids_max"`
	CPUs           float64       `toml:"cpus"`
	MetricsAddress string        `toml:"metrics_address"`
	TLSAddress     string        `toml:"tls_address"`
	TLSCertificate string        `toml:"tls_certificate"`
	TLSKey         string        `toml:"tls_key"`
	TLSClientCA    string        `toml:"tls_client_ca"`
}

func defaultLeases() Leases {
	return Leases{
		Socket: "/run/gpuslice/leases.sock", Dir: "/run/gpuslice/leases", UIDs: UIDs{First: 2_000_000_000, Last: 2_000_065_535},
		Cgroup: "gpuslice-leases", MaxLeases: 256, MaxClients: 16, CodeOverhead: 32 << 20, LoadTimeout: 30 * time.Second,
		MemoryMax: 4 << 30, PIDsMax: 256,
	}
}

// UIDs is an inclusive range of user ids, written "2000000000-2000065535".
type UIDs struct{ First, Last uint32 }

// UnmarshalText implements encoding.TextUnmarshaler.
func (u *UIDs) UnmarshalText(text []byte) error {
	first, last, _ := strings.Cut(string(text), "-")
	from, err := strconv.ParseUint(first, 10, 32)
	to, err2 := strconv.ParseUint(last, 10, 32)
	if err != nil || err2 != nil || from == 0 || from > to || to == math.MaxUint32 {
		return fmt.Errorf("%.80q is not a range of user ids: two numbers from 1 on, the lower one first, such as \"2000000000-2000065535\", are accepted", text)
	}
	*u = UIDs{First: uint32(from), Last: uint32(to)}
	return nil
}

func (u UIDs) String() string { return fmt.Sprintf("%d-%d", u.First, u.Last) }

// Bounds of keys, named in documents and messages.
const (
	maxLeases  = 10000
	maxClients = 1024
	maxPIDs    = 1 << 20
)

func (l *Leases) check(f *faults) {
	f.unless(isPath(l.Socket), "leases.socket", l.Socket, "an absolute path is accepted")
	f.unless(isPath(l.Dir), "leases.dir", l.Dir, "an absolute path is accepted")
	for _, n := range []struct {
		key        string
		value, max int
	}{{"leases.max_leases", l.MaxLeases, maxLeases}, {"leases.max_clients", l.MaxClients, maxClients}, {"leases.pids_max", l.PIDsMax, maxPIDs}} {
		f.unless(n.value >= 1 && n.value <= n.max, n.key, n.value, "1 to %d are accepted", n.max)
	}
	f.address("leases.metrics_address", l.MetricsAddress)
	l.checkTLS(f)
	f.unless(l.Cgroup != "" && !strings.ContainsAny(l.Cgroup, "/\x00") && l.Cgroup[0] != '.', "leases.cgroup", l.Cgroup, "the name of one directory is accepted")
	f.unless(l.LoadTimeout >= time.Second && l.LoadTimeout <= time.Hour, "leases.load_timeout", l.LoadTimeout, `"1s" to "1h" are accepted`)
	f.unless(l.MemoryMax >= 64<<20, "leases.memory_max", l.MemoryMax, `"64MiB" and more are accepted`)
	f.unless(l.CPUs == 0 || l.CPUs >= 0.01 && l.CPUs <= 100000, "leases.cpus", l.CPUs, "0.01 to 100000 are accepted, and 0 for no bound")
}

// checkTLS requires all keys of TLS or none.
func (l *Leases) checkTLS(f *faults) {
	const all = "all four tls_ keys, or none of them, are accepted"
	for _, file := range []struct{ key, path string }{
		{"leases.tls_certificate", l.TLSCertificate}, {"leases.tls_key", l.TLSKey}, {"leases.tls_client_ca", l.TLSClientCA},
	} {
		switch {
		case l.TLSAddress == "" && file.path != "":
			f.add(file.key, "%s is set and leases.tls_address is not: %s", file.key, all)
		case l.TLSAddress != "" && file.path == "":
			f.add("leases.tls_address", "leases.tls_address is set and %s is not: %s", file.key, all)
		case file.path != "":
			f.unless(isPath(file.path), file.key, file.path, "an absolute path is accepted")
		}
	}
	if l.TLSAddress == "" {
		return
	}
	_, port, err := net.SplitHostPort(l.TLSAddress)
	n, err2 := strconv.ParseUint(port, 10, 16)
	f.unless(err == nil && err2 == nil && n != 0, "leases.tls_address", l.TLSAddress,
		`HOST:PORT is accepted, such as "192.0.2.1:9837", or ":9837" for all addresses`)
}
