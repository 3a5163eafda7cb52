// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/api/client"
	"github.com/gpuslice/gpuslice/hook/mount"
	"github.com/gpuslice/gpuslice/hook/roots"
	"github.com/gpuslice/gpuslice/test/await"
)

type fake struct {
	err      error
	hang     bool
	asked    int
	refuses  int // if set, the number of the Register call that succeeds
	released []string
	gen      uint64
	force    bool

	slice api.Slice

	mu sync.Mutex // guards what Release sets, which a hook that was given up may still do
}

func (f *fake) Slice(context.Context, string) (api.Slice, error) { return f.slice, nil }

func (f *fake) Register(ctx context.Context, _ api.RegisterRequest) (api.RegisterReply, error) {
	f.asked++
	if f.hang {
		<-ctx.Done()
		return api.RegisterReply{}, ctx.Err()
	}
	if f.refuses == 1 {
		return api.RegisterReply{Dir: "/given"}, nil
	}
	if f.refuses > 1 {
		f.refuses--
	}
	return api.RegisterReply{}, f.err
}

func (f *fake) Release(ctx context.Context, id string, generation uint64, force bool) (api.Slice, error) {
	f.mu.Lock()
	f.released, f.gen, f.force = append(f.released, id), generation, force
	f.mu.Unlock()
	if f.hang {
		<-ctx.Done()
		return api.Slice{}, ctx.Err()
	}
	return api.Slice{}, f.err
}

// setUp writes a bundle and returns the state that refers to it.
func setUp(t *testing.T, annotations map[string]string) (state []byte, bundle string) {
	t.Helper()
	bundle = t.TempDir()
	config, err := json.Marshal(map[string]any{"root": map[string]any{"path": "rootfs"}, "annotations": annotations})
	if err != nil {
		t.Fatal(err)
	}
	state, _ = json.Marshal(map[string]any{"id": "c", "bundle": bundle, "status": "stopped"})
	err = errors.Join(os.Mkdir(filepath.Join(bundle, "rootfs"), 0o755), os.WriteFile(filepath.Join(bundle, "config.json"), config, 0o644))
	if err != nil {
		t.Fatal(err)
	}
	return state, bundle
}

var (
	quick = Deadlines{Prestart: 50 * time.Millisecond, Poststop: 50 * time.Millisecond}
	slow  = Deadlines{Prestart: await.Patience, Poststop: await.Patience}
)

func runStage(t *testing.T, stage string, state []byte, h *Hook) (status int, said string) {
	t.Helper()
	return runWithin(t, slow, stage, state, h)
}

func runWithin(t *testing.T, deadlines Deadlines, stage string, state []byte, h *Hook) (status int, said string) {
	t.Helper()
	var stderr bytes.Buffer
	status = Run(stage, bytes.NewReader(state), &stderr, deadlines, func() (*Hook, error) { return h, nil })
	return status, stderr.String()
}

// A request to an unreachable or busy enforcer has no effect, so it can be repeated.
func TestTheEnforcerIsAskedAgainWhileItIsReplacedOrMakesRoom(t *testing.T) {
	away := func(dir string) error {
		_, err := client.New(filepath.Join(dir, "gpuslice.sock")).Info(t.Context())
		return err
	}
	for name, c := range map[string]struct {
		err   error
		asked int // at 0 ms, 20 ms, and so on until 200 ms
	}{
		"it is being replaced":   {away(t.TempDir()), 11},
		"it makes room":          {api.Errorf(api.CodeBusy, "room is being made"), 11},
		"it never was":           {away(filepath.Join(t.TempDir(), "none")), 1},
		"it refuses":             {api.Errorf(api.CodeQuotaExceeded, "no"), 1},
		"it died as it answered": {api.ErrUnreachable, 1},
	} {
		synctest.Test(t, func(t *testing.T) { askedAgain(t, name, c.err, c.asked) })
	}
}

func askedAgain(t *testing.T, name string, answer error, asked int) {
	waited := 0
	h := &Hook{deadlines: Deadlines{Replaced: 200 * time.Millisecond, Busy: 200 * time.Millisecond}, wait: func() { waited++; time.Sleep(20 * time.Millisecond) }}
	f := &fake{err: answer}
	h.Enforcer = f
	if _, err := h.register(t.Context(), api.RegisterRequest{}); !errors.Is(err, answer) || f.asked != asked || waited != asked-1 {
		t.Errorf("%s: asked %d times, waited %d times, %v", name, f.asked, waited, err)
	}
	if asked == 1 {
		return
	}
	f = &fake{err: answer, refuses: 3}
	h.Enforcer = f
	if reply, err := h.register(t.Context(), api.RegisterRequest{}); err != nil || reply.Dir != "/given" || f.asked != 3 {
		t.Errorf("%s: %v, %v after %d", name, reply, err, f.asked)
	}
}

func TestPoststopNeverFails(t *testing.T) {
	for name, f := range map[string]*fake{
		"fine":        {},
		"not found":   {err: api.ErrNotFound},
		"unreachable": {err: api.ErrUnreachable},
		"internal":    {err: errors.New("x\ny")},
		"hung":        {hang: true},
	} {
		state, bundle := setUp(t, map[string]string{"gpuslice.vram": "1G"})
		deadlines := slow
		if f.hang {
			deadlines = quick
		}
		status, said := runWithin(t, deadlines, "poststop", state, &Hook{Enforcer: f, Records: filepath.Join(bundle, "records")})
		if status != 0 {
			t.Errorf("%s: status %d", name, status)
		}
		await.That(t, name+": it is released once", func() bool {
			f.mu.Lock()
			defer f.mu.Unlock()
			return len(f.released) == 1
		})
		if strings.Count(said, "\n") > 1 {
			t.Errorf("%s: said %q", name, said)
		}
	}
}

// docker restart reuses the id, and the new slice may exist already.
func TestPoststopReleasesItsOwnGenerationOnly(t *testing.T) {
	state, bundle := setUp(t, map[string]string{"gpuslice.vram": "1G"})
	f := &fake{}
	h := &Hook{Enforcer: f, Records: filepath.Join(bundle, "records")}
	if runStage(t, "poststop", state, h); f.gen != 0 || f.force {
		t.Errorf("without a prestart: generation %d, force %v", f.gen, f.force)
	}

	keep(t, h, bundle, roots.User{Slice: "c", Generation: 7, Dir: bundle})
	if runStage(t, "poststop", state, h); f.gen != 7 || !f.force {
		t.Errorf("with a record: generation %d, force %v", f.gen, f.force)
	}
	if left, _ := os.ReadDir(h.Records); len(left) != 0 {
		t.Errorf("records are left: %v", left)
	}
}

func lock(t *testing.T, h *Hook, bundle string) *roots.Record {
	t.Helper()
	var root unix.Stat_t
	if err := unix.Stat(filepath.Join(bundle, "rootfs"), &root); err != nil {
		t.Fatal(err)
	}
	r, err := roots.Lock(t.Context(), h.Records, mount.FileID{Dev: root.Dev, Inode: root.Ino})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// keep records a user of the bundle's root filesystem.
func keep(t *testing.T, h *Hook, bundle string, u roots.User) {
	t.Helper()
	r := lock(t, h, bundle)
	r.AddUser(u)
	if err := errors.Join(r.Save(), r.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestWaitForAnotherHooksLockTimesOut(t *testing.T) {
	_, bundle := setUp(t, map[string]string{"gpuslice.vram": "1G"})
	f := &fake{}
	h := &Hook{Enforcer: f, Records: filepath.Join(bundle, "records")}
	defer lock(t, h, bundle).Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := h.Poststop(ctx, specs.State{ID: "c", Bundle: bundle})
	if err == nil || !strings.Contains(err.Error(), "another hook holds it") || len(f.released) != 1 {
		t.Errorf("%v, released %v", err, f.released)
	}
}

func TestSentenceIsOneLineWithoutControlCharacters(t *testing.T) {
	for text, want := range map[string]string{
		"a\nb":                "gpuslice: a; b",
		"\x1b[2Ja\x00\u009bb": "gpuslice: ?[2Ja??b",
		"\xff":                "gpuslice: ?",
	} {
		if got := Sentence(errors.New(text)); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if got := Sentence(errors.New(strings.Repeat("x", 5000))); len(got) > 2100 || !strings.HasSuffix(got, "…") {
		t.Errorf("%d bytes", len(got))
	}
}

func TestTheHookIgnoresPassedContainers(t *testing.T) {
	for name, all := range map[string]map[string]string{
		"passed":           nil,
		"a passed sandbox": {"io.kubernetes.cri.container-type": "sandbox"},
	} {
		for _, stage := range []string{"prestart", "createRuntime", "poststop"} {
			state, _ := setUp(t, all)
			f := &fake{}
			h := &Hook{Enforcer: f}
			h.Policy.Pass = true
			if status, said := runStage(t, stage, state, h); status != 0 || said != "" || f.asked+len(f.released) != 0 {
				t.Errorf("%s at %s: status %d, said %q, asked %d, released %v", name, stage, status, said, f.asked, f.released)
			}
		}
	}
}

// Most sandboxes have no slice, which cannot be checked without their cgroup or root filesystem.
func TestASandboxThatEndsIsReleasedOnlyIfItWasGivenASlice(t *testing.T) {
	for _, key := range []string{"io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType"} {
		state, bundle := setUp(t, map[string]string{"gpuslice.vram": "1G", key: "sandbox"})
		f := &fake{}
		h := &Hook{Enforcer: f, Records: filepath.Join(bundle, "records")}
		if status, said := runStage(t, "poststop", state, h); status != 0 || said != "" || len(f.released) != 0 {
			t.Errorf("%s: status %d, said %q, released %v", key, status, said, f.released)
		}
		keep(t, h, bundle, roots.User{Slice: "c", Generation: 7, Dir: bundle})
		if status, said := runStage(t, "poststop", state, h); status != 0 || said != "" || len(f.released) != 1 || f.gen != 7 {
			t.Errorf("%s: with a record, status %d, said %q, released %v of %d", key, status, said, f.released, f.gen)
		}
	}
}

func TestContainersThatClaimToBeASandbox(t *testing.T) {
	for _, c := range []struct {
		annotations map[string]string
		args        []string
		want        bool
	}{
		{map[string]string{"io.kubernetes.cri.container-type": "sandbox"}, []string{"/any"}, true},
		{map[string]string{"io.kubernetes.cri-o.ContainerType": "sandbox"}, nil, true},
		{map[string]string{"io.kubernetes.cri.container-type": "container"}, nil, false},
		{map[string]string{"io.kubernetes.cri.container-type": "Sandbox"}, nil, false},
		{map[string]string{"io.kubernetes.docker.type": "podsandbox"}, nil, false},
		{nil, []string{"/pause"}, true},
		{nil, []string{"/catatonit", "-P"}, true},
		{nil, []string{"/catatonit"}, false},
		{nil, []string{"/catatonit", "-P", "python"}, false},
		{nil, []string{"/bin/pause"}, false},
		{nil, nil, false},
	} {
		b := Bundle{Annotations: c.annotations, Args: c.args}
		if got := b.IsSandbox(); got != c.want {
			t.Errorf("%v, %q: %v", c.annotations, c.args, got)
		}
	}
}

func TestAnUnknownStageIsRefused(t *testing.T) {
	for _, stage := range []string{"", "poststart", "PRESTART", "prestart\x00"} {
		if status, said := runStage(t, stage, nil, nil); status != 1 || !strings.Contains(said, "usage: gpuslice-hook") {
			t.Errorf("%q: status %d, said %q", stage, status, said)
		}
	}
}

// A blocked read ignores its context.
func TestABlockedReadIsAbandoned(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	var stderr bytes.Buffer
	ended := make(chan int, 1)
	go func() { ended <- Run("prestart", r, &stderr, quick, nil) }()
	if status := await.Value(t, "it gives up", ended); status != 1 || !strings.Contains(stderr.String(), "given up") {
		t.Errorf("status %d: %q", status, stderr.String())
	}
}

func FuzzReadState(f *testing.F) {
	f.Add(`{"ociVersion":"1.0.2","id":"a","pid":12,"bundle":"/b","status":"creating","annotations":{"a":"b"}}`)
	f.Add(`{"id":"../x","bundle":"/b"}`)
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ReadState(strings.NewReader(text))
		if err != nil {
			if line := Sentence(err); strings.ContainsAny(line, "\n\x1b\x00") || len(line) > 2100 {
				t.Errorf("%q", line)
			}
			return
		}
		if api.CheckID(s.ID) != nil || !filepath.IsAbs(s.Bundle) {
			t.Errorf("%+v", s)
		}
	})
}
