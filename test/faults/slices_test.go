//go:build faults

// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/gpuslice/gpuslice/test/testhost"
)

type state string

const (
	active   state = "active"
	released state = "released" // by force: its processes get no more memory
	closed   state = "closed"   // like released, but listed as damaged: the disk missed the release, and the enforcer was replaced
	damaged  state = "damaged"  // a process overwrote its ledger: the model predicts nothing
	unknown  state = "unknown"  // it may be released: resolved when the enforcer is well again
)

type slice struct {
	id              string
	session         bool
	limit           uint64 // on each device
	state           state
	frozen          bool
	mayRefuseAttach bool // no process was attached when the run directory became full: the first attach may be refused
	workers         []*worker
	others          []uint64 // other possible limits after a failed change (mayBe): resolved when the enforcer is well again
	releaseUnknown  bool     // its release is unknown, and the enforcer that has not stored it was not killed
	pool            *pool
	elastic         bool            // only its pool limits it
	charged         [devices]uint64 // maximum use since the enforcer last knew all exits

	init   *worker   // of a container: the first process, in the container's mount namespace
	cgroup string    // of a container
	run    *exec.Cmd // of a session: `gpuslice run`
	token  string    // of a session: the file with its token
	lease  lease

	program []string  // of its init; nil means a worker
	env     []string  // added to a worker's
	over    time.Time // when it may expire; zero is never
}

func (s *slice) used(device int) uint64 {
	var bytes uint64
	for _, p := range s.workers {
		bytes += p.on(device)
	}
	return bytes
}

// room returns the most and the least that the slice may still take on a device; they differ where the model is unsure.
func (s *slice) room(w *world, device int) (upper, lower uint64) {
	left := func(limit, used uint64) uint64 { return limit - min(limit, used) }
	used := s.used(device)
	upper, lower = left(slices.Max(s.limits()), used), left(slices.Min(s.limits()), used)
	if p := s.pool; p != nil {
		limits, used := append([]uint64{p.limit}, p.others...), p.used(w, device)
		upper = min(upper, left(slices.Max(limits), used))
		lower = min(lower, left(slices.Min(limits), used+p.exitedBytes[device]))
	}
	return upper, lower
}

func (s *slice) command() []string {
	if s.program != nil {
		return s.program
	}
	return []string{"/programs/worker"}
}

func (w *world) name() string {
	w.named++
	return fmt.Sprintf("gsf-%d-%d-%d", os.Getpid(), w.seed, w.named)
}

func quota(r *rand.Rand) uint64 {
	return []uint64{192 * mib, 512 * mib, gib, 3 * gib, 8 * gib}[r.IntN(5)]
}

func (w *world) bundle(s *slice) string   { return filepath.Join(w.dir, "bundles", s.id) }
func (w *world) rootfs(s *slice) string   { return filepath.Join(w.bundle(s), "rootfs") }
func binary(w *world, name string) string { return filepath.Join(w.bin, name) }
func insideEnv() []string {
	return []string{"LD_LIBRARY_PATH=/fakecuda", "FAKECUDA_STATE=/fake/state", fmt.Sprint("FAKECUDA_CONTEXT=", contextBytes)}
}
func toMiB(bytes uint64) string { return strconv.FormatUint(bytes/mib, 10) + "M" }
func (w *world) add(s *slice) {
	s.mayRefuseAttach = w.full
	w.slices = append(w.slices, s)
}

func (w *world) drop(s *slice) { w.slices = without(w.slices, s) }

// create creates a container up to the point where a runtime calls the hooks.
func (w *world) create(s *slice, annotations map[string]string) {
	w.Helper()
	for _, dir := range []string{"proc", "dev", "etc", "tmp", "usr", "programs", "fakecuda", "fake"} {
		w.must(os.MkdirAll(filepath.Join(w.rootfs(s), dir), 0o755))
	}
	args := []string{"create", s.cgroup, w.rootfs(s), "/proc:proc", "/dev:dev", "/usr:usr", filepath.Dir(programs["worker"]) + ":programs",
		filepath.Join(w.bin, "fakecuda") + ":fakecuda", filepath.Join(w.dir, "fake") + ":fake"}
	bound, err := testhost.TopDirs("/", w.rootfs(s))
	w.must(err)
	for _, name := range bound {
		args = append(args, name+":"+name[1:])
	}
	config, err := json.Marshal(map[string]any{
		"ociVersion": "1.0.2", "root": map[string]any{"path": "rootfs"}, "annotations": annotations,
		"process": map[string]any{"args": s.command(), "env": []string{}},
	})
	w.must(err)
	w.must(os.WriteFile(filepath.Join(w.bundle(s), "config.json"), config, 0o644))
	cmd := exec.Command(programs["enter"], slices.Concat(args, []string{"--"}, s.command())...)
	cmd.Env = append(insideEnv(), s.env...)
	s.init = w.newWorker(s, cmd)
	s.workers = []*worker{s.init}
	if said := s.init.readLine(); said != fmt.Sprint("created ", s.init.pid) {
		w.fail("create the container %s: %q", s.id, said)
	}
}

// mayBeOver reports whether the enforcer may have ended the slice by now.
func (s *slice) mayBeOver() bool { return !s.over.IsZero() && time.Now().After(s.over) }

func (w *world) begin(s *slice) {
	w.Helper()
	if _, err := s.init.in.WriteString("g"); err != nil && !s.mayBeOver() {
		w.fail("begin: %v", err)
	}
	if said := s.init.readLine(); said != fmt.Sprint("ready ", s.init.pid) && !s.mayBeOver() {
		w.fail("begin the container %s: %q", s.id, said)
	}
}

// hook runs the real hook; words are a command prefix, used to kill it. An error includes its output.
func (w *world) hook(stage string, s *slice, words ...string) error {
	pid := 0
	if s.init != nil && stage != "poststop" {
		pid = s.init.pid
	}
	state, err := json.Marshal(map[string]any{"ociVersion": "1.0.2", "id": s.id, "status": "creating", "pid": pid, "bundle": w.bundle(s)})
	w.must(err)
	words = append(words, binary(w, "gpuslice-hook"), "--config", w.config(), stage)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.WaitDelay = time.Second // for surviving children
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	cmd.Stdin = bytes.NewReader(state)
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		w.fail("after %v the hook %s of %s has not ended: %v: %s", patience, stage, s.id, err, out)
	}
	if err != nil && (!errors.Is(err, exec.ErrWaitDelay) || !cmd.ProcessState.Success()) {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

func (w *world) newCgroup(name string) string {
	w.Helper()
	dir := filepath.Join(testhost.UnifiedCgroups(), name)
	w.must(os.Mkdir(dir, 0o755))
	return dir
}

func (s *slice) removeCgroup() error {
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		err := os.Remove(s.cgroup)
		if s.cgroup == "" || err == nil || os.IsNotExist(err) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("after %v the cgroup of %s cannot be removed: %w", patience, s.id, err)
		}
	}
}

// registerContainer starts a container, or returns nil if the enforcer had a valid reason to refuse it.
func (w *world) registerContainer(r *rand.Rand, words ...string) *slice {
	w.Helper()
	s := &slice{id: w.name(), limit: quota(r), state: active}
	return w.beginContainer(s, map[string]string{"gpuslice.vram": toMiB(s.limit)}, words...)
}

// beginContainer starts a container with these annotations; words prefix its hook.
func (w *world) beginContainer(s *slice, annotations map[string]string, words ...string) *slice {
	w.Helper()
	s.cgroup = w.newCgroup(s.id)
	w.add(s)
	w.create(s, annotations)
	if err := w.hook("prestart", s, words...); err != nil {
		if w.mayFail == "" && w.downReason == "" {
			w.fail("the container %s was refused: %v", s.id, err)
		}
		w.say("… refused: %.300v", err)
		w.stopContainer(s)
		return nil
	}
	if w.downReason != "" {
		w.fail("the hook has given the container %s a slice, but %s", s.id, w.downReason)
	}
	w.begin(s)
	return s
}

func (w *world) stopContainer(s *slice) {
	w.Helper()
	w.killAll(s)
	if err := w.hook("poststop", s); err != nil {
		w.fail("poststop: %v", err) // it must succeed: other hooks run after it
	}
	w.must(os.RemoveAll(w.bundle(s)))
	w.drop(s)
}

func (w *world) killAll(s *slice) {
	w.Helper()
	for len(s.workers) > 0 {
		s.workers[0].kill()
	}
	if w.native {
		time.Sleep(20 * time.Millisecond) // as slow as an engine: limits must be removed before the cgroup
	}
	w.must(s.removeCgroup())
}

func (w *world) join(s *slice) *worker {
	w.Helper()
	if s.session {
		return w.spawn(s.workers[0])
	}
	cmd := exec.Command(programs["enter"], "join", s.cgroup, strconv.Itoa(s.init.pid), "--", "/programs/worker")
	cmd.Env = insideEnv()
	p := w.newWorker(s, cmd)
	s.workers = append(s.workers, p)
	if said := p.readLine(); said != fmt.Sprint("ready ", p.pid) && !s.mayBeOver() {
		w.fail("begin a process in %s: %q", s.id, said)
	}
	return p
}

func (w *world) stop(s *slice) {
	w.Helper()
	if s.session {
		w.stopSession(s)
	} else {
		w.stopContainer(s)
	}
}
