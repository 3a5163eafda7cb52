// SPDX-License-Identifier: Apache-2.0

package hook_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/api/client"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// TestHookAloneWithTheRealEnforcer uses gpusliced instead of a fake.
func TestHookAloneWithTheRealEnforcer(t *testing.T) {
	forEachRuntime(t, func(t *testing.T, r runtime) {
		daemon, library := program(t, "gpusliced"), program(t, "libgpuslice.so")
		e := newEnforcer(t)
		// Not t.TempDir: a socket address is limited to 108 bytes.
		dir, err := os.MkdirTemp("", "gs-")
		must.Do(t, err)
		t.Cleanup(func() { os.RemoveAll(dir) })
		socket := filepath.Join(dir, "s")
		write(t, e.config, fmt.Sprintf("[enforcer]\nsocket = %q\nrun_dir = %q\nstate_dir = %q\nlibrary = %q\nnvml = \"off\"\n",
			socket, dir, filepath.Join(dir, "state"), library))
		cmd := exec.Command(daemon, "--config", e.config)
		must.Do(t, cmd.Start())
		t.Cleanup(func() {
			cmd.Process.Signal(unix.SIGTERM)
			cmd.Wait()
		})
		c := client.New(socket)
		await.That(t, "the enforcer answers", func() bool { return must.Err(c.Info(t.Context())) == nil })

		b := newBundle(t, id(t), map[string]string{"gpuslice.vram": "1G", "gpuslice.tenant": "alice"}, hooks(t, e, "prestart"))
		clean := nothingLeft(t, e, b, id(t))
		for range 2 { // the second container has the same id
			container := newContainer(t, r, id(t), b)
			container.start()
			s := must.Get(c.Slice(t.Context(), container.id))(t)
			if s.Tenant != "alice" || s.Mode != api.Enforce || s.PID <= 1 {
				t.Errorf("the slice is %+v", s)
			}
			expect.Equal(t, container.exec("cat", "/etc/ld.so.preload"), preloadLine, "ld.so.preload")
			container.exec("sh", "-c", "[ -S /.gpuslice/attach.sock ] && [ -s /.gpuslice/libgpuslice.so ]")
			container.remove()
			must.Len(t, must.Get(c.Slices(t.Context()))(t), 0, "slices are left")
			clean()
		}
	})
}
