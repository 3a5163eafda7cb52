//go:build engines

// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

type equippable interface {
	// equipped returns an engine with an up that equips its site.
	equipped() engine
	// ask returns a container that requests GPUs ("0", "1" or "all") in one way, or the reason why the engine lacks that way.
	ask(w way, gpus string) (c container, not string)
}

type way string

const (
	byCDI  way = "cdi"  // the engine, by a CDI specification
	byFlag way = "gpus" // the engine's own --gpus, which becomes CDI
	byHook way = "hook" // --gpus, which adds a hook
	// Other ways are names of runtimes, used with NVIDIA_VISIBLE_DEVICES.
)

func hasWay(ways ...way) func(engine) string {
	return func(e engine) (why string) {
		q, ok := e.(equippable)
		if !ok {
			return "tried with other engines"
		}
		for _, w := range ways {
			if _, why = q.ask(w, "0"); why == "" {
				return ""
			}
		}
		return why
	}
}

func (w way) isFlag() bool { return w == byCDI || w == byFlag || w == byHook }

// equipped returns the sister site, with two GPUs and the toolkit. The first case that needs it starts it; it ends with the
// engine's last case.
func (s *site) equipped() *site {
	s.t.Helper()
	if s.equippedSite == nil {
		s.equippedSite = newSite(s.row, row{make: s.engine.(equippable).equipped})
	}
	return s.equippedSite.of(s.t)
}

// requestGPUs returns a container that requests GPUs. It does not bind the driver, which is the toolkit's job.
func (s *site) requestGPUs(w way, gpus string) container {
	s.t.Helper()
	c, _ := s.engine.(equippable).ask(w, gpus)
	c.env = append([]string{"LD_LIBRARY_PATH="}, c.env...)
	return c
}

// gives starts a container, which must see the GPUs with these indices, and checks that its quota applies to them. Without
// indices the toolkit adds no GPU, and the quota applies to all.
func (s *site) gives(c container, seen ...int) {
	s.t.Helper()
	name := s.run(c)
	id := s.id(name)
	devices := must.Get(s.Client.Devices(context.Background()))(s.T)
	must.Len(s.t, devices, 2, "the machine's GPUs")
	var want []string
	for _, d := range devices {
		if seen == nil || slices.Contains(seen, d.Index) {
			want = append(want, d.UUID)
		}
	}
	expect.EqualSlices(s.t, s.counts(id), want, c.flags, c.env, "the quota counts on")
	nodes := s.exec(name, "/bin/sh", "-c", "echo /dev/nvidia[0-9]")
	for n := range devices {
		if has := strings.Contains(nodes, fmt.Sprint("/dev/nvidia", n)); has != slices.Contains(seen, n) {
			s.t.Errorf("%q %q: the container has %s, want %d", c.flags, c.env, nodes, seen)
		}
	}
	for _, n := range seen {
		hog := fmt.Sprintf("CUDA_VISIBLE_DEVICES=%d /demo/cuda_hog ", n) // the simulated driver shows all GPUs
		expect.Equal(s.t, s.startHog(name, fmt.Sprint(hog, 3*gib)).said, fmt.Sprintf("holds %d of %d", 3*gib, quota), c.flags, c.env, "on GPU", n)
		expect.Contains(s.t, s.startHog(name, fmt.Sprint(hog, 2*gib)).said, ": CUDA_ERROR_OUT_OF_MEMORY", c.flags, c.env, "2 GiB beside 3 on GPU", n)
	}
	if seen == nil {
		expect.Contains(s.t, s.hog(name, gib).said, "dlopen: ", c.flags, c.env, "it was given no driver")
	}
	s.remove(name)
	s.Eventually("the slice is gone", s.IsGone(id))
}

func (s *site) counts(id string) (uuids []string) {
	s.t.Helper()
	slice := must.Get(s.Client.Slice(context.Background(), id))(s.T)
	for _, d := range slice.Devices {
		uuids = append(uuids, d.Device)
	}
	return uuids
}

func (s *site) refuses(c container, told ...string) {
	s.t.Helper()
	name, out, err := s.try(c)
	expect.Error(s.t, err, c.annotations, c.flags, c.env, "was accepted")
	s.checkMessage(out, told...)
	s.remove(name)
}

// cdiByEngine: config.json already has the device nodes and the driver's libraries when our runtime starts.
func cdiByEngine(s *site) {
	s.alsoEquipped(func(s *site) {
		s.gives(s.requestGPUs(byCDI, "1"), 1)
		s.gives(s.requestGPUs(byCDI, "all"), 0, 1)
		c := s.requestGPUs(byCDI, "0")
		c.annotations = map[string]string{"gpuslice.vram.1": "4G"}
		if p, ok := s.engine.(*equippedPodman); ok && p.hookMode {
			return // crun drops the output of hooks
		}
		s.refuses(c, "device 1", "does not use", "it sees only 0")
	})
}

// gpusFlag: a hook modifies the created container before or after ours.
func gpusFlag(s *site) {
	s.alsoEquipped(func(s *site) {
		for _, w := range []way{byFlag, byHook} {
			if _, not := s.engine.(equippable).ask(w, "0"); not != "" {
				continue
			}
			_ = os.Remove(s.cliLog())
			s.gives(s.requestGPUs(w, "1"), 1)
			s.gives(s.requestGPUs(w, "all"), 0, 1)
			if w == byHook {
				s.configured("1", "0,1")
			} else {
				s.configured()
			}
		}
	})
}

func (s *site) configured(devices ...string) {
	s.t.Helper()
	text, _ := os.ReadFile(s.cliLog())
	var got []string
	for word := range strings.FieldsSeq(string(text)) {
		if value, ok := strings.CutPrefix(word, "--device="); ok {
			got = append(got, strings.ReplaceAll(value, "all", "0,1"))
		}
	}
	expect.EqualSlices(s.t, got, devices, "nvidia-container-cli was called so:", text)
}

// nvidiaInside: gpuslice-runtime calls NVIDIA's runtime, which rewrites config.json afterwards.
func nvidiaInside(s *site) { s.nvidiaRuntime(inside) }

// nvidiaOutside: NVIDIA's runtime calls gpuslice-runtime.
func nvidiaOutside(s *site) { s.nvidiaRuntime(outside) }

func (s *site) nvidiaRuntime(name string) {
	s.t.Helper()
	s.alsoEquipped(func(s *site) {
		_, byHand := s.engine.(*equippedOCI) // other engines only test how they call the runtime
		for _, mode := range []string{modeCDI, modeLegacy} {
			_ = os.Remove(s.cliLog())
			w := way(name + mode)
			devices := []string{"0"}
			s.gives(s.requestGPUs(w, "0"), 0)
			if byHand {
				devices = append(devices, "0,1")
				s.gives(s.requestGPUs(w, "all"), 0, 1)
				s.gives(s.requestGPUs(w, "void"))
			}
			if mode == modeLegacy {
				s.configured(devices...)
			}
		}
		c := s.requestGPUs(way(name+modeCDI), "0")
		c.annotations = vram("4X")
		s.refuses(c, `"4X"`, "gpuslice.vram")
		if byHand {
			c.annotations = map[string]string{}
			s.refuses(c, "no quota")
			// In its default mode NVIDIA's runtime takes a full CDI name from the specification.
			s.gives(s.requestGPUs(way(name+modeAuto), "nvidia.com/gpu=1"), 1)
		}
	})
}

// runtimesLoop: two runtimes that call each other are detected as a loop.
func runtimesLoop(s *site) {
	s.alsoEquipped(func(s *site) {
		for _, first := range []string{"gpuslice-runtime", "nvidia-container-runtime"} {
			s.refuses(s.requestGPUs(way(loop+first), "0"), "two runtimes that wrap each other", "must name runc")
		}
	})
}

// alsoEquipped runs part of a case on the equipped site as well, which it must leave unchanged.
func (s *site) alsoEquipped(run func(s *site)) {
	s.t.Helper()
	sister := s.equipped()
	before := sister.look()
	defer func() { sister.clean(before) }()
	run(sister)
}
