// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/needs"
	"github.com/gpuslice/gpuslice/test/testhost"
)

// image builds an image of test/platforms, or skips the test if a requirement is missing.
func image(t *testing.T, name string, needs ...string) string {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Skip("needs x86-64: the images are of it")
	}
	for _, file := range needs {
		if _, err := os.Stat(file); err != nil {
			t.Skipf("needs %s: test/deps.sh --ci", file)
		}
	}
	cmd := exec.Command("../platforms/image.sh", name)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		t.Skipf("needs the network, for packages: image %s: %v\n%s", name, err, said.String())
	}
	return strings.TrimSpace(out.String())
}

// glibcs lists the glibc images with the directory of their programs; "" is bin/.
var glibcs = []struct{ name, programs string }{{"oldest", "programs"}, {"bookworm", ""}, {"newest", ""}}

func forEachGLibc(t *testing.T, test func(t *testing.T, c *container)) {
	for _, g := range glibcs {
		t.Run(g.name, func(t *testing.T) {
			h := newHost(t)
			dir := image(t, g.name, "/usr/lib/apt/apt-helper")
			programs := h.Bin
			if g.programs != "" {
				programs = filepath.Join(dir, g.programs)
			}
			c := h.newContainerOf(filepath.Join(dir, "root"), programs, vram(), "/bin/sleep", "600")
			c.run()
			test(t, c)
		})
	}
}

// says fails the test unless a program in the container prints exactly want and exits with 0.
func (c *container) says(want string, args ...string) {
	c.T.Helper()
	expect.Equal(c.T, must.Output(c.exec(args...))(c.T), want, args)
}

func TestQuotaHoldsOnOldAndNewGLibc(t *testing.T) {
	forEachGLibc(t, func(t *testing.T, c *container) {
		c.mustHold(gib, quota, "1 GiB of 4 fits")
		c.mustRefuse(quota, "4 GiB do not fit beside 1 GiB")
		if out, err := c.exec("/demo/cuda_hog", strconv.Itoa(quota)); err == nil || strings.Count(out, "\n") != 1 {
			t.Errorf("%v, %q: want only its own line", err, out)
		}
		if use := c.Use(c.id); use.Used != gib || use.Limit != quota {
			t.Errorf("%+v: 1 GiB is held", use)
		}
	})
}

// emulator32 returns the command prefix for 32-bit programs. It is empty if the kernel can run them (ia32_emulation).
func (c *container) emulator32() []string {
	c.T.Helper()
	if out, _ := c.exec("/bin/hello32"); !strings.Contains(out, "exec format error") {
		return nil
	}
	qemu, err := os.ReadFile("/usr/bin/qemu-i386-static")
	if err != nil {
		c.T.Skipf("needs a kernel that runs 32-bit programs, or qemu: test/deps.sh --ci (%v)", err)
	}
	c.Must(os.WriteFile(filepath.Join(c.bundle, "rootfs", "qemu-i386"), qemu, 0o755))
	return []string{"/qemu-i386"}
}

// Both load the interceptor, which prints nothing.
func TestProgramsOf64And32BitsRunAsWithoutUs(t *testing.T) {
	const hello = "Hello, world!\n"
	forEachGLibc(t, func(t *testing.T, c *container) {
		by32 := c.emulator32()
		c.says(hello, "/bin/hello64")
		c.says(hello, append(by32, "/bin/hello32")...)
		for _, p := range []struct {
			by                     []string
			loader, program, where string
		}{
			{nil, "/lib64/ld-linux-x86-64.so.2", "/bin/hello64", `/.gpuslice/(x86_64|haswell|xeon_phi)/libgpuslice\.so`},
			{by32, "/lib/ld-linux.so.2", "/bin/hello32", `/.gpuslice/i[3456]86/libgpuslice\.so`},
		} {
			loaded, err := c.exec(append(p.by, p.loader, "--list", p.program)...)
			lines := regexp.MustCompile(`(?m)^.*gpuslice.*$`).FindAllString(loaded, -1)
			if err != nil || len(lines) != 1 || !regexp.MustCompile(` => `+p.where+` \(`).MatchString(lines[0]) {
				t.Errorf("%s loads %s once, but its loader says nothing: %v\n%s", p.program, p.where, err, loaded)
			}
		}
	})
}

// If glibc expands $PLATFORM to an unknown word, the loader warns and loads the interceptor by the other line.
func TestAnUnknownPlatformStillHasTheInterceptor(t *testing.T) {
	needs.Root(t)
	bin := testhost.BinDir(t)
	for _, g := range glibcs {
		t.Run(g.name, func(t *testing.T) {
			dir := image(t, g.name, "/usr/lib/apt/apt-helper")
			root := filepath.Join(t.TempDir(), "root")
			must.Output(exec.Command("cp", "-a", filepath.Join(dir, "root"), root).CombinedOutput())(t)
			library, err := os.ReadFile(filepath.Join(bin, "libgpuslice.so"))
			for _, e := range []error{
				err,
				os.MkdirAll(filepath.Join(root, "etc"), 0o755),
				os.Mkdir(filepath.Join(root, ".gpuslice"), 0o755),
				os.WriteFile(filepath.Join(root, ".gpuslice", "libgpuslice.so"), library, 0o755),
				os.WriteFile(filepath.Join(root, "etc", "ld.so.preload"),
					[]byte("/.gpuslice/$PLATFORM/libgpuslice.so\n/.gpuslice/libgpuslice.so\n"), 0o644),
			} {
				if e != nil {
					t.Fatal(e)
				}
			}
			cmd := exec.Command("/lib64/ld-linux-x86-64.so.2", "--list", "/bin/hello64")
			cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
			cmd.Dir = "/"
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "cannot be preloaded") || !strings.Contains(string(out), "\t/.gpuslice/libgpuslice.so (") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// musl's loader reads no ld.so.preload, and the interceptor needs glibc.
func TestMuslProgramsAreUnharmed(t *testing.T) {
	h := newHost(t)
	dir := image(t, "musl", "/usr/bin/musl-gcc", "/bin/busybox")
	root := filepath.Join(dir, "root")
	c := h.newContainerOf(root, h.Bin, vram(), "/bin/sleep", "600")
	c.run()
	for _, name := range []string{"dynamic", "static"} {
		c.says("all well\n", "/bin/"+name)
		cmd := exec.Command(filepath.Join(h.Bin, "gpuslice"), "run", "--embedded", "--quiet", "--vram", "1G", "--", filepath.Join(root, "bin", name))
		cmd.Env = append(os.Environ(), "FAKECUDA_STATE="+filepath.Join(h.Dir, "fake", "session"))
		cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+filepath.Join(h.Bin, "fakecuda"))
		expect.Equal(t, string(must.Get(cmd.CombinedOutput())(t)), "all well\n", "in a session", name)
	}
	c.says("all well\n", "/bin/sh", "-c", "/bin/static")
}
