//go:build engines

// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/testhost"
)

func hasRootless(e engine) string {
	if _, ok := e.(*podman); ok {
		return ""
	}
	return "rootless engines are tried with Podman"
}

const rootlessUser = 4711

type rootless struct {
	s    *site
	home string
	env  []string
	end  func() // restores the site
}

// newRootless creates the user where engines run and allows the user sessions.
func newRootless(s *site, e *podman) *rootless {
	s.t.Helper()
	r := &rootless{s: s, home: s.in("rootless")}
	tools := s.in("tools") // the cache is not world-readable
	session := s.in("run", "session.sock")
	config := s.in("rootless.toml")
	r.env = []string{
		"PATH=" + tools + "/podman:" + s.Bin + ":/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + r.home, "XDG_RUNTIME_DIR=" + r.home + "/run",
		"USER=rootless", "GPUSLICE_SESSION_SOCKET=" + session, "LD_LIBRARY_PATH=" + s.Bin + "/fakecuda", "FAKECUDA_STATE=" + s.in("fake", "state"),
	}
	low := filepath.Join(append([]string{tools}, e.runtimeParts...)...)
	for file, text := range map[string]string{
		"containers.conf": fmt.Sprintf(`[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
pids_limit = 0
log_driver = "k8s-file"

[engine]
cgroup_manager = "cgroupfs"
conmon_env_vars = ["%[1]s"]
conmon_path = ["%[2]s/podman/conmon"]
events_logger = "file"
helper_binaries_dir = ["%[2]s/podman"]
runtime = "low"
tmp_dir = "%[5]s/run/libpod"

[engine.runtimes]
low = [%[3]q]
gpuslice = ["%[4]s/gpuslice-runtime"]
`, strings.Join(append(r.env, "GPUSLICE_CONFIG="+config), `", "`), tools, low, s.Bin, r.home),
		"storage.conf": "[storage]\ndriver = \"overlay\"\n[storage.options.overlay]\nignore_chown_errors = \"true\"\n",
	} {
		path := filepath.Join(r.home, ".config/containers", file)
		s.Must(os.MkdirAll(filepath.Dir(path), 0o755))
		s.Must(os.WriteFile(path, []byte(text), 0o644))
	}
	s.Must(os.Mkdir(filepath.Join(r.home, "run"), 0o700))
	text := must.Get(os.ReadFile(s.Config()))(s.T)
	before, after, _ := strings.Cut(string(text), "runtimes = [")
	_, after, _ = strings.Cut(after, "]")
	s.Must(os.WriteFile(config, fmt.Appendf(nil, "%sruntimes = [%q]%s", before, low, after), 0o644))
	s.must("sh", "-euc", `
		grep -q "^rootless:" /etc/passwd || echo "rootless:x:$2:$2::$1/rootless:/bin/sh" >>/etc/passwd
		chown -R "$2:$2" "$1/rootless"
		mkdir -p "$1/tools"
		mount --bind "$3" "$1/tools"
	`, "sh", s.Dir, strconv.Itoa(rootlessUser), tool(s.t))
	s.Stop(unix.SIGTERM)
	s.Must(os.WriteFile(s.Config(), fmt.Appendf(text[:len(text):len(text)], "\n[sessions]\nsocket = %q\n[[sessions.limits]]\nuser = \"%d\"\nmax_vram = \"4G\"\n", session, rootlessUser), 0o644))
	s.Start()
	r.end = func() {
		_, _ = r.podman("system", "migrate")
		s.Stop(unix.SIGTERM)
		s.Must(os.WriteFile(s.Config(), text, 0o644))
		s.Start()
		s.must("umount", tools)
		s.Must(os.RemoveAll(r.home))
	}
	return r
}

func (r *rootless) command(args ...string) *exec.Cmd {
	id := strconv.Itoa(rootlessUser)
	cmd := r.s.command("setpriv", append([]string{"--reuid", id, "--regid", id, "--clear-groups"}, args...)...)
	cmd.Env, cmd.Dir = r.env, r.home
	return cmd
}

func (r *rootless) podman(args ...string) (string, error) {
	return r.s.finish(r.command(append([]string{"podman"}, args...)...))
}

func (r *rootless) remove(name string) {
	r.s.t.Helper()
	if out, err := r.podman("rm", "--force", "--time", "0", name); err != nil {
		r.s.t.Errorf("remove: %v\n%s", err, out)
	}
}

func (r *rootless) run(flags, args []string) []string {
	words := append([]string{"podman", "run", "--rm", "--network", "none"}, flags...)
	for source, target := range map[string]string{r.s.Bin: r.s.Bin, r.s.Bin + "/demo": "/demo", r.s.Bin + "/fakecuda": "/fakecuda", r.s.in("fake"): "/fake"} {
		words = append(words, "--volume", source+":"+target)
	}
	return append(append(words, "--env", "LD_LIBRARY_PATH=/fakecuda", "--env", "FAKECUDA_STATE=/fake/state", "debian"), args...)
}

// rootlessContainers: a rootless engine registers no slice. Driver truth counts its containers in a session against that
// session.
func rootlessContainers(s *site) {
	e := s.engine.(*podman)
	r := newRootless(s, e)
	defer r.end()
	must.Output(r.podman("import", s.in("tools", "images", "debian.tar"), "debian"))(s.t, "import")
	flags := []string{"--annotation", "gpuslice.vram=1G"}
	if !e.hookMode {
		flags = append(flags, "--runtime", "gpuslice")
	}
	out, err := s.finish(r.command(r.run(flags, []string{"true"})...))
	expect.Error(s.t, err, "it was started")
	s.checkMessage(out, "rootless", "gpuslice run")

	var said testhost.Output
	session := r.command(append([]string{"gpuslice", "run", "--vram", "512M", "--"}, r.run([]string{"--name", "hog"}, []string{"/demo/cuda_hog", strconv.Itoa(gib)})...)...)
	session.Stdout, session.Stderr = &said, &said
	s.Must(session.Start())
	s.Eventually("the container's memory is charged to the session", func() bool {
		all := s.Slices()
		return len(all) == 1 && all[0].Session && len(all[0].Devices) == 1 && all[0].Devices[0].Overhead >= gib
	})
	s.Eventually("a program in the container reaches the driver", func() bool { return strings.Contains(said.String(), fmt.Sprintf("holds %d of ", gib)) })
	r.remove("hog")
	_ = session.Wait()

	for bytes, want := range map[int]string{0: fmt.Sprintf("holds 0 of %d", 2*gib), 2 * gib: "CUDA_ERROR_OUT_OF_MEMORY"} {
		script := fmt.Sprintf("%s/gpuslice run --vram 2G -- /demo/cuda_hog %d; sleep 600", s.Bin, bytes)
		must.Output(s.finish(r.command(r.run([]string{"--detach", "--name", "inside"}, []string{"sh", "-c", script})...)))(s.t, "run")
		s.Eventually("gpuslice run works in a container", func() bool {
			out, _ := r.podman("logs", "inside")
			return strings.Contains(out, want)
		})
		r.remove("inside")
	}
}
