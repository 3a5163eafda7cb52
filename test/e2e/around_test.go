// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// wantBypass waits until driver truth reports a bypass of the slice and charges it.
func (h *host) wantBypass(id string, pid int, bytes uint64) {
	h.T.Helper()
	h.Eventually("the bypass event", func() bool {
		return slices.ContainsFunc(h.events(id, api.EventBypass), func(e api.Event) bool {
			return (pid == 0 || e.PID == pid) && e.Bytes >= bytes && e.Cause == api.BypassUnattached
		})
	})
	h.Eventually("the memory counts as overhead", func() bool { return h.Use(id).Overhead >= bytes })
}

// The program calls functions of a copy of the driver's library by their offsets, without a lookup by name.
func TestACopyOfTheDriverIsFoundByDriverTruth(t *testing.T) {
	h := newHost(t)
	h.compile("around")
	driver := filepath.Join(h.Bin, "fakecuda", "libcuda.so.1")
	library := must.Get(os.ReadFile(driver))(h.T)
	h.Must(os.WriteFile(filepath.Join(h.Dir, "fake", "copy.so"), library, 0o755))
	file := must.Get(elf.NewFile(bytes.NewReader(library)))(h.T)
	symbols := must.Get(file.DynamicSymbols())(h.T)
	command := []string{"/fake/around", strconv.Itoa(5 * gib), "/fake/copy.so"}
	for _, s := range symbols {
		if slices.Contains([]string{"cuInit", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuMemAlloc_v2"}, s.Name) {
			command = append(command, fmt.Sprintf("%s=%d", s.Name, s.Value))
		}
	}
	c := h.runContainer(vram(), "/bin/sleep", "600")
	g := c.start(command...)
	must.Equal(t, g.said, "holds", "it did not get past the interceptor")
	h.wantBypass(c.id, g.pid, 5*gib)
	c.mustRefuse(mib, "a sibling")
}

// The loader takes a library with the interceptor's name, as ld.so.preload writes it, for the interceptor.
func TestALibraryOfThatNameIsFoundByDriverTruth(t *testing.T) {
	h := newHost(t)
	empty := filepath.Join(h.Dir, "empty.c")
	h.Must(os.WriteFile(empty, []byte("extern int nothing;\n"), 0o644))
	var preload []string
	for i, soname := range []string{"/.gpuslice/libgpuslice.so", "/.gpuslice/$PLATFORM/libgpuslice.so"} {
		name := fmt.Sprintf("named%d.so", i)
		h.compileAs(name, empty, "-shared", "-Wl,-soname,"+soname)
		preload = append(preload, "/fake/"+name)
	}
	c := h.runContainer(vram(), "/bin/sleep", "600")
	g := c.start("env", "LD_PRELOAD="+strings.Join(preload, ":"), "/demo/cuda_hog", strconv.Itoa(5*gib))
	must.True(t, strings.HasPrefix(g.said, fmt.Sprintf("holds %d of ", 5*gib)), "it did not get past the interceptor:", g.said)
	h.wantBypass(c.id, g.pid, 5*gib)
}

// Runtimes of sanitizers call dlsym before their own functions are ready. Allocators and clocks replace functions that the interceptor
// calls.
func TestProgramsStartWithSanitizersAndOtherTools(t *testing.T) {
	h := newHost(t)
	c := h.runContainer(vram(), "/bin/sleep", "600")
	build := func(name string, flags ...string) string {
		h.compileAs(name, "../interceptor/programs/plain.c", append(flags, "-ldl", "-lpthread")...)
		return "/fake/" + name
	}
	plain := build("plain")
	for _, command := range [][]string{
		{"setarch", "-R", build("tsan", "-fsanitize=thread")},
		{"env", "ASAN_OPTIONS=detect_leaks=0", build("asan", "-fsanitize=address", "-static-libasan")},
		{"env", build("ubsan", "-fsanitize=undefined")},
		{"env", "LD_PRELOAD=libjemalloc.so.2", plain},
		{"env", "LD_PRELOAD=libtcmalloc_minimal.so.4", plain},
		{"env", "FAKETIME=-1d", "LD_PRELOAD=/usr/$LIB/faketime/libfaketimeMT.so.1", plain},
		{"valgrind", "-q", "--error-exitcode=1", plain},
		{"heaptrack", "-o", "/fake/heap", plain},
	} {
		t.Run(strings.Join(command, " "), func(t *testing.T) {
			out, err := c.exec(command...)
			if _, missing := exec.LookPath(command[0]); missing != nil || strings.Contains(out, "cannot be preloaded") {
				t.Skip("needs the tool: test/deps.sh --ci")
			}
			must.Do(t, err, out)
			expect.Contains(t, out, "cuInit: 0\n")
		})
	}
}

// Without a loader, nothing is preloaded.
func TestAStaticProgramIsWithoutTheInterceptor(t *testing.T) {
	h := newHost(t)
	h.compile("around")
	h.compileAs("alone", filepath.Join("programs", "around.c"), "-static", "-DALONE")
	c := h.runContainer(vram(), "/bin/sleep", "600")
	c.says("loaded\n", "/fake/around")
	c.says("alone\n", "/fake/alone")
}

// Root can rename files in its root filesystem; any user can bring a loader or change mounts in a user namespace.
func TestABypassEventSaysWhereThePreloadFileIs(t *testing.T) {
	h := newHost(t)
	const inNamespaces = "exec unshare --user --map-root-user --mount "
	for _, c := range []struct {
		name, script string
		want         api.Preload
	}{
		{"ALoaderOfItsOwn", `sed 's#/etc/ld.so.preload#/etc/ld.so.prelxxx#' /lib*/ld-linux-*.so.* >/tmp/loader && chmod +x /tmp/loader && exec /tmp/loader "$@"`, api.PreloadBound},
		{"Moved", `mv /etc /etc2 && mkdir /etc && exec "$@"`, api.PreloadMoved},
		{"Covered", inNamespaces + `sh -c 'mount -t tmpfs none /etc && exec "$@"' sh "$@"`, api.PreloadCovered},
		{"Chroot", inNamespaces + `sh -c '
			for d in usr bin lib lib64 demo fakecuda fake dev; do
				if [ -L /$d ]; then cp -d /$d /tmp/; else mkdir -p /tmp/$d && mount --rbind /$d /tmp/$d; fi
			done
			exec /usr/sbin/chroot /tmp "$@"' sh "$@"`, api.PreloadNone},
	} {
		t.Run(c.name, func(t *testing.T) {
			container := h.newContainer(vram(), "/bin/sleep", "600")
			container.grant("CAP_SETFCAP") // one of Docker's defaults: root needs it to map root in a user namespace
			container.run()
			if strings.Contains(c.script, inNamespaces) {
				if out, err := container.exec("unshare", "--user", "--map-root-user", "--mount", "true"); err != nil {
					t.Skipf("user namespaces are needed: %s", out)
				}
			}
			g := container.start("sh", "-c", c.script, "sh", "/demo/cuda_hog", strconv.Itoa(5*gib))
			must.True(t, strings.HasPrefix(g.said, fmt.Sprintf("holds %d of ", 5*gib)), "it did not get past the interceptor:", g.said)
			h.wantBypass(container.id, g.pid, 5*gib)
			for _, e := range h.events(container.id, api.EventBypass) {
				expect.Equal(t, e.Preload, c.want)
			}
		})
	}
}

// A loader of Nix reads a preload file of its own name. Here the way to it is a link: the name has no room in the copy of another loader.
func TestTheLoaderOfAnImageOfNixLoadsTheInterceptor(t *testing.T) {
	h := newHost(t)
	loader := h.loaderThatReads("/nix/preload")
	c := h.newContainer(vram(), "/bin/sleep", "600")
	nix := filepath.Join(c.bundle, "rootfs", "nix")
	h.Must(os.MkdirAll(filepath.Join(nix, "store"), 0o755))
	h.Must(os.Symlink("/etc/ld-nix.so.preload", filepath.Join(nix, "preload")))
	c.run()
	if g := c.start(loader, "/demo/cuda_hog", strconv.Itoa(5*gib)); strings.HasPrefix(g.said, "holds ") {
		t.Errorf("it got past the interceptor: %q", g.said)
	}
	h.Must(must.Err(c.output(c.runtime("delete", "--force", c.id))))
	must.Len(t, must.Get(os.ReadDir(filepath.Join(c.bundle, "rootfs", "etc")))(t), 0, "left in /etc")
}

// The environment carries a session, so a program can clear it. For containers see TestVariablesCannotLeaveAContainersSlice.
// A line on the session's standard error says so.
func TestAClearedEnvironmentInASessionIsFoundByDriverTruth(t *testing.T) {
	h := newHost(t)
	h.clearedSession("s1")
	h.wantBypass("s1", 0, 2*gib)
	h.clearedSession("s2", "--embedded")
}

// clearedSession runs a session that clears the environment of its process, and waits for the line that reports it.
func (h *host) clearedSession(id string, args ...string) {
	h.T.Helper()
	cmd := h.command(append(append([]string{"run", "--vram", "1G", "--name", id}, args...), "--",
		"env", "-i", "LD_LIBRARY_PATH="+filepath.Join(h.Bin, "fakecuda"), "FAKECUDA_STATE="+filepath.Join(h.Dir, "fake", "state"),
		filepath.Join(h.Bin, "demo", "cuda_hog"), strconv.Itoa(2*gib))...)
	var said lines
	cmd.Stdout, cmd.Stderr = &said, &said
	h.Must(cmd.Start())
	h.T.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	})
	h.Eventually("it got past the interceptor", func() bool { return strings.Contains(said.String(), fmt.Sprintf("holds %d of ", 2*gib)) })
	h.Eventually("its user is told", func() bool {
		return strings.Contains(said.String(), "slice "+id+": process ") && strings.Contains(said.String(), "pass LD_PRELOAD and GPUSLICE_DIR on to it")
	})
}
