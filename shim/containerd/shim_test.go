// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	taskapi "github.com/containerd/containerd/api/runtime/task/v2"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/api/types/runc/options"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/containerd/namespaces"
	"github.com/containerd/containerd/runtime/linux/runctypes"
	"github.com/containerd/containerd/runtime/v2/runc"
	"github.com/containerd/containerd/runtime/v2/runc/manager"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gpuslice/gpuslice/hook/annotations"
	gpuslice "github.com/gpuslice/gpuslice/shim"
)

// standIn writes a program that replaces the low-level runtime.
func standIn(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "runc")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func runs(path string) configured {
	return func(bool) (*gpuslice.Runtime, error) {
		return &gpuslice.Runtime{Policy: annotations.Policy{Pass: true}, HookPath: "/opt/gpuslice-hook", Low: path}, nil
	}
}

const low = "/opt/runc"

func nowhere(bool) (*gpuslice.Runtime, error) { return nil, errors.New("lost") }

func bundleOf(t *testing.T, config string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

type tasks struct {
	taskapi.TaskService
	created []*taskapi.CreateTaskRequest
}

func (s *tasks) Create(_ context.Context, r *taskapi.CreateTaskRequest) (*taskapi.CreateTaskResponse, error) {
	s.created = append(s.created, r)
	return &taskapi.CreateTaskResponse{Pid: 7}, nil
}

func unpack(t testing.TB, packed *anypb.Any) *options.Options {
	t.Helper()
	if packed.TypeUrl != runcType {
		t.Fatalf("the type is %q", packed.TypeUrl)
	}
	got := new(options.Options)
	if err := proto.Unmarshal(packed.Value, got); err != nil {
		t.Fatal(err)
	}
	return got
}

func TestAContainerIsPreparedAndMadeByTheLowLevelRuntime(t *testing.T) {
	inner := new(tasks)
	s := &service{inner, runs(low)}
	bundle := bundleOf(t, `{"root": {"path": "rootfs"}, "annotations": {"gpuslice.vram": "1G"}}`)
	sent := &taskapi.CreateTaskRequest{ID: "c1", Bundle: bundle, Options: send(t, "", body("SystemdCgroup = true"))}
	if answer, err := s.Create(context.Background(), sent); err != nil || answer.Pid != 7 {
		t.Fatal(answer, err)
	}
	want := &options.Options{SystemdCgroup: true, BinaryName: low}
	if got := unpack(t, inner.created[0].Options); !proto.Equal(got, want) || inner.created[0].ID != "c1" {
		t.Errorf("got %v", inner.created[0])
	}
	text, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	if err != nil || strings.Count(string(text), `"/opt/gpuslice-hook"`) != 2 {
		t.Errorf("the bundle: %s, %v", text, err)
	}
}

func TestAnInvalidContainerIsRefusedBeforeAnythingIsMade(t *testing.T) {
	bundle := bundleOf(t, `{"root": {"path": "rootfs"}, "annotations": {"gpuslice.vram": "lots"}}`)
	for want, c := range map[string]struct {
		find configured
		sent *anypb.Any
	}{
		"gpuslice: annotation gpuslice.vram":      {runs(low), nil},
		"gpuslice: the runtime's options are of ": {runs(low), send(t, "", durationpb.New(1))},
		"gpuslice: lost":                          {nowhere, nil},
	} {
		inner := new(tasks)
		_, err := (&service{inner, c.find}).Create(context.Background(), &taskapi.CreateTaskRequest{Bundle: bundle, Options: c.sent})
		if err == nil || !strings.HasPrefix(err.Error(), want) || len(inner.created) > 0 {
			t.Errorf("want %s: %v", want, err)
		}
	}
}

// If options are missing, the container's cgroup path shows the caller's manager of cgroups.
func TestTheManagerOfCgroupsIsTheOneThatTheContainerIsWrittenFor(t *testing.T) {
	const systemd = "kubepods-pod1.slice:cri-containerd:c1"
	for _, c := range []struct {
		sent    *anypb.Any
		cgroups string
		want    bool
	}{
		{nil, systemd, true},
		{nil, "system.slice:nerdctl:c1", true},
		{send(t, "", &runtimeoptions.Options{}), systemd, true}, // containerd 1.6, with any configuration
		{nil, "", false},
		{nil, "/kubepods/pod1/c1", false},
		{nil, "/system.slice/a:b:c1", false},
		{nil, "a:b:c1", false},
		{nil, "a.slice", false},
		{nil, "a.slice:c1", false},
		{send(t, "", &options.Options{}), systemd, false},
		{send(t, "", &options.Options{IoUid: 100000, IoGid: 100000}), systemd, true}, // containerd 2, for a user namespace
		{send(t, "", &options.Options{IoUid: 100000, Root: "/r"}), systemd, false},
		{send(t, "", &runctypes.CreateOptions{IoUid: 100000, IoGid: 100000}), systemd, true}, // containerd 1.x
		{send(t, "", &runctypes.CreateOptions{IoUid: 100000, NoPivotRoot: true}), systemd, false},
		{send(t, "", body("SystemdCgroup = false")), systemd, false},
		{send(t, "", body("SystemdCgroup = true")), "/kubepods/pod1/c1", true},
	} {
		bundle := bundleOf(t, fmt.Sprintf(`{"root": {"path": "rootfs"}, "linux": {"cgroupsPath": %q}}`, c.cgroups))
		inner := new(tasks)
		if _, err := (&service{inner, runs(low)}).Create(context.Background(), &taskapi.CreateTaskRequest{Bundle: bundle, Options: c.sent}); err != nil {
			t.Errorf("%v: %v", c, err)
			continue
		}
		if got := unpack(t, inner.created[0].Options).SystemdCgroup; got != c.want {
			t.Errorf("%v, %q: %v", c.sent, c.cgroups, got)
		}
	}
	for _, text := range []string{"", "{", `{"linux": {"cgroupsPath": 1}}`} {
		bundle := bundleOf(t, text)
		if _, err := (&service{new(tasks), runs(low)}).Create(context.Background(), &taskapi.CreateTaskRequest{Bundle: bundle}); err == nil {
			t.Errorf("%q: nothing is wrong with it", text)
		}
	}
}

func TestInfoReportsTheLowLevelRuntimesFeatures(t *testing.T) {
	ask := func(script string, input []byte) (*types.RuntimeInfo, error) {
		t.Helper()
		var out bytes.Buffer
		if err := writeInfo(context.Background(), runs(standIn(t, script)), bytes.NewReader(input), &out); err != nil {
			return nil, err
		}
		info := new(types.RuntimeInfo)
		return info, proto.Unmarshal(out.Bytes(), info)
	}
	const features = `{"linux": {"mountExtensions": {"idmap": {"enabled": true}}}, "of tomorrow": 1}`
	input, err := proto.Marshal(send(t, "", body("SystemdCgroup = true")))
	if err != nil {
		t.Fatal(err)
	}
	info, err := ask(`[ "$*" = features ] && echo '`+features+`'`, input)
	if err != nil {
		t.Fatal(err)
	}
	if info.Name != Name || info.Version.GetVersion() == "" || !unpack(t, info.Options).SystemdCgroup {
		t.Errorf("got %v", info)
	}
	if f := info.Features; f.GetTypeUrl() != "types.containerd.io/opencontainers/runtime-spec/1/features/Features" || string(f.GetValue()) != features {
		t.Errorf("features: %v", f)
	}
	for _, script := range []string{"exit 1", "echo no JSON"} {
		if info, err := ask(script, nil); err != nil || info.Features != nil {
			t.Errorf("%s: %v, %v", script, info, err)
		}
	}
	if _, err := ask("", bytes.Repeat([]byte{0}, maxInput+1)); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("an endless input: %v", err)
	}
}

func TestContainerOfADeadShimIsDeleted(t *testing.T) {
	for name, recorded := range map[string]string{
		"before it wrote the runtime": "",
		"and the runtime was moved":   "/not/there/any/more/runc",
		"and all is as it was":        "recorded",
	} {
		t.Run(name, func(t *testing.T) {
			log := filepath.Join(t.TempDir(), "log")
			found := standIn(t, `echo "$0 $*" >>`+log)
			bundle := t.TempDir()
			want := found
			if recorded == "recorded" {
				want = standIn(t, `echo "$0 $*" >>`+log)
				recorded = want
			}
			if recorded != "" {
				if err := runc.WriteRuntime(bundle, recorded); err != nil {
					t.Fatal(err)
				}
				if err := runc.WriteOptions(bundle, &options.Options{Root: "/its/root", BinaryName: recorded}); err != nil {
					t.Fatal(err)
				}
			}
			t.Chdir(bundle)
			m := &shimManager{manager.NewShimManager(Name), runs(found)}
			ctx := namespaces.WithNamespace(context.Background(), "ns")
			status, err := m.Stop(ctx, filepath.Base(bundle))
			if err != nil || status.ExitStatus != 137 {
				t.Fatal(status, err)
			}
			root := "/run/containerd/runc/ns"
			if recorded != "" {
				root = "/its/root/ns"
			}
			text, err := os.ReadFile(log)
			if err != nil {
				t.Fatal(err)
			}
			if line := string(text); !strings.HasPrefix(line, want+" --root "+root+" ") || !strings.HasSuffix(line, " delete --force "+filepath.Base(bundle)+"\n") {
				t.Errorf("it ran %s", line)
			}
		})
	}
}

func TestDeadShimIsCleanedUpWithoutARuntime(t *testing.T) {
	bundle := t.TempDir()
	t.Chdir(bundle)
	t.Setenv("PATH", "")
	m := &shimManager{manager.NewShimManager(Name), nowhere}
	if _, err := m.Stop(namespaces.WithNamespace(context.Background(), "ns"), filepath.Base(bundle)); err != nil {
		t.Error(err)
	}
}

// Hook and runtime run several times per container start and must stay small.
func TestOnlyTheShimIsBuiltOnContainerd(t *testing.T) {
	needs := func(program string) []string {
		t.Helper()
		cmd := exec.Command("go", "list", "-deps", "github.com/gpuslice/gpuslice/cmd/"+program)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.Fields(string(out))
	}
	of := func(all []string, part string) (some []string) {
		for _, path := range all {
			if strings.Contains(path, part) {
				some = append(some, path)
			}
		}
		return some
	}
	for _, name := range []string{"gpuslice-hook", "gpuslice-runtime"} {
		all := needs(name)
		if len(of(all, "gpuslice/")) == 0 {
			t.Fatalf("%s needs nothing of ours: %v", name, all)
		}
		for _, heavy := range []string{"containerd", "google.golang.org", "urfave/cli"} {
			if found := of(all, heavy); len(found) > 0 {
				t.Errorf("%s needs %v", name, found)
			}
		}
	}
	// containerd has had these messages in two packages. A program that links both panics.
	all := needs(program)
	for _, messages := range []string{"runc/options", "runtimeoptions"} {
		if found := of(all, messages); len(found) != 1 {
			t.Errorf("%s: %v", messages, found)
		}
	}
}

func TestTheFeaturesOfARealRuntimeAreHandedOn(t *testing.T) {
	path, err := exec.LookPath("runc")
	if err != nil {
		t.Skip("needs runc: make deps")
	}
	text, err := features(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	var found struct{ OCIVersionMin string }
	if err := json.Unmarshal(text, &found); err != nil || found.OCIVersionMin == "" {
		t.Errorf("%s: %v", text, err)
	}
}
