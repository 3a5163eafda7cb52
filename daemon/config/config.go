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
	"reflect"
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

// Load reads the file; keys that it does not set have the values of Default. A missing file is an error, except at the default
// path: a misspelt name must not mean no limit.
func Load(path string) (Config, error) {
	c := Default()
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && path == api.DefaultConfig {
		return c, nil
	}
	if err != nil {
		return Config{}, fmt.Errorf("read the configuration: %w", err)
	}
	if err := parse(string(text), &c); err != nil {
		return Config{}, fmt.Errorf("configuration %s: %w", path, err)
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

func parse(text string, c *Config) error {
	known, err := toml.Decode(text, c)
	if err != nil {
		var syntax toml.ParseError
		if errors.As(err, &syntax) {
			return fmt.Errorf("line %d: %s", syntax.Position.Line, message(syntax))
		}
		return wrongType(err)
	}
	if unknown := known.Undecoded(); len(unknown) > 0 {
		return fmt.Errorf("%sthere is no key %s%s", lineOf(text, unknown[0]), unknown[0], whereIs(unknown[0]))
	}
	return c.check()
}

// whereIs names the sections that accept a key which the file has outside of them, or else says where all keys are documented.
func whereIs(key toml.Key) string {
	var has []string
	for _, table := range reflect.VisibleFields(reflect.TypeFor[Config]()) {
		section, fields := table.Tag.Get("toml"), table.Type
		if fields.Kind() == reflect.Map {
			section, fields = section+".NAME", fields.Elem()
		}
		for _, field := range reflect.VisibleFields(fields) {
			if len(key) == 1 && field.Tag.Get("toml") == key[0] {
				has = append(has, "["+section+"]")
			}
		}
	}
	if len(has) == 0 {
		return ": gpuslice.toml(5) has them all"
	}
	return " outside of a section: write the name of its section in a line above it (" + strings.Join(has, ", ") + ")"
}

func message(e toml.ParseError) string {
	if e.Message != "" {
		return e.Message
	}
	return strings.TrimPrefix(e.Error(), "toml: ")
}

// The library's error for a value of the wrong type names Go types.
var (
	incompatible = regexp.MustCompile(`^toml: line (\d+) \(last key "(.+)"\): incompatible types: TOML value has type \S+; destination has type (\w+)`)
	inWords      = map[string]string{
		"string": "text in quotes", "primitive": "text in quotes", "slice": "a list in brackets", "boolean": "true or false, without quotes,",
		"float": "a number without quotes, such as 1.5,", "integer": "a whole number without quotes",
	}
)

// wrongType rewrites that error to name what is accepted.
func wrongType(err error) error {
	m := incompatible.FindStringSubmatch(err.Error())
	if m == nil || inWords[m[3]] == "" {
		return err
	}
	return fmt.Errorf("line %s: %s: %s is accepted", m[1], m[2], inWords[m[3]])
}

// lineOf returns the line that sets key, as "line 7: ", or "" if it is not found (an inline table).
func lineOf(text string, key toml.Key) string {
	table := ""
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSpace(line)
		if inner, ok := strings.CutPrefix(line, "["); ok {
			table, _, _ = strings.Cut(strings.TrimPrefix(inner, "["), "]")
			table = strings.TrimSpace(table)
			if table == key.String() {
				return fmt.Sprintf("line %d: ", number)
			}
			continue
		}
		name, _, ok := strings.Cut(line, "=")
		name = strings.Trim(strings.TrimSpace(name), `"'`)
		if table != "" {
			name = table + "." + name
		}
		if ok && name == key.String() {
			return fmt.Sprintf("line %d: ", number)
		}
	}
	return ""
}

func (c *Config) check() error {
	e, r := &c.Enforcer, &c.Runtime
	for _, p := range []struct{ key, path string }{
		{"socket", e.Socket}, {"run_dir", e.RunDir}, {"state_dir", e.StateDir}, {"library", e.Library},
	} {
		if !isPath(p.path) {
			return fmt.Errorf("enforcer.%s = %q: an absolute path is accepted", p.key, p.path)
		}
	}
	if err := checkAddress("enforcer.metrics_address", e.MetricsAddress); err != nil {
		return err
	}
	for _, t := range []struct {
		key  string
		time time.Duration
	}{
		{"enforcer.truth_interval", e.TruthInterval}, {"enforcer.settle_time", e.SettleTime}, {"enforcer.exit_grace", e.ExitGrace},
		{"enforcer.idle_interval", e.IdleInterval}, {"policy.bypass_grace", c.Policy.BypassGrace},
	} {
		if t.time < 10*time.Millisecond || t.time > time.Hour {
			return fmt.Errorf("%s = %q: \"10ms\" to \"1h\" are accepted", t.key, t.time)
		}
	}
	switch {
	case !oneOf(e.LogLevel, "debug", "info", "warn", "error"):
		return fmt.Errorf("enforcer.log_level = %q: \"debug\", \"info\", \"warn\" and \"error\" are accepted", e.LogLevel)
	case !oneOf(e.NVML, NVMLAuto, NVMLOff):
		return fmt.Errorf("enforcer.nvml = %q: %q and %q are accepted", e.NVML, NVMLAuto, NVMLOff)
	case !oneOf(string(e.Enforcement), string(api.Auto), string(api.Native), string(api.Intercept)):
		return fmt.Errorf("enforcer.enforcement = %q: %q, %q and %q are accepted", e.Enforcement, api.Auto, api.Native, api.Intercept)
	case e.Enforcement == api.Native && e.NVML == NVMLOff:
		return fmt.Errorf("enforcer.enforcement = %q: with nvml = %q there is nobody to ask: %q and %q are accepted then", e.Enforcement, NVMLOff, api.Auto, api.Intercept)
	case len(r.Runtimes) == 0:
		return errors.New("runtime.runtimes is empty: the names or paths of OCI runtimes are accepted, the first that is found is used")
	case !oneOf(r.Missing, MissingRefuse, MissingPass, MissingRecord):
		return fmt.Errorf("runtime.missing = %q: %q, %q and %q are accepted", r.Missing, MissingRefuse, MissingPass, MissingRecord)
	}
	if r.AllowEnv && r.DefaultVRAM == "" {
		return errors.New("runtime.allow_env = true: allow_env needs default_vram, which is the most that an image's variable can ask for")
	}
	if r.DefaultVRAM != "" {
		if _, _, err := api.ParseQuota(r.DefaultVRAM); err != nil {
			return fmt.Errorf("runtime.default_vram: %w", err)
		}
	}
	if err := c.Audit.check(); err != nil {
		return err
	}
	if err := c.Policy.check(); err != nil {
		return err
	}
	if err := c.Admission.check(); err != nil {
		return err
	}
	if err := c.Elastic.check(); err != nil {
		return err
	}
	if err := c.Expiry.check(); err != nil {
		return err
	}
	if err := c.Sessions.check(); err != nil {
		return err
	}
	if err := c.Leases.check(); err != nil {
		return err
	}
	if err := c.checkSockets(); err != nil {
		return err
	}
	return checkTenants(c.Tenants)
}

// maxSocket leaves room in the kernel's 107 bytes for the temporary name of a socket: a dot before the name and a pid after it.
const maxSocket = 98

// checkSockets rejects socket paths that are too long, or equal.
func (c *Config) checkSockets() error {
	taken := make(map[string]string)
	for _, s := range []struct{ key, path string }{
		{"enforcer.socket", c.Enforcer.Socket}, {"sessions.socket", c.Sessions.Socket}, {"leases.socket", c.Leases.Socket},
	} {
		place := filepath.Clean(s.path)
		switch other := taken[place]; {
		case s.path == "":
			continue
		case len(s.path) > maxSocket:
			return fmt.Errorf("%s = %q: a path of at most %d bytes is accepted", s.key, s.path, maxSocket)
		case other != "":
			return fmt.Errorf("%s = %q: another path than that of %s is accepted", s.key, s.path, other)
		}
		taken[place] = s.key
	}
	return nil
}

func isPath(path string) bool { return filepath.IsAbs(path) && !strings.Contains(path, "\x00") }

var hostName = regexp.MustCompile(`^[0-9A-Za-z._:%-]*$`)

// checkAddress rejects addresses that cannot be listened on; "" is no address.
func checkAddress(key, address string) error {
	if address == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(address)
	if _, err2 := strconv.ParseUint(port, 10, 16); err != nil || err2 != nil || !hostName.MatchString(host) {
		return fmt.Errorf("%s = %q: HOST:PORT is accepted, such as \"127.0.0.1:9835\", or \":9835\" for all addresses, and \"\" for none", key, address)
	}
	return nil
}

func oneOf(s string, accepted ...string) bool { return slices.Contains(accepted, s) }
