// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"tags.cncf.io/container-device-interface/pkg/cdi"
)

var claim = Claim{Namespace: "team", Name: "train", UID: "0a1b2c3d-1111-2222-3333-444455556666"}

func TestClaimsFileIsValidCDI(t *testing.T) {
	w := &Writer{Dir: t.TempDir(), Hook: "/usr/local/bin/gpuslice-hook", Config: "/etc/gpuslice/config.toml", Libraries: "/opt/nvidia"}
	for range 2 { // writing the same file again is no error
		if err := w.Write(claim, []Share{{Pool: "dra-x-0"}, {Pool: "dra-x-1", GPUs: []GPU{{UUID: "GPU-1", Minor: 3}}}}); err != nil {
			t.Fatal(err)
		}
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(w.Dir), cdi.WithAutoRefresh(false))
	if err != nil || len(cache.GetErrors()) > 0 {
		t.Fatal(err, cache.GetErrors())
	}
	first, second := cache.GetDevice(DeviceID("dra-x-0")), cache.GetDevice(DeviceID("dra-x-1"))
	if first == nil || second == nil {
		t.Fatalf("devices %v", cache.ListDevices())
	}
	hooks := first.ContainerEdits.Hooks
	want := []string{"gpuslice-hook", "--config", "/etc/gpuslice/config.toml", "--pool", "dra-x-0", "prestart"}
	if len(hooks) != 2 || !reflect.DeepEqual(hooks[0].Args, want) || hooks[1].HookName != "poststop" || len(hooks[0].Env) == 0 {
		t.Errorf("hooks %+v", hooks)
	}
	if len(first.ContainerEdits.DeviceNodes) != 0 || len(second.ContainerEdits.DeviceNodes) != 3 || second.ContainerEdits.DeviceNodes[2].Path != "/dev/nvidia3" ||
		len(second.ContainerEdits.Mounts) != 1 {
		t.Errorf("nodes %+v and %+v", first.ContainerEdits, second.ContainerEdits)
	}
}

func TestPreparedClaimsAreFoundAfterARestart(t *testing.T) {
	w := &Writer{Dir: t.TempDir(), Hook: "/hook"}
	if err := w.Write(claim, []Share{{Pool: "dra-x-0"}}); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"nvidia.yaml": "", "gpuslice.io-half.json": "{", "gpuslice.io-x.json.tmp": "{"} {
		if err := os.WriteFile(filepath.Join(w.Dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := w.List()
	if want := []Claim{claim, {UID: "half"}}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	for range 2 {
		if err := w.Remove(claim.UID); err != nil {
			t.Error(err)
		}
	}
	if got, _ := w.List(); len(got) != 1 {
		t.Errorf("got %+v", got)
	}
}

func TestAGPUIsFoundInNVIDIAsSpecificationByUUIDOrIndex(t *testing.T) {
	dir := t.TempDir()
	spec := func(name string) string {
		return `{"cdiVersion":"0.5.0","kind":"nvidia.com/gpu","devices":[{"name":"` + name + `","containerEdits":{"env":["A=b"]}}]}`
	}
	h := &Host{Dirs: []string{filepath.Join(dir, "none"), dir}}
	gpu := GPU{UUID: "GPU-0a1b2c3d-1111-2222-3333-444455556666", Index: 1}
	for name, want := range map[string]string{gpu.UUID: "nvidia.com/gpu=" + gpu.UUID, "1": "nvidia.com/gpu=1", "0": ""} {
		if err := os.WriteFile(filepath.Join(dir, "nvidia.yaml"), []byte(spec(name)), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := h.Device(gpu); got != want {
			t.Errorf("a specification with %s: %q, want %q", name, got, want)
		}
	}
}

func TestADeviceThatNeedsNVIDIAsSpecificationIsRefusedWithoutOne(t *testing.T) {
	for _, gpu := range []GPU{{UUID: "MIG-1", Minor: 0}, {UUID: "GPU-1", Minor: -1}} {
		if err := gpu.Direct(); err == nil || !strings.Contains(err.Error(), "nvidia-ctk cdi generate") {
			t.Errorf("%+v: %v", gpu, err)
		}
	}
	if err := (GPU{UUID: "GPU-1"}).Direct(); err != nil {
		t.Error(err)
	}
}

func TestARuntimeThatReadsAClaimsFileKeepsTheOldText(t *testing.T) {
	w := &Writer{Dir: t.TempDir(), Hook: "/hook", Config: "/config"}
	if err := w.Write(claim, []Share{{Pool: "dra-x-0"}}); err != nil {
		t.Fatal(err)
	}
	old, err := os.ReadFile(w.file(claim.UID))
	if err != nil {
		t.Fatal(err)
	}
	reader, err := os.Open(w.file(claim.UID))
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if err := w.Write(claim, []Share{{Pool: "dra-x-0"}, {Pool: "dra-x-1"}}); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(reader); err != nil || string(text) != string(old) {
		t.Errorf("a file that was open has %s, %v", text, err)
	}
	if entries, err := os.ReadDir(w.Dir); err != nil || len(entries) != 1 {
		t.Errorf("files %v, %v", entries, err)
	}
}

func TestUnreadableClaimsFileIsAnError(t *testing.T) {
	w := &Writer{Dir: t.TempDir()}
	if err := os.Symlink(filepath.Base(w.file(claim.UID)), w.file(claim.UID)); err != nil { // a link to itself, which cannot be opened
		t.Fatal(err)
	}
	if got, err := w.List(); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("got %+v, %v", got, err)
	}
}
