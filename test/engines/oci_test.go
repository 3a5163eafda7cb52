//go:build engines

// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/test/testhost"
)

// oci is gpuslice-runtime with a bundle and without an engine.
type oci struct {
	s       *site
	runtime []string // the low-level runtime, in the cache
	hostPID sync.Map // crun's containers without a pid namespace, by name
}

func (e *oci) isCrun() bool { return e.runtime[0] == "crun" }

// showsRuncToo: standard error of runc and of the container's process are one stream.
func (e *oci) showsRuncToo() bool { return !e.isCrun() }

func (e *oci) needsOwnNamespace() bool { return e.isCrun() }

func (e *oci) low(t testing.TB) string {
	if e.isCrun() {
		return isolatedRuntime(t, e.runtime...)
	}
	return tool(t, e.runtime...)
}

func (e *oci) options(t testing.TB) testhost.Options {
	return testhost.Options{Runtimes: []string{e.low(t)}}
}

func (e *oci) up(s *site) { e.s = s }

func (e *oci) id(name string) string { return name }

func (e *oci) invoke(args ...string) (string, error) {
	return e.s.output("gpuslice-runtime", append([]string{"--root", e.s.in("runc")}, args...)...)
}

func (e *oci) bundle(name string) string { return e.s.in("bundles", name) }

func (e *oci) run(c container) (string, error) {
	bundle := e.bundle(c.name)
	if err := e.prepare(bundle, c); err != nil {
		return "", err
	}
	if c.hostPID && e.isCrun() {
		e.hostPID.Store(c.name, true)
	}
	return e.start(c.name)
}

func (e *oci) start(name string) (string, error) {
	if !e.isCrun() {
		return e.invoke("run", "--detach", "--bundle", e.bundle(name), name)
	}
	// Engines create and start separately. crun's run reports success even if its child process was killed.
	if out, err := e.invoke("create", "--bundle", e.bundle(name), name); err != nil {
		return out, err
	}
	return e.invoke("start", name)
}

// prepare creates a bundle with an overlay root, as engines do.
func (e *oci) prepare(bundle string, c container) error {
	rootfs := filepath.Join(bundle, "rootfs")
	for _, dir := range []string{rootfs, bundle + "/upper", bundle + "/work"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if c.userns { // the container's root must be able to create mount points
		if err := os.Chown(bundle+"/upper", usernsBase, usernsBase); err != nil {
			return err
		}
	}
	lower := filepath.Join(tools, "images", c.image)
	data := fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%s/work", lower, bundle, bundle)
	if out, err := e.s.output("mount", "-t", "overlay", "-o", data, "overlay", rootfs); err != nil {
		return fmt.Errorf("mount the root: %w: %s", err, out)
	}
	config, err := json.Marshal(ociSpec(c, "/"+cgroupParent(e.s.Dir)+"/"+c.name))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(bundle, "config.json"), config, 0o644)
}

func (e *oci) exec(name string, args ...string) (string, error) {
	if _, ok := e.hostPID.Load(name); !ok {
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
			out, err := e.invoke(append([]string{"exec", name}, args...)...)
			// Debian 12's crun 1.8.1 sometimes fails to join a user namespace (containers/crun#1264).
			if err == nil || !strings.Contains(out, "fail startup") || time.Now().After(deadline) {
				return out, err
			}
		}
	}
	// Without a pid namespace crun's exec waits for all processes that the command leaves running, so --detach is used.
	const script = `file=$1; shift; "$@"; while [ -e /proc/$(cat $file)/exe ]; do sleep 0.01; done`
	file := filepath.Join(e.bundle(name), "pid")
	words := []string{"-euc", script, "sh", file, "gpuslice-runtime", "--root", e.s.in("runc"), "exec", "--detach", "--pid-file", file, name}
	return e.s.output("sh", append(words, args...)...)
}

func (e *oci) kill(name string) (string, error) { return e.invoke("kill", name, "KILL") }

func (e *oci) pause(name string) (string, error)   { return e.invoke("pause", name) }
func (e *oci) unpause(name string) (string, error) { return e.invoke("resume", name) }

func (e *oci) restart(name string) (string, error) {
	if out, err := e.invoke("delete", "--force", name); err != nil {
		return out, err
	}
	return e.start(name)
}

func (e *oci) remove(name string) (string, error) {
	bundle := e.bundle(name)
	if _, err := os.Stat(bundle); errors.Is(err, fs.ErrNotExist) {
		return "", nil
	} else if err != nil {
		return "", err
	}
	out, err := e.invoke("delete", "--force", name)
	if err != nil && strings.Contains(out, "does not exist") {
		err = nil
	}
	if said, failed := e.s.output("umount", filepath.Join(bundle, "rootfs")); err == nil && failed != nil && !strings.Contains(said, "not mounted") {
		return said, failed
	}
	if err == nil {
		err = os.RemoveAll(bundle)
	}
	return out, err
}

// usernsBase is the host's uid and gid for root in a user namespace.
const usernsBase = 100000

type object = map[string]any

func ociSpec(c container, cgroup string) object {
	capabilities := []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_KILL", "CAP_SETGID", "CAP_SETUID"}
	mounts := []object{
		{"destination": "/proc", "type": "proc", "source": "proc"},
		{"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": []string{"nosuid", "mode=755"}},
	}
	for _, b := range c.binds {
		mounts = append(mounts, object{"destination": b.target, "type": "bind", "source": b.source, "options": []string{"rbind", "rw"}})
	}
	namespaces := []object{{"type": "mount"}, {"type": "ipc"}, {"type": "uts"}}
	if !c.hostPID {
		namespaces = append(namespaces, object{"type": "pid"})
	}
	linux := object{"cgroupsPath": cgroup, "resources": object{"devices": []object{{"allow": true, "access": "rwm"}}}}
	if c.userns {
		namespaces = append(namespaces, object{"type": "user"})
		mapping := []object{{"containerID": 0, "hostID": usernsBase, "size": 65536}}
		linux["uidMappings"], linux["gidMappings"] = mapping, mapping
	}
	linux["namespaces"] = namespaces
	if c.privileged {
		capabilities = append(capabilities, "CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_SYS_PTRACE", "CAP_MKNOD", "CAP_SYS_CHROOT")
	}
	return object{
		"ociVersion": "1.0.2",
		"process": object{
			"user": object{"uid": 0, "gid": 0}, "cwd": "/", "args": c.args, "env": c.env,
			"noNewPrivileges": false,
			"capabilities":    object{"bounding": capabilities, "effective": capabilities, "permitted": capabilities},
		},
		"root":        object{"path": "rootfs", "readonly": c.readOnly},
		"annotations": c.annotations,
		"mounts":      mounts,
		"linux":       linux,
	}
}
