// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/gpuslice/gpuslice/enforcer/api"
)

const shipped = "../../configs/config.toml"

func load(t *testing.T, text string) (Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return Load(path)
}

func TestTheShippedFileIsTheDefaults(t *testing.T) {
	c, err := Load(shipped)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(c, Default()) {
		t.Errorf("the file says %+v\nthe default is %+v", c, Default())
	}
	if _, err := os.Stat(api.DefaultConfig); errors.Is(err, os.ErrNotExist) {
		if none, err := Load(api.DefaultConfig); err != nil || !reflect.DeepEqual(none, Default()) {
			t.Errorf("no file: %+v, %v", none, err)
		}
	}
	if empty, err := load(t, ""); err != nil || !reflect.DeepEqual(empty, Default()) {
		t.Errorf("an empty file: %+v, %v", empty, err)
	}
	if err := c.check(); err != nil {
		t.Error(err)
	}
}

func TestTheFileForSharedHostsIsAccepted(t *testing.T) {
	if _, err := Load("../../configs/shared.toml"); err != nil {
		t.Error(err)
	}
}

func TestTheShippedFileNamesAndExplainsEveryKey(t *testing.T) {
	text, err := os.ReadFile(shipped)
	if err != nil {
		t.Fatal(err)
	}
	var c Config
	known, err := toml.Decode(string(text), &c)
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range reflect.VisibleFields(reflect.TypeFor[Config]()) {
		fields, path := table.Type, []string{table.Tag.Get("toml")}
		if fields.Kind() == reflect.Map { // sections with names of their own; one stands for all
			fields, path = fields.Elem(), append(path, DefaultTenant)
		}
		for _, field := range reflect.VisibleFields(fields) {
			table, key := strings.Join(path, "."), field.Tag.Get("toml")
			if key == "" || !known.IsDefined(append(path, key)...) {
				t.Errorf("the file has no %s.%s (field %s)", table, key, field.Name)
			}
			if at := strings.Index(string(text), "\n"+key+" ="); at > 0 {
				lines := strings.Split(string(text[:at]), "\n")
				if !strings.HasPrefix(lines[len(lines)-1], "#") {
					t.Errorf("%s.%s is not explained", table, key)
				}
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
		Elastic:   Elastic{Overcommit: 2.5, MinResident: 5 * time.Second, Quantum: time.Minute, HostMemory: 64 << 30},
		Admission: Admission{Overcommit: 1.25, Reserve: 512 << 20, MaxVRAM: Share{api.Share{Percent: 50}}},
		Tenants:   map[string]Tenant{DefaultTenant: {}, "physics": {Share{api.Share{Bytes: 40 << 30}}}, "biology.1": {}},
	}
	if err != nil || !reflect.DeepEqual(c, want) {
		t.Errorf("got %+v, %v", c, err)
	}
}

func TestWhatIsNotUnderstoodIsRefusedWithItsLine(t *testing.T) {
	for text, want := range map[string][]string{
		"[enforcer]\n\nsockt = \"/a\"\n":                                            {"line 3", "enforcer.sockt: gpuslice.toml(5) has them all"},
		"[runtime]\nmissing = \"pass\"\n[runtme]\nmissing = \"refuse\"\n":           {"line 3", "runtme"},
		"# a comment\nsocket = \"/a\"\n":                                            {"line 2", "socket"},
		"[enforcer]\n\"socket \" = \"/a\"\n":                                        {"enforcer"},
		"enforcer = {sockt = \"/a\"}\n":                                             {"enforcer.sockt"},
		"[enforcer]\nsocket = /a\n":                                                 {"line 2"},
		"[enforcer]\nsocket = 7\n":                                                  {"line 2: enforcer.socket: text in quotes is accepted"},
		"[enforcer]\nsocket = \"/a\"\nsocket = \"/b\"\n":                            {"line 3"},
		"[enforcer]\nsocket = \"a.sock\"\n":                                         {"enforcer.socket", "absolute"},
		"[enforcer]\nlog_level = \"verbose\"\n":                                     {"enforcer.log_level", `"debug"`},
		"[enforcer]\ntruth_interval = \"0s\"\n":                                     {"enforcer.truth_interval", "10ms"},
		"[enforcer]\nsettle_time = \"1ms\"\n":                                       {"enforcer.settle_time", "1h"},
		"[enforcer]\nexit_grace = \"2h\"\n":                                         {"enforcer.exit_grace", "1h"},
		"[enforcer]\nidle_interval = \"0s\"\n":                                      {"enforcer.idle_interval", "10ms"},
		"[policy]\nbypass_grace = \"0s\"\n":                                         {"policy.bypass_grace", "10ms"},
		"[enforcer]\ntruth_interval = \"soon\"\n":                                   {"line 2", "soon"},
		"[enforcer]\ncontext_overhead = \"0\"\n":                                    {"line 2", "4GiB"},
		"[enforcer]\ncontext_overhead = \"4X\"\n":                                   {"4X", "4GiB"},
		"[enforcer]\nnvml = \"on\"\n":                                               {"enforcer.nvml", `"auto"`},
		"[runtime]\nmissing = \"ignore\"\n":                                         {"runtime.missing", `"refuse"`},
		"[runtime]\nruntimes = []\n":                                                {"runtime.runtimes"},
		"[runtime]\ndefault_vram = \"150%\"\n":                                      {"runtime.default_vram", "100%"},
		"[runtime]\nallow_env = true\n":                                             {"runtime.allow_env", "allow_env needs default_vram"},
		"[enforcer]\nenforcement = \"driver\"\n":                                    {"enforcer.enforcement = \"driver\"", `"native"`},
		"[enforcer]\nenforcement = \"native\"\nnvml = \"off\"\n":                    {"enforcer.enforcement", `nvml = "off"`},
		"[runtime]\nallow_env = \"yes\"\n":                                          {"line 2: runtime.allow_env: true or false"},
		"[audit]\nfile = \"a\"\n":                                                   {"audit.file", "absolute"},
		"[audit]\nmax_size = \"1k\"\n":                                              {"audit.max_size", "64KiB"},
		"[audit]\nmax_age = \"1s\"\n":                                               {"audit.max_age", "1m"},
		"[audit]\nkeep = \"8\"\n":                                                   {"line 2: audit.keep: a whole number"},
		"[runtime]\nruntimes = \"runc\"\n":                                          {"line 2: runtime.runtimes: a list"},
		"[policy]\nallowance = [1]\n":                                               {"line 2: policy.allowance: text in quotes"},
		"[audit]\nkeep = -1\n":                                                      {"audit.keep", "0 to 10000"},
		"[sessions]\nsocket = \"s\"\n":                                              {"sessions.socket", "absolute"},
		"[[sessions.limits]]\nmax_vram = \"1G\"\n":                                  {"number 1", "exactly one"},
		"[[sessions.limits]]\nuser = \"a\"\ngroup = \"b\"\nmax_vram = \"1G\"\n":     {"number 1", "exactly one"},
		"[[sessions.limits]]\nuser = \"a\"\n":                                       {"number 1", "no max_vram"},
		"[[sessions.limits]]\nuser = \"a\"\nmax_vram = \"0\"\n":                     {"line 3"},
		"[[sessions.limits]]\nuser = \"a\"\nmax_vram = \"1G\"\nmax_sessions = -1\n": {"number 1", "max_sessions = -1"},
		"[[sessions.limits]]\nuser = \"a\"\nmaxvram = \"1G\"\n":                     {"sessions.limits.maxvram"},
		"[leases]\nsocket = \"l\"\n":                                                {"leases.socket", "absolute"},
		"[leases]\nuids = \"5\"\n":                                                  {"line 2", "range of user ids"},
		"[leases]\nuids = \"9-5\"\n":                                                {"line 2", "lower one first"},
		"[leases]\nuids = \"0-5\"\n":                                                {"line 2", "from 1 on"},
		"[leases]\ncgroup = \"a/b\"\n":                                              {"leases.cgroup", "one directory"},
		"[leases]\nmax_leases = 0\n":                                                {"leases.max_leases = 0", "1 to 10000"},
		"[leases]\nload_timeout = \"1ms\"\n":                                        {"leases.load_timeout", "1s"},
		"[leases]\nmemory_max = \"1M\"\n":                                           {"leases.memory_max", "64MiB"},
		"[leases]\ntls_address = \":1\"\n":                                          {"leases.tls_address is set", "leases.tls_certificate is not", "all four"},
		"[leases]\ntls_key = \"/k\"\n":                                              {"leases.tls_key is set", "leases.tls_address is not"},
		"[leases]\ntls_address = \":0\"\ntls_certificate = \"/c\"\ntls_key = \"/k\"\ntls_client_ca = \"/a\"\n": {"leases.tls_address = \":0\"", "HOST:PORT"},
		"[leases]\ntls_address = \":1\"\ntls_certificate = \"c\"\ntls_key = \"/k\"\ntls_client_ca = \"/a\"\n":  {"leases.tls_certificate = \"c\"", "absolute"},
		"[leases]\ncpus = -1.0\n":                          {"leases.cpus", "0.01"},
		"[expiry]\ngrace = \"1ms\"\n":                      {"expiry.grace", "100ms"},
		"[expiry]\ngrace = \"2h\"\n":                       {"expiry.grace", "1h"},
		"[expiry]\nmax_ttl = \"never\"\n":                  {"line 2", "never", "12h"},
		"[expiry]\nmax_ttl = \"0s\"\n":                     {"line 2", "0s"},
		"[policy]\nbypass = \"stop\"\n":                    {"policy.bypass", `"log", "refuse" and "kill"`},
		"[policy]\nscope = \"host\"\n":                     {"policy.scope", `"process" and "slice"`},
		"[policy]\nallowance = \"0\"\n":                    {"line 2", "no memory"},
		"[elastic]\novercommit = 0.9\n":                    {"elastic.overcommit = 0.9", "1.0 to 1000.0"},
		"[elastic]\nmin_resident = \"2h\"\n":               {"elastic.min_resident", "0s to 1h"},
		"[elastic]\nremap = false\nhost_cgroup = \"/x\"\n": {"elastic.host_cgroup", "that is for remap = true"},
		"[elastic]\nquantum = \"1s\"\n":                    {"elastic.quantum", "min_resident (2s) to 24h"},
		"[admission]\novercommit = 0.9\n":                  {"admission.overcommit = 0.9", "1.0 to 1000.0", "reserve"},
		"[admission]\novercommit = nan\n":                  {"admission.overcommit", "1.0 to 1000.0"},
		"[admission]\novercommit = \"2\"\n":                {"line 2: admission.overcommit: a number without quotes"},
		"[admission]\nreserve = \"-1G\"\n":                 {"line 2", "4GiB"},
		"[admission]\nmax_vram = \"110%\"\n":               {"line 2", "100%"},
		"[tenants.a]\nmaxvram = \"1G\"\n":                  {"line 2", "tenants.a.maxvram"},
		"[tenants.\"a b\"]\nmax_vram = \"1G\"\n":           {`tenants."a b"`, "letters, digits"},
		"[tenants.\"a+b\"]\n":                              {`tenants."a+b"`, "1 to 63"},
		"[tenants.a]\nmax_vram = \"0\"\n":                  {"line 2", "no memory"},
	} {
		_, err := load(t, text)
		if err == nil {
			t.Errorf("accepted: %s", text)
			continue
		}
		for _, part := range append(want, "config.toml") {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: the error does not say %q: %v", text, part, err)
			}
		}
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("the error has several lines: %q", err)
		}
		if strings.Contains(err.Error(), ".go") {
			t.Errorf("the error names a source file: %q", err)
		}
	}
}

func TestAFileThatCannotBeReadIsNotNoFile(t *testing.T) {
	if _, err := Load(t.TempDir()); err == nil || errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	misspelt := filepath.Join(t.TempDir(), "confg.toml")
	if _, err := Load(misspelt); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), misspelt) {
		t.Errorf("got %v", err)
	}
}

func TestASizeIsShownAsPeopleWriteIt(t *testing.T) {
	if got := Default().Enforcer.ContextOverhead.String(); got != "512MiB" {
		t.Errorf("got %s", got)
	}
	var s Size
	if err := s.UnmarshalText([]byte("0")); !errors.Is(err, api.ErrBadRequest) {
		t.Errorf("got %v", err)
	}
}

func TestASpoiltFileStillNamesTheRuntime(t *testing.T) {
	for text, want := range map[string][]string{
		"[runtime]\nruntimes = [\"crun\"]\nmissing = \"ignore\"\n":       {"crun"},
		"[runtime]\nruntimes = [\"crun\"]\n[enforcer]\nsockt = \"/a\"\n": {"crun"},
		"[runtime]\nruntimes = [\"crun\"]\n[enforcer\n":                  Default().Runtime.Runtimes,
		"[runtime]\nruntimes = []\n":                                     Default().Runtime.Runtimes,
		"[runtime]\nruntimes = 7\n":                                      Default().Runtime.Runtimes,
	} {
		path := filepath.Join(t.TempDir(), "config.toml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(path); err == nil {
			t.Errorf("%q was loaded", text)
		}
		if got := Runtimes(path); !reflect.DeepEqual(got, want) {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}
