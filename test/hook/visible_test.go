// SPDX-License-Identifier: Apache-2.0

package hook_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/needs"
)

func node(path string, minor int) object {
	return object{"path": path, "type": "c", "major": 195, "minor": minor, "fileMode": 0o666}
}

func (b *bundle) set(t testing.TB, key string, value any) {
	t.Helper()
	b.config["linux"].(object)[key] = value
	b.save(t)
}

// nvidiaHook adds a hook with the name of NVIDIA's hook that likewise creates device nodes in the container.
func (b *bundle) nvidiaHook(t testing.TB, first bool, env string, nodes ...string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "nvidia-container-runtime-hook")
	script := "#!/bin/sh\npid=$(sed -n 's/.*\"pid\": *\\([0-9]*\\).*/\\1/p')\n"
	for _, n := range nodes {
		script += "nsenter --target $pid --mount mknod -m 666 " + b.rootfs("dev", "nvidia"+n) + " c 195 " + n + " || exit 1\n"
	}
	must.Do(t, os.WriteFile(path, []byte(script), 0o755))
	list, _ := b.config["hooks"].(object)["prestart"].([]object)
	at := len(list)
	if first {
		at = 0
	}
	b.config["hooks"].(object)["prestart"] = slices.Insert(list, at, object{"path": path, "env": []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}})
	process := b.config["process"].(object)
	process["env"] = append(process["env"].([]string), "NVIDIA_VISIBLE_DEVICES="+env)
	b.save(t)
}

func onHost(t *testing.T, minor uint32) string {
	t.Helper()
	needs.Root(t)
	path := filepath.Join(t.TempDir(), "node")
	must.Do(t, unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(195, minor))))
	return path
}

func TestEnforcerGetsTheVisibleDevices(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(t *testing.T, b *bundle)
		want []string
	}{
		{"Nothing", func(*testing.T, *bundle) {}, nil},
		{"Nodes", func(t *testing.T, b *bundle) {
			b.set(t, "devices", []object{node("/dev/nvidia1", 1), node("/dev/nvidia3", 3), node("/dev/nvidiactl", 255), node("/dev/other", 3)})
		}, []string{"minor:1", "minor:3"}},
		{"Elsewhere", func(t *testing.T, b *bundle) { b.set(t, "devices", []object{node("/opt/gpu", 2)}) }, []string{"minor:2"}},
		{"Bound", func(t *testing.T, b *bundle) {
			b.mount(t, onHost(t, 2), "/dev/nvidia2")
			b.mount(t, onHost(t, 0), "/dev/null2") // the number identifies the device, not the name
			b.mount(t, onHost(t, 255), "/dev/nvidiactl")
		}, []string{"minor:0", "minor:2"}},
		{"WSL", func(t *testing.T, b *bundle) {
			b.set(t, "devices", []object{node("/dev/nvidia1", 1), {"path": "/dev/dxg", "type": "c", "major": 10, "minor": 125}})
		}, nil},
		{"HookBefore", func(t *testing.T, b *bundle) { b.nvidiaHook(t, true, "1", "4") }, []string{"1", "minor:4"}},
		{"HookAfter", func(t *testing.T, b *bundle) { b.nvidiaHook(t, false, "1", "4") }, []string{"1"}},
		{"HookOfAll", func(t *testing.T, b *bundle) { b.nvidiaHook(t, false, "all", "4") }, nil},
		{"HookOfNone", func(t *testing.T, b *bundle) { b.nvidiaHook(t, true, "none") }, nil},
		{"LinkOutOfTheRoot", func(t *testing.T, b *bundle) {
			// An image without a mount on /dev, and with a link from /dev to a host directory that has a node.
			must.Do(t, os.Remove(b.rootfs("dev")))
			must.Do(t, os.Symlink(strings.Repeat("../", 12)+filepath.Dir(onHost(t, 6)), b.rootfs("dev")))
			b.config["mounts"] = b.config["mounts"].([]object)[:1]
			b.set(t, "devices", []object{node("/opt/gpu", 5)})
		}, []string{"minor:5"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			forEachRuntime(t, func(t *testing.T, r runtime) {
				e := startEnforcer(t)
				b := newBundle(t, id(t), fourGiB, hooks(t, e, "prestart"))
				c.set(t, b)
				container := newContainer(t, r, id(t), b)
				out, err := container.create()
				must.Len(t, e.registered, 1, "registered", err, out)
				expect.EqualSlices(t, e.registered[0].Visible, c.want, "it sees")
			})
		})
	}
}

func TestVisibleDevicesAreTheSameInAUserNamespace(t *testing.T) {
	requires(t, "runc")
	e := startEnforcer(t)
	b := newBundle(t, id(t), fourGiB, hooks(t, e, "prestart"))
	inUserNamespace(t, b)
	b.mount(t, onHost(t, 2), "/dev/nvidia2", "rw")
	c := newContainer(t, runc, id(t), b)
	c.start()
	expect.EqualSlices(t, e.registered[0].Visible, []string{"minor:2"}, "it sees")
	checkBound(t, c)
}

// inUserNamespace gives the container a user namespace, and the ownership of its root filesystem.
func inUserNamespace(t *testing.T, b *bundle) {
	t.Helper()
	for dir := b.dir; dir != "/tmp" && dir != "/"; dir = filepath.Dir(dir) {
		must.Do(t, os.Chmod(dir, 0o755)) // the container's root is uid 100000 on the host
	}
	ids := []object{{"containerID": 0, "hostID": 100000, "size": 65536}}
	b.set(t, "uidMappings", ids)
	b.set(t, "gidMappings", ids)
	b.set(t, "namespaces", append(b.config["linux"].(object)["namespaces"].([]object), object{"type": "user"}))
	must.Do(t, filepath.WalkDir(b.rootfs(), func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, 100000, 100000)
	}))
}

// confined is the default device cgroup of engines.
var confined = object{"devices": []object{
	{"allow": false, "access": "rwm"},
	{"allow": true, "type": "c", "access": "m"},
	{"allow": true, "type": "c", "major": 1, "minor": 3, "access": "rwm"},
}}

// sandboxes are the ways to mark a pod's sandbox.
var sandboxes = map[string]map[string]string{
	"containerd": {"gpuslice.vram": "4G", "io.kubernetes.cri.container-type": "sandbox"},
	"cri-o":      {"gpuslice.vram": "4G", "io.kubernetes.cri-o.ContainerType": "sandbox"},
	"pause":      nil, // cri-dockerd and podman set no annotation, and run /pause
}

func sandbox(t *testing.T, name string, hooks object) *bundle {
	t.Helper()
	b := newBundle(t, id(t), sandboxes[name], hooks)
	if name == "pause" {
		must.Do(t, os.Rename(b.rootfs("bin", "busybox"), b.rootfs("pause")))
		must.Do(t, os.Symlink("../pause", b.rootfs("bin", "busybox")))
		b.config["process"].(object)["args"] = []string{"/pause"}
	}
	b.set(t, "resources", confined)
	return b
}

// runc only: crun must raise a limit to load its device cgroup, a BPF program, and that can fail here.
func TestASandboxTakesNoQuota(t *testing.T) {
	for name := range sandboxes {
		t.Run(name, func(t *testing.T) {
			requires(t, "runc")
			e := newEnforcer(t) // not running: a sandbox must not need it
			b := sandbox(t, name, nil)
			c := newContainer(t, runc, id(t), b)
			ours(t, e, c)
			must.Output(c.create())(t, "create")
			clean := nothingLeft(t, e, b, "none")
			c.remove()
			clean()
		})
	}
}

// Annotations can be forged: a forged one must not yield a GPU without a quota.
func TestASandboxThatCanReachAGPUIsAContainer(t *testing.T) {
	ways := map[string]func(t *testing.T, b *bundle){
		"Node":      func(t *testing.T, b *bundle) { b.set(t, "devices", []object{node("/dev/nvidia0", 0)}) },
		"Elsewhere": func(t *testing.T, b *bundle) { b.set(t, "devices", []object{node("/opt/gpu", 0)}) },
		"Bound":     func(t *testing.T, b *bundle) { b.mount(t, onHost(t, 0), "/dev/gpu") },
		"Privileged": func(t *testing.T, b *bundle) {
			b.set(t, "resources", object{"devices": []object{{"allow": true, "access": "rwm"}}})
		},
		"Unconfined": func(t *testing.T, b *bundle) { b.set(t, "resources", object{}) },
		"NVIDIA": func(t *testing.T, b *bundle) {
			b.config["hooks"] = object{"prestart": []object{}}
			b.nvidiaHook(t, true, "0")
		},
	}
	for name := range sandboxes {
		for way, open := range ways {
			t.Run(name+"/"+way, func(t *testing.T) {
				requires(t, "runc")
				e := startEnforcer(t)
				b := sandbox(t, name, nil)
				open(t, b)
				c := newContainer(t, runc, id(t), b)
				ours(t, e, c)
				out, err := c.create()
				if name == "pause" {
					expect.Refused(out, err)(t, "no quota: add the annotation gpuslice.vram", "it was not refused")
					return
				}
				if err != nil || e.active() != 1 {
					t.Fatalf("%d slices: %v: %s", e.active(), err, out)
				}
				c.remove()
				expect.Equal(t, e.active(), 0, "its slice still exists")
			})
		}
	}
}

func TestVariableIsReadIfConfigured(t *testing.T) {
	for name, c := range map[string]struct {
		runtime, says string
		bytes         uint64
	}{
		"Allowed":    {"default_vram = \"8G\"\nallow_env = true\n", "", 2 << 30},
		"TooMuch":    {"default_vram = \"1G\"\nallow_env = true\n", `variable GPUSLICE_VRAM="2G" is not accepted: default_vram = "1G"`, 0},
		"NotAllowed": {"default_vram = \"8G\"\n", "", 8 << 30},
		"NoDefault":  {"", "no quota: add the annotation gpuslice.vram, such as gpuslice.vram=4G (the variable GPUSLICE_VRAM is read only if the operator sets allow_env", 0},
		"BadConfig":  {"allow_env = true\n", "allow_env needs default_vram", 0},
	} {
		t.Run(name, func(t *testing.T) {
			requires(t, "runc")
			e := startEnforcer(t)
			b := newBundle(t, id(t), nil, nil)
			b.config["process"].(object)["env"] = []string{"PATH=/bin", "GPUSLICE_VRAM=40G", "GPUSLICE_VRAM=2G"}
			b.save(t)
			container := newContainer(t, runc, id(t), b)
			ours(t, e, container)
			write(t, e.config, e.configText()+"[runtime]\nruntimes = [\"runc\"]\n"+c.runtime)
			clean := nothingLeft(t, e, b, id(t))
			out, err := container.create()
			if c.says != "" {
				expect.Refused(out, err)(t, c.says)
				checkLog(t, container, strings.ReplaceAll(c.says, "\n", ""))
				clean()
				return
			}
			if err != nil || len(e.registered) != 1 || e.registered[0].Quotas[0].Bytes != c.bytes {
				t.Errorf("%v, %s: registered %+v", err, out, e.registered)
			}
		})
	}
}
