// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/hook/mount"
	"github.com/gpuslice/gpuslice/hook/roots"
	"github.com/gpuslice/gpuslice/test/needs"
)

// granting is an enforcer that grants each request and records the releases.
type granting struct {
	reply    api.RegisterReply
	asked    []api.RegisterRequest
	released []string
	gen      uint64
	force    bool
	ended    error // the error of the context passed to Release
	fails    error // returned by Release
	then     func()
}

func (g *granting) Slice(context.Context, string) (api.Slice, error) { return api.Slice{}, nil }

func (g *granting) Register(_ context.Context, r api.RegisterRequest) (api.RegisterReply, error) {
	g.asked = append(g.asked, r)
	if g.then != nil {
		g.then()
	}
	return g.reply, nil
}

func (g *granting) Release(ctx context.Context, id string, generation uint64, force bool) (api.Slice, error) {
	g.released, g.gen, g.force, g.ended = append(g.released, id), generation, force, ctx.Err()
	return api.Slice{}, g.fails
}

// container returns a created container with a quota, and an enforcer that grants its slice.
func container(t *testing.T) (h *Hook, g *granting, s specs.State) {
	t.Helper()
	needs.Root(t)
	_, bundle := setUp(t, map[string]string{"gpuslice.vram": "1G"})
	init := exec.Command("sleep", "1000")
	init.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if err := init.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = init.Process.Kill(); _ = init.Wait() })
	slice := t.TempDir()
	g = &granting{reply: api.RegisterReply{Slice: api.Slice{Generation: 7}, Dir: slice, Library: filepath.Join(slice, "library")}}
	err := errors.Join(os.Mkdir(filepath.Join(slice, "bind"), 0o755), os.WriteFile(filepath.Join(slice, "bind", api.LibraryName), nil, 0o644),
		os.WriteFile(g.reply.Library, nil, 0o755))
	if err != nil {
		t.Fatal(err)
	}
	h = &Hook{Enforcer: g, Records: filepath.Join(bundle, "records")}
	return h, g, specs.State{ID: "c", Bundle: bundle, Pid: init.Process.Pid}
}

// left lists the files in the bundle's root filesystem and in the hook's records.
func left(t *testing.T, h *Hook, bundle string) (files []string) {
	t.Helper()
	for _, dir := range []string{filepath.Join(bundle, "rootfs"), h.Records} {
		err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
			if path != dir {
				files = append(files, strings.TrimPrefix(path, bundle))
			}
			return err
		})
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	return files
}

func TestASliceThatCannotBeBoundIsReleased(t *testing.T) {
	full := errors.New("the enforcer is full")
	for name, spoil := range map[string]func(h *Hook, g *granting) (late bool){
		"its directory is gone": func(_ *Hook, g *granting) bool { g.reply.Dir += "x"; return false },
		"there is no interceptor": func(_ *Hook, g *granting) bool {
			g.reply.Library += "x"
			return false
		},
		"the record cannot be made": func(h *Hook, _ *granting) bool {
			h.Records = filepath.Join(h.Records, "none", "records")
			return false
		},
		"the hook's time is over": func(*Hook, *granting) bool { return true },
		"the enforcer does not release it": func(_ *Hook, g *granting) bool {
			g.reply.Dir += "x"
			g.fails = full
			return false
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, g, s := container(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if spoil(h, g) {
				// Another hook holds the record, and the context ends during the wait for it.
				keep(t, h, s.Bundle, roots.User{Slice: "other", Generation: 1, Dir: s.Bundle})
				defer lock(t, h, s.Bundle).Close()
				g.then = cancel
			}
			err := h.Prestart(ctx, s)
			if err == nil {
				t.Fatal("it is bound")
			}
			if !slices.Equal(g.released, []string{"c"}) || g.gen != 7 || !g.force || g.ended != nil {
				t.Errorf("released %v, generation %d, forced %v, context %v (%v)", g.released, g.gen, g.force, g.ended, err)
			}
			if g.fails != nil && !errors.Is(err, full) {
				t.Errorf("%v does not say why the slice stays", err)
			}
			if files := left(t, h, s.Bundle); g.then == nil && len(files) != 0 {
				t.Errorf("left: %v", files)
			}
		})
	}
}

func TestASliceThatIsBoundIsKept(t *testing.T) {
	h, g, s := container(t)
	parts := make(map[string]bool)
	h.Timing = func(part string, took time.Duration) { parts[part] = took >= 0 }
	if err := h.Prestart(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if len(g.released) != 0 || len(g.asked) != 1 || g.asked[0].ID != "c" || g.asked[0].PID != s.Pid || len(parts) != 4 {
		t.Errorf("asked %+v, released %v, parts %v", g.asked, g.released, parts)
	}
	if files := left(t, h, s.Bundle); len(files) != 4 { // etc, ld.so.preload, the slice's directory, and the record
		t.Errorf("left: %v", files)
	}
}

func TestAContainerWithoutAnInitIsRefused(t *testing.T) {
	for _, pid := range []int{-1, 0, 1} {
		_, bundle := setUp(t, map[string]string{"gpuslice.vram": "1G"})
		g := &granting{}
		h := &Hook{Enforcer: g, Records: filepath.Join(bundle, "records")}
		if err := h.Prestart(t.Context(), specs.State{ID: "c", Bundle: bundle, Pid: pid}); err == nil || !strings.Contains(err.Error(), "need that of its init") || len(g.asked) != 0 {
			t.Errorf("pid %d: %v, asked %v", pid, err, g.asked)
		}
	}
}

// A sandbox is exempt from a quota only if it can reach no GPU.
func TestASandboxThatReachesAGPUHasAQuota(t *testing.T) {
	const denied = `{"resources": {"devices": [{"allow": false, "access": "rwm"}]}}`
	for name, c := range map[string]struct {
		linux   string
		node    bool
		reaches bool
	}{
		"it may make itself a node":      {"{}", false, true},
		"it is confined":                 {denied, false, false},
		"it is confined, and has a node": {denied, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			h, g, s := container(t)
			config := `{"root": {"path": "rootfs"}, "annotations": {"gpuslice.vram": "1G", "io.kubernetes.cri.container-type": "sandbox"}, "linux": ` + c.linux + `}`
			dev := filepath.Join(s.Bundle, "rootfs", "dev")
			err := errors.Join(os.WriteFile(filepath.Join(s.Bundle, "config.json"), []byte(config), 0o644), os.Mkdir(dev, 0o755))
			if err == nil && c.node {
				err = unix.Mknod(filepath.Join(dev, "any"), unix.S_IFCHR|0o600, int(unix.Mkdev(mount.GPUMajor, 0)))
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := h.Prestart(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			if (len(g.asked) == 1) != c.reaches {
				t.Errorf("it asked for %v", g.asked)
			}
		})
	}
}

// Two containers share a root filesystem: poststop of one keeps the mount points of the other.
func TestPlacesStayAsLongAsAContainerUsesThem(t *testing.T) {
	h, g, s := container(t)
	if err := h.Prestart(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	other := roots.User{Slice: "other", Generation: 8, Dir: s.Bundle}
	keep(t, h, s.Bundle, other)
	before := left(t, h, s.Bundle)
	if err := h.Poststop(t.Context(), s); err != nil || !slices.Equal(g.released, []string{"c"}) {
		t.Fatalf("%v, released %v", err, g.released)
	}
	if after := left(t, h, s.Bundle); !slices.Equal(before, after) {
		t.Errorf("%v are left of %v", after, before)
	}
	s.ID = other.Slice
	if err := h.Poststop(t.Context(), s); err != nil || g.gen != other.Generation {
		t.Fatalf("%v, generation %d", err, g.gen)
	}
	if after := left(t, h, s.Bundle); len(after) != 0 {
		t.Errorf("%v are left", after)
	}
}

// A new root filesystem at the recorded path contains no files of the hook.
func TestPlacesOfAnotherRootFilesystemStay(t *testing.T) {
	_, bundle := setUp(t, nil)
	h := &Hook{Records: filepath.Join(bundle, "records")}
	rootfs := filepath.Join(bundle, "rootfs")
	r := lock(t, h, bundle)
	r.Root, r.Made = rootfs, []mount.Place{{Path: "etc"}}
	err := errors.Join(r.Save(), r.Close(), os.Rename(rootfs, rootfs+".former"), os.MkdirAll(filepath.Join(rootfs, "etc"), 0o755))
	if err == nil {
		err = h.sweep()
	}
	if err != nil {
		t.Fatal(err)
	}
	if files := left(t, h, bundle); !slices.Equal(files, []string{"/rootfs/etc"}) {
		t.Errorf("%v are left", files)
	}
}

func TestASecondHookOfAContainerFindsItRegistered(t *testing.T) {
	f := &fake{slice: api.Slice{PID: 7, Pools: api.PoolNames{"a", "b"}}}
	h := &Hook{Enforcer: f}
	for _, c := range []struct {
		pid   int
		pools api.PoolNames
		same  bool
	}{
		{7, api.PoolNames{"b", "a"}, true},
		{7, api.PoolNames{"a"}, false},
		{7, api.PoolNames{"a", "c"}, false},
		{8, api.PoolNames{"a", "b"}, false},
	} {
		if same := h.alreadyRegistered(t.Context(), specs.State{ID: "c", Pid: c.pid}, c.pools); same != c.same {
			t.Errorf("%+v: %v", c, same)
		}
	}
}
