// SPDX-License-Identifier: Apache-2.0

// Package config reads the configuration file, /etc/gpuslice/config.toml, which the enforcer, gpuslice-runtime and
// gpuslice-leased share. configs/config.toml documents every key.
//
// It owns the keys, their defaults and their accepted values. It rejects an unknown key, with its line: a misspelt limit must not
// mean no limit. It must never read anything but the file: no environment variable changes the configuration.
package config

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/gpuslice/gpuslice/api"
)

// Config is the whole file.
type Config struct {
	Enforcer Enforcer `toml:"enforcer"`
	Runtime  Runtime  `toml:"runtime"`
	Expiry   Expiry   `toml:"expiry"`

	Policy    Policy            `toml:"policy"`
	Admission Admission         `toml:"admission"`
	Tenants   map[string]Tenant `toml:"tenants"`
	Elastic   Elastic           `toml:"elastic"`
	Audit     Audit             `toml:"audit"`
	Sessions  Sessions          `toml:"sessions"`
	Leases    Leases            `toml:"leases"`
}

// Enforcer is the section [enforcer], read by gpusliced.
type Enforcer struct {
	Socket          string        `toml:"socket"`
	RunDir          string        `toml:"run_dir"`
	StateDir        string        `toml:"state_dir"`
	Library         string        `toml:"library"`
	Group           string        `toml:"group"`
	LogLevel        string        `toml:"log_level"`
	MetricsAddress  string        `toml:"metrics_address"`
	TruthInterval   time.Duration `toml:"truth_interval"`
	SettleTime      time.Duration `toml:"settle_time"`
	ExitGrace       time.Duration `toml:"exit_grace"`
	IdleInterval    time.Duration `toml:"idle_interval"`
	ContextOverhead Size          `toml:"context_overhead"`
	NVML            string        `toml:"nvml"`

	Enforcement api.Enforcement `toml:"enforcement"`
}

// Runtime is the section [runtime], read by gpuslice-runtime and the hook.
type Runtime struct {
	Runtimes    []string `toml:"runtimes"`
	Missing     string   `toml:"missing"`
	DefaultVRAM string   `toml:"default_vram"`
	AllowEnv    bool     `toml:"allow_env"`
}

// Accepted values of keys with a choice.
const (
	NVMLAuto = "auto" // driver truth if NVML is available
	NVMLOff  = "off"

	MissingRefuse = "refuse" // a container without a quota is not created
	MissingPass   = "pass"   // it runs without gpuslice
	MissingRecord = "record" // its memory is counted and shown, but not limited
)

// Size is a size in bytes, parsed by api.ParseSize.
type Size uint64

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Size) UnmarshalText(text []byte) error {
	n, err := api.ParseSize(string(text))
	*s = Size(n)
	return err
}

func (s Size) String() string { return api.FormatSize(uint64(s)) }

// Duration is a duration that may be written in days.
type Duration time.Duration

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := api.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%.80q is not a duration: one such as \"90s\", \"12h\" or \"7d\" is accepted", text)
	}
	*d = Duration(parsed)
	return nil
}

// libraryOf returns the interceptor of the same installation, PREFIX/lib/gpuslice next to PREFIX/bin, as in packages. If it does
// not exist, it returns that of `make install`.
func libraryOf(executable func() (string, error)) string {
	if path, err := executable(); err == nil {
		library := filepath.Join(filepath.Dir(filepath.Dir(path)), "lib/gpuslice/libgpuslice.so")
		if _, err := os.Stat(library); err == nil {
			return library
		}
	}
	return api.DefaultLibrary
}

// Default returns the configuration without a file.
func Default() Config {
	return Config{
		Enforcer: Enforcer{
			Socket:          api.DefaultSocket,
			RunDir:          api.DefaultRunDir,
			StateDir:        api.DefaultState,
			Library:         libraryOf(os.Executable),
			Group:           "gpuslice",
			LogLevel:        "info",
			TruthInterval:   time.Second,
			SettleTime:      5 * time.Second,
			ExitGrace:       100 * time.Millisecond,
			IdleInterval:    10 * time.Second,
			ContextOverhead: 512 << 20,
			NVML:            NVMLAuto,
			Enforcement:     api.Auto,
		},
		Runtime: Runtime{
			Runtimes: []string{"runc", "crun"},
			Missing:  MissingRefuse,
		},
		Expiry:    Expiry{Grace: 10 * time.Second},
		Admission: Admission{Overcommit: 1},
		Elastic:   defaultElastic(),
		Policy:    defaultPolicy(),
		Audit:     Audit{MaxSize: 64 << 20, MaxAge: Duration(168 * time.Hour), Keep: 8},
		Tenants:   map[string]Tenant{DefaultTenant: {}},
		Sessions:  Sessions{Socket: api.DefaultSessionSocket, Limits: []SessionLimit{}},
		Leases:    defaultLeases(),
	}
}

// Load reads the file; keys that it does not set have the values of Default. It returns an *InvalidError for what it does not accept.
// A missing file is an error, except at the default path: a misspelt name must not mean no limit.
func Load(path string) (Config, error) {
	c := Default()
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && path == api.DefaultConfig {
		return c, nil
	}
	if err != nil {
		return Config{}, fmt.Errorf("read the configuration: %w", err)
	}
	if faults := parse(string(text), &c); len(faults) > 0 {
		return Config{}, &InvalidError{path, faults}
	}
	return c, nil
}

// Runtimes returns the low-level runtimes in a file that Load rejects, or the defaults if these cannot be read either. A broken
// file must not keep an engine from stopping and deleting containers.
func Runtimes(path string) []string {
	var c struct {
		Runtime struct {
			Runtimes []string `toml:"runtimes"`
		} `toml:"runtime"`
	}
	if _, err := toml.DecodeFile(path, &c); err != nil || len(c.Runtime.Runtimes) == 0 {
		return Default().Runtime.Runtimes
	}
	return c.Runtime.Runtimes
}

func (c *Config) check(f *faults) {
	e, r := &c.Enforcer, &c.Runtime
	for _, p := range []struct{ key, path string }{
		{"enforcer.socket", e.Socket}, {"enforcer.run_dir", e.RunDir}, {"enforcer.state_dir", e.StateDir}, {"enforcer.library", e.Library},
	} {
		f.unless(isPath(p.path), p.key, p.path, "an absolute path is accepted")
	}
	f.address("enforcer.metrics_address", e.MetricsAddress)
	for _, t := range []struct {
		key  string
		time time.Duration
	}{
		{"enforcer.truth_interval", e.TruthInterval}, {"enforcer.settle_time", e.SettleTime}, {"enforcer.exit_grace", e.ExitGrace},
		{"enforcer.idle_interval", e.IdleInterval}, {"policy.bypass_grace", c.Policy.BypassGrace},
	} {
		f.unless(t.time >= 10*time.Millisecond && t.time <= time.Hour, t.key, t.time, `"10ms" to "1h" are accepted`)
	}
	f.unless(oneOf(e.LogLevel, "debug", "info", "warn", "error"), "enforcer.log_level", e.LogLevel, `"debug", "info", "warn" and "error" are accepted`)
	f.unless(oneOf(e.NVML, NVMLAuto, NVMLOff), "enforcer.nvml", e.NVML, "%q and %q are accepted", NVMLAuto, NVMLOff)
	f.unless(oneOf(string(e.Enforcement), string(api.Auto), string(api.Native), string(api.Intercept)), "enforcer.enforcement", e.Enforcement,
		"%q, %q and %q are accepted", api.Auto, api.Native, api.Intercept)
	f.unless(e.Enforcement != api.Native || e.NVML != NVMLOff, "enforcer.enforcement", e.Enforcement,
		"the driver enforces quotas by NVML, and nvml = %q: %q and %q are accepted then", NVMLOff, api.Auto, api.Intercept)
	f.unless(len(r.Runtimes) > 0, "runtime.runtimes", r.Runtimes, "it is empty: the names or paths of OCI runtimes are accepted, the first that is found is used")
	f.unless(oneOf(r.Missing, MissingRefuse, MissingPass, MissingRecord), "runtime.missing", r.Missing,
		"%q, %q and %q are accepted", MissingRefuse, MissingPass, MissingRecord)
	f.unless(!r.AllowEnv || r.DefaultVRAM != "", "runtime.allow_env", r.AllowEnv, "allow_env needs default_vram, which is the most that an image's variable can ask for")
	if r.DefaultVRAM != "" {
		if _, _, err := api.ParseQuota(r.DefaultVRAM); err != nil {
			f.add("runtime.default_vram", "runtime.default_vram: %v", err)
		}
	}
	c.Audit.check(f)
	c.Policy.check(f)
	c.Admission.check(f)
	c.Elastic.check(f)
	c.Expiry.check(f)
	c.Sessions.check(f)
	c.Leases.check(f)
	c.checkSockets(f)
	checkTenants(c.Tenants, f)
}

// maxSocket leaves room in the kernel's 107 bytes for the temporary name of a socket: a dot before the name and a pid after it.
const maxSocket = 98

// checkSockets rejects socket paths that are too long, or equal.
func (c *Config) checkSockets(f *faults) {
	taken := make(map[string]string)
	for _, s := range []struct{ key, path string }{
		{"enforcer.socket", c.Enforcer.Socket}, {"sessions.socket", c.Sessions.Socket}, {"leases.socket", c.Leases.Socket},
	} {
		if s.path == "" {
			continue
		}
		f.unless(len(s.path) <= maxSocket, s.key, s.path, "a path of at most %d bytes is accepted", maxSocket)
		place := filepath.Clean(s.path)
		key, other := s.key, taken[place]
		if f.lines[key] == 0 && other != "" { // the default
			key, other = other, key
		}
		f.unless(taken[place] == "", key, s.path, "another path than that of %s is accepted", other)
		taken[place] = s.key
	}
}

func isPath(path string) bool { return filepath.IsAbs(path) && !strings.Contains(path, "\x00") }

var hostName = regexp.MustCompile(`^[0-9A-Za-z._:%-]*$`)

// address rejects addresses that cannot be listened on; "" is no address.
func (f *faults) address(key, address string) {
	if address == "" {
		return
	}
	host, port, err := net.SplitHostPort(address)
	_, err2 := strconv.ParseUint(port, 10, 16)
	f.unless(err == nil && err2 == nil && hostName.MatchString(host), key, address,
		`HOST:PORT is accepted, such as "127.0.0.1:9835", or ":9835" for all addresses, and "" for none`)
}

func oneOf(s string, accepted ...string) bool { return slices.Contains(accepted, s) }
