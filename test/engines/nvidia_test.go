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

	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/testhost"
)

// An equipped site has a simulated machine of two GPUs and the real programs of NVIDIA's container toolkit, configured for the
// site. The driver's parts are simulated: device nodes that are never opened, two libraries, the output of `nvidia-ctk cdi
// generate`, and nvidia-container-cli, which is C and not in the toolkit's Go module.

func equippedOptions(o testhost.Options) testhost.Options {
	o.Env = append(o.Env, "FAKECUDA_DEVICES=2")
	return o
}

var runtimesLine = regexp.MustCompile(`(?m)^runtimes = \["(.*)"\]$`)

// equip writes the machine and the toolkit below the site's directory, before the engine's daemons start.
func equip(s *site) {
	s.t.Helper()
	config := must.Get(os.ReadFile(s.Config()))(s.T)
	low := string(runtimesLine.FindSubmatch(config)[1])
	for _, dir := range []string{"dev", "cdi", "nvidia/bin"} {
		s.Must(os.MkdirAll(s.in(dir), 0o755))
	}
	for name, minor := range map[string]uint32{"nvidia0": 0, "nvidia1": 1, "nvidiactl": 255} {
		s.Must(unix.Mknod(s.in("dev", name), unix.S_IFCHR|0o666, int(unix.Mkdev(195, minor))))
	}
	text := must.Get(json.MarshalIndent(cdiSpec(s), "", "  "))(s.T)
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
	// The configuration for hooks that an engine adds itself.
	s.env = append(s.env, "NVIDIA_CTK_CONFIG_FILE_PATH="+s.in("nvidia", inside+modeLegacy+".toml"))
}

// Runtimes of an equipped site: gpuslice-runtime around NVIDIA's or inside it, followed by NVIDIA's mode; and the loop of the
// two, followed by the first one.
const (
	inside  = "gpuslice-around-nvidia-"
	outside = "nvidia-around-gpuslice-"
	loop    = "loop-from-"

	modeCDI    = "cdi"
	modeLegacy = "legacy"
	modeAuto   = "auto"
)

func (s *site) runtime(name string) string { return s.in("nvidia", "bin", name) }

func (s *site) runtimes() (names []string) {
	for _, name := range children(s.in("nvidia", "bin")) {
		if name != "nvidia-container-cli" {
			names = append(names, name)
		}
	}
	return names
}

// chain creates a runtime that starts with the program first. our and its are the low-level runtimes of gpuslice and NVIDIA.
func (s *site) chain(name, mode, first, our, its string) {
	s.t.Helper()
	config := must.Get(os.ReadFile(s.Config()))(s.T)
	config = runtimesLine.ReplaceAllLiteral(config, fmt.Appendf(nil, "runtimes = [%q]", our))
	s.Must(os.WriteFile(s.in("nvidia", name+".gpuslice.toml"), config, 0o644))
	s.Must(os.WriteFile(s.in("nvidia", name+".toml"), fmt.Appendf(nil, toolkitConfig,
		s.in("nvidia", "bin", "nvidia-container-cli"), mode, its, s.in("cdi"), tool(s.t, "nvidia", "nvidia-container-runtime-hook"),
		tool(s.t, "nvidia", "nvidia-ctk")), 0o644))
	s.script(name, fmt.Sprintf("export GPUSLICE_CONFIG=%q NVIDIA_CTK_CONFIG_FILE_PATH=%q\nexec %s \"$@\"\n",
		s.in("nvidia", name+".gpuslice.toml"), s.in("nvidia", name+".toml"), first))
}

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

func (s *site) cliLog() string { return s.in("nvidia", "cli-log") }

// standIn substitutes `nvidia-container-cli configure --device=… --pid=… ROOTFS`: in the container's mount namespace it creates
// the device nodes and binds the driver's libraries.
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

// cdiSpec mimics NVIDIA's tool: each GPU, and all. The loader finds the libraries' directory only through its cache, which
// NVIDIA's hook rebuilds.
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
