// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/badconfig"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

const shipped = "../../configs/config.toml"

func load(t *testing.T, text string) (Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.toml")
	must.Do(t, os.WriteFile(path, []byte(text), 0o600))
	return Load(path)
}

// sections returns the sections of the shipped file with the "#" of their lines removed. A section in double brackets is an
// example.
func sections(t *testing.T) (defaults, examples []string) {
	t.Helper()
	text := must.Get(os.ReadFile(shipped))(t)
	active := regexp.MustCompile(`(?m)^#([[a-z])`).ReplaceAllString(string(text), "$1")
	starts := regexp.MustCompile(`(?m)^\[`).FindAllStringIndex(active, -1)
	for i, start := range starts {
		end := len(active)
		if i+1 < len(starts) {
			end = starts[i+1][0]
		}
		if section := active[start[0]:end]; strings.HasPrefix(section, "[[") {
			examples = append(examples, section)
		} else {
			defaults = append(defaults, section)
		}
	}
	return defaults, examples
}

func TestTheShippedFileIsTheDefaults(t *testing.T) {
	defaults, _ := sections(t)
	same := map[string]string{"an empty file": "", "each section": strings.Join(defaults, "")}
	if text, err := os.ReadFile(shipped); err != nil {
		t.Fatal(err)
	} else {
		same["the shipped file"] = string(text)
	}
	for name, text := range same {
		if c, err := load(t, text); err != nil || !reflect.DeepEqual(c, Default()) {
			t.Errorf("%s: %v: %+v\nthe default is %+v", name, err, c, Default())
		}
	}
	if _, err := os.Stat(api.DefaultConfig); errors.Is(err, os.ErrNotExist) {
		if got, err := Load(api.DefaultConfig); err != nil || !reflect.DeepEqual(got, Default()) {
			t.Errorf("no file: %+v, %v", got, err)
		}
	}
}

// documented returns the TOML blocks in the documents that belong to this file, not to another program's.
func documented(t *testing.T) (blocks []string) {
	t.Helper()
	block := regexp.MustCompile("(?ms)^```toml\n(.*?)^```")
	others := regexp.MustCompile(`^\[(nvidia-container-runtime|plugins\.)`)
	for _, pattern := range []string{"../../README.md", "../../docs/*.md", "../../docs/*/*.md"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatal(pattern, err)
		}
		for _, file := range files {
			text := must.Get(os.ReadFile(file))(t)
			for _, found := range block.FindAllSubmatch(text, -1) {
				if !others.Match(found[1]) {
					blocks = append(blocks, string(found[1]))
				}
			}
		}
	}
	return blocks
}

func TestDocumentedSettingsFitTheShippedFile(t *testing.T) {
	text := must.Get(os.ReadFile(shipped))(t)
	defaults, examples := sections(t)
	blocks := documented(t)
	if len(defaults) < 10 || len(examples) == 0 || len(blocks) == 0 {
		t.Fatalf("found %d sections, %d examples, %d blocks of documents", len(defaults), len(examples), len(blocks))
	}
	for _, added := range slices.Concat(defaults, examples, blocks) {
		expect.NoError(t, must.Err(load(t, string(text)+added)), "with this at its end", added)
	}
	for _, added := range slices.Concat(examples, blocks) {
		if c, err := load(t, string(text)+added); err == nil && reflect.DeepEqual(c, Default()) {
			t.Errorf("it changes nothing:\n%s", added)
		}
	}
	if c, err := load(t, string(text)+examples[0]+examples[0]); err != nil || len(c.Sessions.Limits) != 2 {
		t.Errorf("an example twice: %+v, %v", c.Sessions, err)
	}
}

func TestTheFileForSharedHostsIsAccepted(t *testing.T) {
	expect.NoError(t, must.Err(Load("../../configs/shared.toml")))
}

func TestTheShippedFileNamesAndExplainsEveryKey(t *testing.T) {
	defaults, examples := sections(t)
	text := strings.Join(append(defaults, examples...), "")
	var c Config
	known := must.Get(toml.Decode(text, &c))(t)
	for _, table := range reflect.VisibleFields(reflect.TypeFor[Config]()) {
		fields, path := table.Type, []string{table.Tag.Get("toml")}
		if fields.Kind() == reflect.Map { // sections with arbitrary names; one stands for all
			fields, path = fields.Elem(), append(path, DefaultTenant)
		}
		for _, field := range reflect.VisibleFields(fields) {
			table, key := strings.Join(path, "."), field.Tag.Get("toml")
			if key == "" || !known.IsDefined(append(path, key)...) {
				t.Errorf("the file has no %s.%s (field %s)", table, key, field.Name)
			}
			if at := strings.Index(text, "\n"+key+" ="); at > 0 {
				lines := strings.Split(text[:at], "\n")
				expect.True(t, strings.HasPrefix(lines[len(lines)-1], "#"), table, key, "is not explained")
			}
		}
	}
}

func TestEveryKeyIsRead(t *testing.T) {
	c, err := load(t, `
[enforcer]
socket = "/a/b.sock"
run_dir = "/r"
state_dir = "/s"
library = "/l.so"
group = ""
log_level = "debug"
metrics_address = "127.0.0.1:9835"
truth_interval = "250ms"
settle_time = "3s"
exit_grace = "50ms"
idle_interval = "1m"
context_overhead = "300m"
nvml = "off"
enforcement = "intercept"
[runtime]
runtimes = ["/usr/bin/nvidia-container-runtime"]
missing = "pass"
default_vram = "50%"
allow_env = true
[admission]
overcommit = 1.25
reserve = "512m"
max_vram = "50%"
[elastic]
overcommit = 2.5
remap = false
min_resident = "5s"
quantum = "1m"
patience = "2m"
max_priority = 5
host_memory = "64G"
[tenants.physics]
max_vram = "40G"
[tenants."biology.1"]
[audit]
file = "/var/log/a"
max_size = "1G"
max_age = "24h"
keep = 0
[policy]
bypass = "kill"
scope = "slice"
allowance = "512m"
bypass_grace = "1s"
[expiry]
grace = "2m"
max_ttl = "12h"
[sessions]
socket = "/u.sock"
[[sessions.limits]]
user = "alice"
max_vram = "8G"
max_sessions = 2
[[sessions.limits]]
group = "100"
max_vram = "50%"
[leases]
socket = "/l.sock"
dir = "/d"
uids = "100000-100999"
cgroup = "c"
max_leases = 2
max_clients = 3
code_overhead = "1M"
load_timeout = "1m"
memory_max = "2G"
pids_max = 4
cpus = 1.5
metrics_address = "127.0.0.1:9836"
tls_address = ":9837"
tls_certificate = "/c.pem"
tls_key = "/k.pem"
tls_client_ca = "/ca.pem"
`)
	want := Config{
		Enforcer: Enforcer{
			Socket: "/a/b.sock", RunDir: "/r", StateDir: "/s", Library: "/l.so", LogLevel: "debug", MetricsAddress: "127.0.0.1:9835",
			TruthInterval: 250 * time.Millisecond, SettleTime: 3 * time.Second, ExitGrace: 50 * time.Millisecond, IdleInterval: time.Minute,
			ContextOverhead: 300 << 20, NVML: NVMLOff, Enforcement: api.Intercept,
		},
		Runtime: Runtime{Runtimes: []string{"/usr/bin/nvidia-container-runtime"}, Missing: MissingPass, DefaultVRAM: "50%", AllowEnv: true},
		Policy:  Policy{Bypass: api.Kill, Scope: api.ScopeSlice, Allowance: 512 << 20, BypassGrace: time.Second},
		Expiry:  Expiry{Grace: 2 * time.Minute, MaxTTL: TTL(12 * time.Hour)},
		Sessions: Sessions{Socket: "/u.sock", Limits: []SessionLimit{
			{User: "alice", MaxVRAM: Share{api.Share{Bytes: 8 << 30}}, MaxSessions: 2}, {Group: "100", MaxVRAM: Share{api.Share{Percent: 50}}},
		}},
		Leases: Leases{
			Socket: "/l.sock", Dir: "/d", UIDs: UIDs{100000, 100999}, Cgroup: "c", MaxLeases: 2, MaxClients: 3, CodeOverhead: 1 << 20,
			LoadTimeout: time.Minute, MemoryMax: 2 << 30, PIDsMax: 4, CPUs: 1.5, MetricsAddress: "127.0.0.1:9836",
			TLSAddress: ":9837", TLSCertificate: "/c.pem", TLSKey: "/k.pem", TLSClientCA: "/ca.pem",
		},
		Audit:     Audit{File: "/var/log/a", MaxSize: 1 << 30, MaxAge: Duration(24 * time.Hour)},
		Elastic:   Elastic{Overcommit: 2.5, MinResident: 5 * time.Second, Quantum: time.Minute, Patience: 2 * time.Minute, MaxPriority: 5, HostMemory: 64 << 30},
		Admission: Admission{Overcommit: 1.25, Reserve: 512 << 20, MaxVRAM: Share{api.Share{Percent: 50}}},
		Tenants:   map[string]Tenant{DefaultTenant: {}, "physics": {Share{api.Share{Bytes: 40 << 30}}}, "biology.1": {}},
	}
	if err != nil || !reflect.DeepEqual(c, want) {
		t.Errorf("got %+v, %v", c, err)
	}
}

func TestUnknownSyntaxIsRefusedWithItsLine(t *testing.T) {
	for text, want := range badconfig.Files {
		_, err := load(t, text)
		if err == nil {
			t.Errorf("accepted: %s", text)
			continue
		}
		for _, part := range append(want, "config.toml") {
			expect.ErrorContains(t, err, part, text)
		}
		expect.True(t, !strings.Contains(err.Error(), "\n"), "the error has several lines:", err)
		expect.True(t, !strings.Contains(err.Error(), ".go"), "the error names a source file:", err)
	}
}

func TestEachFaultOfAFileIsNamedInItsLine(t *testing.T) {
	_, err := load(t, `[enforcer]
sockt = "/a"
log_level = "loud" # debug
[runtime]
runtimes = ["runc",
  "crun=1", 7]
[[sessions.limits]]
user = "a"
max_vrm = "1G"
[[sessions.limits]]
user = "b"
max_vram = "1X"
[tenants."biology.1"]
max_vram = 5
`)
	var invalid *InvalidError
	if !errors.As(err, &invalid) {
		t.Fatal(err)
	}
	want := []string{
		":2: there is no key enforcer.sockt: did you mean enforcer.socket?",
		`:3: enforcer.log_level = "loud": "debug", "info", "warn" and "error" are accepted`,
		":5: runtime.runtimes: a list in brackets is accepted",
		":9: there is no key sessions.limits, number 1: max_vrm: did you mean sessions.limits, number 1: max_vram?",
		":12: sessions.limits, number 2: max_vram: ",
		`:14: tenants."biology.1".max_vram: "5" has no unit`,
	}
	lines := invalid.Lines()
	if len(lines) != len(want) {
		t.Fatalf("%q", lines)
	}
	for i, line := range lines {
		if !strings.HasPrefix(line, invalid.File+want[i]) {
			t.Errorf("%s, want %s", line, want[i])
		}
	}
	expect.Equal(t, err.Error(), lines[0]+" (5 more: `gpuslice config check --config "+invalid.File+"` lists them)")
}

func TestEachKeyHasAValueThatIsRefused(t *testing.T) {
	var texts strings.Builder
	for text := range badconfig.Files {
		texts.WriteString("\n" + text)
	}
	for _, table := range reflect.VisibleFields(reflect.TypeFor[Config]()) {
		fields := table.Type
		if fields.Kind() == reflect.Map {
			fields = fields.Elem()
		}
		for _, field := range reflect.VisibleFields(fields) {
			section, key := table.Tag.Get("toml"), field.Tag.Get("toml")
			set := regexp.MustCompile(`\n\[+` + section + `[^[]*\n` + key + ` =|\n\[\[` + section + `\.` + key + `]]`)
			expect.True(t, set.MatchString(texts.String()), "badconfig has no value for", section, key)
		}
	}
}

func TestUnreadableFileIsAnError(t *testing.T) {
	if _, err := Load(t.TempDir()); err == nil || errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	misspelt := filepath.Join(t.TempDir(), "confg.toml")
	expect.ErrorSays(t, must.Err(Load(misspelt)), os.ErrNotExist, misspelt)
}

func TestSizesAreFormattedWithUnits(t *testing.T) {
	expect.Equal(t, Default().Enforcer.ContextOverhead.String(), "512MiB")
	var s Size
	expect.ErrorIs(t, s.UnmarshalText([]byte("0")), api.ErrBadRequest)
}

func TestRuntimeIsReadFromAnInvalidFile(t *testing.T) {
	for text, want := range map[string][]string{
		"[runtime]\nruntimes = [\"crun\"]\nmissing = \"ignore\"\n":       {"crun"},
		"[runtime]\nruntimes = [\"crun\"]\n[enforcer]\nsockt = \"/a\"\n": {"crun"},
		"[runtime]\nruntimes = [\"crun\"]\n[enforcer\n":                  Default().Runtime.Runtimes,
		"[runtime]\nruntimes = []\n":                                     Default().Runtime.Runtimes,
		"[runtime]\nruntimes = 7\n":                                      Default().Runtime.Runtimes,
	} {
		path := filepath.Join(t.TempDir(), "config.toml")
		must.Do(t, os.WriteFile(path, []byte(text), 0o600))
		expect.Error(t, must.Err(Load(path)), text, "was loaded")
		if got := Runtimes(path); !reflect.DeepEqual(got, want) {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func TestALimitThatNamesNoNumberOfSessionsHasTheDefault(t *testing.T) {
	s := Sessions{Limits: []SessionLimit{{User: "a"}, {Group: "b", MaxSessions: 3}}}
	limits := s.ForUsers()
	if len(limits) != 2 || limits[0].User != "a" || limits[0].MaxSessions != DefaultMaxSessions || limits[1].Group != "b" || limits[1].MaxSessions != 3 {
		t.Errorf("%+v", limits)
	}
}
