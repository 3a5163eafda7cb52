//go:build engines

// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/testhost"
)

type docker struct {
	*dockerlike
	version    string   // of dockerd and docker, the directory in the cache
	containerd string   // its directory
	low        []string // the low-level runtime, in the cache
	// old is set for an engine without annotations: variables set the quota, as allow_env permits.
	old bool
	// shim makes our shim the runtime "gpuslice", as `gpuslice install docker` does; else it is gpuslice-runtime.
	shim bool
	// more edits daemon.json; may be nil.
	more func(config object)

	mu       sync.Mutex
	remapped *dockerlike     // of a second daemon, with userns-remap; nil if it is down
	inUserns map[string]bool // the second daemon's containers, by name and id
}

// oldDefault is default_vram for engines without annotations; the variable can lower it.
const oldDefault = "70G"

func (e *docker) options(t testing.TB) testhost.Options {
	o := testhost.Options{Runtimes: []string{tool(t, e.low...)}}
	if e.old {
		o.Runtimes = []string{withoutCapability(t, o.Runtimes[0])}
		o.Runtime = fmt.Sprintf("default_vram = %q\nallow_env = true", oldDefault)
	}
	return o
}

// withoutCapability wraps a low-level runtime to drop capabilities that root lacks here: an old dockerd gives a privileged
// container all existing capabilities, which makes an old runc fail.
func withoutCapability(t testing.TB, runtime string) string {
	has := must.Get(unix.PrctlRetInt(unix.PR_CAPBSET_READ, unix.CAP_SYS_RESOURCE, 0, 0, 0))(t)
	if has == 1 {
		return runtime
	}
	script := fmt.Sprintf(`#!/bin/sh
flag=
for word; do
	case $flag in
	--bundle) file=$word/config.json ;;
	--process) file=$word ;;
	*) file= ;;
	esac
	[ -z "$file" ] || sed -i 's/"CAP_SYS_RESOURCE",//g' "$file"
	flag=$word
done
exec %s "$@"
`, runtime)
	path := filepath.Join(t.TempDir(), "runc")
	must.Do(t, os.WriteFile(path, []byte(script), 0o755))
	return path
}

func (e *docker) hasDaemon(name string) bool { return name == "containerd" || name == "dockerd" }

const (
	dockerRuntime = "gpuslice"      // also Docker's default here
	dockerShim    = "gpuslice-shim" // our shim, with options
)

func (e *docker) up(s *site) {
	tool(s.t, e.version, "dockerd")
	containerdConfigure(s, containerdOptions{version: e.containerd})
	s.prepend(filepath.Dir(filepath.Join(e.low...))) // docker's default runtime "runc"
	s.prepend(e.version)
	containerdStart(s)
	// A file holds runc's root, since dockerd passes only ConfigPath to an unknown shim.
	s.Must(os.WriteFile(s.in("shim.toml"), fmt.Appendf(nil, "Root = %q\n", s.in("docker", "exec", "runtime-shim")), 0o644))
	hadDocker()
	s.t.Cleanup(func() {
		// Unmounts what a killed dockerd has bound.
		_ = unix.Unmount(s.in("docker", "data"), 0)
		if !hadDocker() {
			_ = os.Remove(dockerPlugins)
			_ = os.Remove(filepath.Dir(dockerPlugins))
		}
	})
	e.dockerlike = e.client(s, "docker")
	config := e.config(s, "docker")
	config["containerd"] = s.containerdSocket()
	config["containerd-namespace"] = s.containerdNamespace()
	config["containerd-plugins-namespace"] = s.containerdNamespace() + "-plugins"
	config["live-restore"] = true
	if e.more != nil {
		e.more(config)
	}
	e.daemon(s, "docker", "dockerd", config)
	// A restarted containerd is ready when dockerd has found it.
	back := s.daemons["containerd"]
	first := back.ready
	back.ready = func() error {
		if err := first(); err != nil {
			return err
		}
		out, err := e.invoke("version", "--format", "{{range .Server.Components}}{{.Name}} {{end}}")
		if err == nil && !strings.Contains(out, "containerd ") {
			err = fmt.Errorf("dockerd sees only %q", out)
		}
		return err
	}
	for _, image := range images {
		s.must(e.program[0], append(e.program[1:], "load", "--quiet", "--input", imageArchive(s.t, image))...)
	}
}

// dockerPlugins is a directory that every dockerd creates, whatever its configuration.
const dockerPlugins = "/run/docker/plugins"

var hadDocker = sync.OnceValue(func() bool {
	_, err := os.Stat(dockerPlugins)
	return err == nil
})

func (e *docker) client(s *site, dir string) *dockerlike {
	d := &dockerlike{
		s: s, program: []string{"docker", "--host", "unix://" + s.in(dir, "sock")}, runtime: dockerRuntime,
		flags: []string{"--network", "none"},
	}
	if e.old {
		d.annotate = asVariable
	}
	return d
}

func asVariable(annotations map[string]string) (flags []string) {
	for key, value := range annotations {
		if key == "gpuslice.ttl" || strings.HasPrefix(key, "gpuslice.vram") {
			flags = append(flags, "--env", strings.ToUpper(strings.ReplaceAll(key, ".", "_"))+"="+value)
		}
	}
	return flags
}

// config returns daemon.json for a daemon with all paths in a directory of the site.
func (e *docker) config(s *site, dir string) object {
	runtimes := object{dockerRuntime: object{"path": filepath.Join(s.Bin, "gpuslice-runtime")}}
	if e.shim {
		runtimes[dockerRuntime] = object{"runtimeType": shimRuntime}
	}
	config := object{
		"hosts":     []string{"unix://" + s.in(dir, "sock")},
		"data-root": s.in(dir, "data"), "exec-root": s.in(dir, "exec"), "pidfile": s.in(dir, "pid"),
		"bridge": "none", "iptables": false, "ip6tables": false, "ip-forward": false, "userland-proxy": false,
		"exec-opts": []string{"native.cgroupdriver=cgroupfs"}, "cgroup-parent": "/" + cgroupParent(s.Dir),
		"runtimes": runtimes, "default-runtime": dockerRuntime,
	}
	if e.old {
		config["deprecated-key-path"] = s.in(dir, "key.json") // the default is in /etc/docker
	} else {
		runtimes[dockerShim] = object{"runtimeType": shimRuntime, "options": object{"ConfigPath": s.in("shim.toml")}}
	}
	return config
}

// daemon starts a dockerd with a daemon.json; before is its command prefix.
func (e *docker) daemon(s *site, dir, name string, config object, before ...string) {
	s.t.Helper()
	if err := os.Mkdir(s.in(dir), 0o711); err != nil && !os.IsExist(err) {
		s.t.Fatal(err)
	}
	text := must.Get(json.MarshalIndent(config, "", "  "))(s.T)
	file := s.in(dir, "daemon.json")
	s.Must(os.WriteFile(file, text, 0o644))
	client := e.client(s, dir)
	s.daemon(name, func() error {
		if out, err := client.invoke("version"); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}, append(before, "dockerd", "--config-file", file)...)
}

// usernsUp starts a second dockerd, since userns-remap applies to a whole daemon. It starts its own containerd, and has its own
// mount namespace for /etc/subuid.
func (e *docker) usernsUp(s *site) {
	s.t.Helper()
	s.Must(os.WriteFile(s.in("subid"), fmt.Appendf(nil, "daemon:%d:65536\n", usernsBase), 0o644))
	config := e.config(s, "remapped")
	config["userns-remap"] = "daemon"
	mount := fmt.Sprintf(`mount --bind %[1]s /etc/subuid && mount --bind %[1]s /etc/subgid && exec "$@"`, s.in("subid"))
	e.daemon(s, "remapped", "dockerd-remapped", config, "unshare", "--mount", "--propagation", "private", "sh", "-ec", mount, "sh")
	client := e.client(s, "remapped")
	must.Output(client.invoke("load", "--quiet", "--input", imageArchive(s.t, "debian")))(s.t)
	e.remapped, e.inUserns = client, map[string]bool{}
}

func (e *docker) usernsDown() {
	e.remapped.s.daemons["dockerd-remapped"].stop(unix.SIGTERM)
	e.remapped, e.inUserns = nil, nil
}

func (e *docker) of(name string) *dockerlike {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.inUserns[name] {
		return e.remapped
	}
	return e.dockerlike
}

func (e *docker) run(c container) (string, error) {
	if !c.userns {
		return e.dockerlike.run(c)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.usernsUp(e.s)
	e.inUserns[c.name] = true
	out, err := e.remapped.run(c)
	e.inUserns[e.remapped.id(c.name)] = true
	return out, err
}

func (e *docker) exec(name string, args ...string) (string, error) {
	return e.of(name).exec(name, args...)
}

func (e *docker) id(name string) string { return e.of(name).id(name) }

func (e *docker) remove(name string) (string, error) {
	client := e.of(name)
	out, err := client.remove(name)
	if client != e.dockerlike {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.usernsDown()
	}
	return out, err
}

// refusals covers rejected values of the variable if old. A missing variable is valid: the default applies.
func (e *docker) refusals() []refusal {
	if !e.old {
		return bad
	}
	var all []refusal
	for _, r := range []struct {
		value string
		told  []string
	}{
		{"4X", []string{`"4X"`, `"4G"`}},
		{"0", []string{`"0"`}},
		{"-1G", []string{`"-1G"`}},
		{"99999999999G", []string{`"99999999999G"`}},
		{"50%", []string{`"50%"`, "a size and a share cannot be compared"}},
		{"71G", []string{`"71G"`, "the most that it can ask for"}},
	} {
		all = append(all, refusal{vram(r.value), append(r.told, "GPUSLICE_VRAM", "is not accepted", "default_vram", `"`+oldDefault+`"`)})
	}
	return all
}
