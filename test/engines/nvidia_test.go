//go:build engines

// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/test/testhost"
)

// A site that is equipped has a simulated machine of two GPUs, and the real programs of NVIDIA's container toolkit with
// configurations of the site's own. Simulated are what the driver would bring: device nodes, which nobody opens, and two
// libraries; the CDI specification that `nvidia-ctk cdi generate` writes of them; and nvidia-container-cli, which is
// C and no part of the toolkit's Go module.

// equippedOptions is what a site with such a machine wants of its enforcer.
func equippedOptions(o testhost.Options) testhost.Options {
	o.Env = append(o.Env, "FAKECUDA_DEVICES=2")
	return o
}

var runtimesLine = regexp.MustCompile(`(?m)^runtimes = \["(.*)"\]$`)

// equip puts the machine and the toolkit below the site's directory, before the engine's daemons start.
func equip(s *site) {
	s.t.Helper()
	config, err := os.ReadFile(s.Config())
	s.Must(err)
	low := string(runtimesLine.FindSubmatch(config)[1])
	for _, dir := range []string{"dev", "cdi", "nvidia/bin"} {
		s.Must(os.MkdirAll(s.in(dir), 0o755))
	}
	for name, minor := range map[string]uint32{"nvidia0": 0, "nvidia1": 1, "nvidiactl": 255} {
		s.Must(unix.Mknod(s.in("dev", name), unix.S_IFCHR|0o666, int(unix.Mkdev(195, minor))))
	}
	text, err := json.MarshalIndent(cdiSpec(s), "", "  ")
	s.Must(err)
	s.Must(os.WriteFile(s.in("cdi", "nvidia.json"), text, 0o644))
	s.script("nvidia-container-cli", fmt.Sprintf(standIn, s.cliLog(), s.Bin))
	for _, mode := range []string{modeCDI, modeLegacy, modeAuto} {
		s.chain(inside+mode, mode, "gpuslice-runtime", tool(s.t, "nvidia", "nvidia-container-runtime"), low)
		s.chain(outside+mode, mode, tool(s.t, "nvidia", "nvidia-container-runtime"), low, s.Bin+"/gpuslice-runtime")
	}
	for _, first := range []string{"gpuslice-runtime", "nvidia-container-runtime"} {
		s.chain(loop+first, modeCDI, first, tool(s.t, "nvidia", "nvidia-container-runtime"), s.Bin+"/gpuslice-runtime")
	}
	s.path = s.in("nvidia", "bin") + ":" + s.path
	s.prepend("nvidia")
	// What the hook reads that an engine adds by itself.
	s.env = append(s.env, "NVIDIA_CTK_CONFIG_FILE_PATH="+s.in("nvidia", inside+modeLegacy+".toml"))
}

// Runtimes of an equipped site: gpuslice-runtime with NVIDIA's inside of it or outside, which is followed by NVIDIA's mode;
// and the two around each other, which is followed by which is first.
const (
	inside  = "gpuslice-around-nvidia-"
	outside = "nvidia-around-gpuslice-"
	loop    = "loop-from-"

	modeCDI    = "cdi"
	modeLegacy = "legacy"
	modeAuto   = "auto"
)

// runtime is the program of one of them.
func (s *site) runtime(name string) string { return s.in("nvidia", "bin", name) }

// runtimes are all of them.
func (s *site) runtimes() (names []string) {
	for _, name := range children(s.in("nvidia", "bin")) {
		if name != "nvidia-container-cli" {
			names = append(names, name)
		}
	}
	return names
}

// chain makes a runtime that begins with the program first. Ours has our for its low-level runtime, NVIDIA's has its.
func (s *site) chain(name, mode, first, our, its string) {
	s.t.Helper()
	config, err := os.ReadFile(s.Config())
	s.Must(err)
	config = runtimesLine.ReplaceAllLiteral(config, fmt.Appendf(nil, "runtimes = [%q]", our))
	s.Must(os.WriteFile(s.in("nvidia", name+".gpuslice.toml"), config, 0o644))
	s.Must(os.WriteFile(s.in("nvidia", name+".toml"), fmt.Appendf(nil, toolkitConfig,
		s.in("nvidia", "bin", "nvidia-container-cli"), mode, its, s.in("cdi"), tool(s.t, "nvidia", "nvidia-container-runtime-hook"),
		tool(s.t, "nvidia", "nvidia-ctk")), 0o644))
	s.script(name, fmt.Sprintf("export GPUSLICE_CONFIG=%q NVIDIA_CTK_CONFIG_FILE_PATH=%q\nexec %s \"$@\"\n",
		s.in("nvidia", name+".gpuslice.toml"), s.in("nvidia", name+".toml"), first))
}

// toolkitConfig is /etc/nvidia-container-runtime/config.toml.
const toolkitConfig = `[nvidia-container-cli]
path = %q
load-kmods = true
ldconfig = "@/sbin/ldconfig"

[nvidia-container-runtime]
mode = %q
runtimes = [%q]

[nvidia-container-runtime.modes.cdi]
spec-dirs = [%q]

[nvidia-container-runtime-hook]
path = %q

[nvidia-ctk]
path = %q
`

func (s *site) script(name, text string) {
	s.t.Helper()
	path := fmt.Sprintf("export PATH=%s\n", strings.Join([]string{filepath.Join(tools, "nvidia"), s.path}, ":"))
	s.Must(os.WriteFile(s.in("nvidia", "bin", name), []byte("#!/bin/sh\n"+path+text), 0o755))
}

// cliLog is the file in which the stand-in for nvidia-container-cli takes down how it was called.
func (s *site) cliLog() string { return s.in("nvidia", "cli-log") }

// standIn does what of `nvidia-container-cli configure --device=… --pid=… ROOTFS` matters here: within the container's mount
// namespace it makes the device nodes and binds the driver's libraries.
const standIn = `echo "$*" >>%[1]s
for arg; do
	case $arg in
	--device=*) devices=${arg#--device=} ;;
	--pid=*) pid=${arg#--pid=} ;;
	esac
done
[ "$devices" != all ] || devices=0,1
exec nsenter --target "$pid" --mount sh -ec '
	for n in $(echo $2 | tr , " "); do mknod -m 666 $1/dev/nvidia$n c 195 $n; done
	mknod -m 666 $1/dev/nvidiactl c 195 255
	lib=$1/usr/lib/x86_64-linux-gnu
	mkdir -p $lib
	for file in libcuda.so.1 libnvidia-ml.so.1; do
		touch $lib/$file
		mount --bind %[2]s/fakecuda/$file $lib/$file
	done' sh "$arg" "$devices"
`

// cdiSpec is what NVIDIA's tool writes: each GPU, and all. The libraries are in a directory that the loader knows from
// its cache only, which NVIDIA's hook writes anew.
func cdiSpec(s *site) object {
	gpu := func(name string, minors ...int) object {
		var nodes []object
		for _, n := range minors {
			nodes = append(nodes, object{"path": fmt.Sprint("/dev/nvidia", n), "hostPath": s.in("dev", fmt.Sprint("nvidia", n))})
		}
		return object{"name": name, "containerEdits": object{"deviceNodes": nodes}}
	}
	var mounts []object
	for _, file := range []string{"libcuda.so.1", "libnvidia-ml.so.1"} {
		mounts = append(mounts, object{"hostPath": filepath.Join(s.Bin, "fakecuda", file), "containerPath": "/usr/lib64/" + file,
			"options": []string{"ro", "nosuid", "nodev", "rbind", "rprivate"}})
	}
	hook := func(args ...string) object {
		return object{"hookName": "createContainer", "path": tool(s.t, "nvidia", "nvidia-cdi-hook"), "args": append([]string{"nvidia-cdi-hook"}, args...)}
	}
	return object{
		"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu",
		"devices": []object{gpu("0", 0), gpu("1", 1), gpu("all", 0, 1)},
		"containerEdits": object{
			"deviceNodes": []object{{"path": "/dev/nvidiactl", "hostPath": s.in("dev", "nvidiactl")}},
			"mounts":      mounts,
			"hooks": []object{
				hook("create-symlinks", "--link", "libcuda.so.1::/usr/lib64/libcuda.so"),
				hook("update-ldcache", "--folder", "/usr/lib64"),
			},
		},
	}
}
