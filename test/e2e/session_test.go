// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

const nobody = 65534

// forNobody copies the programs to a directory that an unprivileged user can read.
func (h *host) forNobody() (bin string) {
	h.T.Helper()
	h.Must(os.Chmod(h.Dir, 0o755))
	for _, name := range []string{"gpuslice", api.LibraryName, "demo/cuda_hog", "fakecuda/libcuda.so.1", "fakecuda/libnvidia-ml.so.1"} {
		from := must.Get(os.Open(filepath.Join(h.Bin, name)))(h.T)
		to := filepath.Join(h.Dir, "public", name)
		h.Must(os.MkdirAll(filepath.Dir(to), 0o755))
		file := must.Get(os.OpenFile(to, os.O_WRONLY|os.O_CREATE, 0o755))(h.T)
		_, err := io.Copy(file, from)
		h.Must(errors.Join(err, from.Close(), file.Close()))
	}
	h.Must(os.Chown(filepath.Join(h.Dir, "fake"), nobody, nobody))
	return filepath.Join(h.Dir, "public")
}

func TestSessionNeedsNoPrivileges(t *testing.T) {
	h := newHost(t)
	bin := h.forNobody()
	runtimeDir := filepath.Join(h.Dir, "user")
	h.Must(os.Mkdir(runtimeDir, 0o700))
	h.Must(os.Chown(runtimeDir, nobody, nobody))
	hog := filepath.Join(bin, "demo", "cuda_hog")
	cmd := h.runAsNobody(bin, "--vram", "4G", "--", "sh", "-c",
		`id -u; echo "token: $GPUSLICE_TOKEN_FILE."; sh -c 'echo $$; exec `+hog+` 3221225472' | { read pid; read line; echo "$line"; `+hog+` 3221225472; kill -9 $pid; }; exit 7`)
	cmd.Env = append(cmd.Env, "XDG_RUNTIME_DIR="+runtimeDir)
	out, err := cmd.CombinedOutput()
	expect.Equal(t, cmd.ProcessState.ExitCode(), 7, "the command's exit code", err)
	for _, want := range []string{"enforcer in this process", "token: .\n", strconv.Itoa(nobody) + "\n", "holds 3221225472 of 4294967296\n", "CUDA_ERROR_OUT_OF_MEMORY\n"} {
		expect.Contains(t, string(out), want)
	}
	must.Len(t, must.Get(os.ReadDir(runtimeDir))(t), 0, "something is left")
}

// runAsNobody returns a `gpuslice run --embedded` of an unprivileged user.
func (h *host) runAsNobody(bin string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(bin, "gpuslice"), append([]string{"run", "--embedded"}, args...)...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LD_LIBRARY_PATH=" + filepath.Join(bin, "fakecuda"), "FAKECUDA_STATE=" + filepath.Join(h.Dir, "fake", "nobody")}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	return cmd
}

func TestSessionHasItsProgramsThatAreNotDumpable(t *testing.T) {
	h := newHost(t)
	bin := h.forNobody()
	hog := filepath.Join(bin, "demo", "cuda_hog")
	h.Must(os.Chmod(hog, 0o111)) // a program that its user cannot read is non-dumpable
	out := must.Output(h.runAsNobody(bin, "--vram", "4G", "--", hog, "0").CombinedOutput())(t)
	expect.Contains(t, string(out), " of 4294967296\n")
	// If hidepid hides the program, the refusal says so.
	hidden := h.runAsNobody(bin, "--vram", "4G", "--", hog, "0")
	hidden.Args = append([]string{"unshare", "--mount", "sh", "-euc", `mount -t proc -o hidepid=2 proc /proc; exec setpriv "$@"`, "sh",
		"--reuid=" + strconv.Itoa(nobody), "--regid=" + strconv.Itoa(nobody), "--clear-groups"}, hidden.Args...)
	hidden.SysProcAttr = nil
	hidden.Path = must.Get(exec.LookPath("unshare"))(t)
	out, err := hidden.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "/proc is mounted with hidepid") || !strings.Contains(string(out), "CUDA_ERROR_OUT_OF_MEMORY") {
		t.Errorf("with hidepid: %v\n%s", err, out)
	}
}

func TestSessionInASessionIsRefused(t *testing.T) {
	h := newHost(t)
	program := filepath.Join(h.Bin, "gpuslice")
	cmd := exec.Command(program, "--socket", h.Socket(), "run", "--vram", "1G", "--", program, "--socket", h.Socket(), "run", "--vram", "8G", "--", "true")
	cmd.Env = h.Env()
	out, _ := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 125 || !strings.Contains(string(out), "a slice already") {
		t.Errorf("exit code %d, %s", cmd.ProcessState.ExitCode(), out)
	}
	must.Len(t, h.Slices(), 0, "slices are left")
}

// The container's slice would be charged regardless of the session.
func TestSessionInAContainerWithASliceIsRefused(t *testing.T) {
	h := newHost(t)
	c := h.runContainer(vram(), "/bin/sleep", "600")
	program := must.Get(os.ReadFile(filepath.Join(h.Bin, "gpuslice")))(h.T)
	h.Must(os.WriteFile(filepath.Join(h.Dir, "fake", "gpuslice"), program, 0o755))
	h.Must(os.WriteFile(filepath.Join(h.Dir, "fake", api.LibraryName), nil, 0o755)) // must exist, but is not loaded
	out, err := c.exec("/fake/gpuslice", "run", "--embedded", "--vram", "1G", "--", "/bin/true")
	expect.Refused(out, err)(t, "this container has a slice already")
}

func TestSessionOfAStrangersProcessIsRefused(t *testing.T) {
	h := newHost(t)
	c := h.runContainer(vram(), "/bin/sleep", "600")
	request := api.RegisterRequest{ID: "s", Session: true, Quotas: []api.Quota{{Device: api.AllDevices, Bytes: 70 * gib}}}
	// The process would leave its container's slice for a larger one.
	request.PID = c.pid()
	expect.ErrorSays(t, must.Err(h.Client.Register(t.Context(), request)), api.ErrBadRequest, "nor a descendant")
	request.PID = os.Getpid()
	must.Get(h.Client.Register(t.Context(), request))(t)
	must.Get(h.Client.Release(t.Context(), "s", 0, true))(t)
}
