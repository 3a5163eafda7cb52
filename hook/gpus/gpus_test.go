// SPDX-License-Identifier: Apache-2.0

package gpus

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/hook/mount"
)

const (
	gpu = "GPU-0a1b2c3d-1111-2222-3333-444455556666"
	mig = "MIG-0a1b2c3d-1111-2222-3333-444455556666"
)

// withHook returns a container that has a hook of NVIDIA.
func withHook(path string, env ...string) *Spec {
	s := &Spec{Env: env}
	s.Hooks.Prestart = []specs.Hook{{Path: "/usr/bin/other"}, {Path: path}}
	return s
}

const nvidia = "/usr/bin/nvidia-container-runtime-hook"

func TestGPUsOfNVIDIAsHookAreVisible(t *testing.T) {
	for value, want := range map[string]string{
		"all":                           "",
		"none":                          "minor:9",
		"void":                          "minor:9",
		"":                              "minor:9",
		"0":                             "0 minor:9",
		"2,0":                           "0 2 minor:9",
		"2 ,, 0,2":                      "0 2 minor:9",
		gpu:                             gpu + " minor:9",
		strings.ToLower(gpu):            gpu + " minor:9",
		mig:                             mig + " minor:9",
		mig + ",1":                      "1 " + mig + " minor:9",
		"nvidia.com/gpu=0":              "0 minor:9",
		"nvidia.com/gpu=" + gpu + ",1":  "1 " + gpu + " minor:9",
		"runtime.nvidia.com/gpu=all":    "",
		"nvidia.com/imex-channel=0":     "",
		"0,all":                         "",
		"none,all":                      "",
		"none,1":                        "1 minor:9",
		"void,1":                        "1 minor:9",
		"0:1":                           "", // an instance that only the hook can resolve
		"GPU-0a1b":                      "",
		"0000:01:00.0":                  "",
		"MIG-" + gpu + "/3/0":           "",
		"01":                            "",
		"-1":                            "",
		"99999999999999999999":          "",
		strings.Repeat("0,", 1<<16):     "0 minor:9",
		"\x00":                          "",
		strings.Repeat("x", 1<<20):      "",
		"nvidia.com/gpu=nvidia.com/gpu": "",
	} {
		s := withHook(nvidia, "NVIDIA_VISIBLE_DEVICES=bad", "NVIDIA_VISIBLE_DEVICES="+value)
		got := strings.Join(s.Visible(mount.Nodes{Minors: []uint32{9}}), " ")
		if got != want {
			t.Errorf("%.60q: visible %q, want %q", value, got, want)
		}
	}
}

func TestImagesVariableIsIgnoredWithoutTheHook(t *testing.T) {
	env := []string{"NVIDIA_VISIBLE_DEVICES=1", "CUDA_VERSION=12.0", "DOCKER_RESOURCE_GPU=2"}
	for _, path := range []string{"/usr/bin/nvidia-cdi-hook", "/usr/bin/nvidia-ctk", "/opt/nvidia-container-toolkit/hook", ""} {
		s := withHook(path, env...)
		if got := s.Visible(mount.Nodes{Minors: []uint32{3}}); !slices.Equal(got, []string{"minor:3"}) {
			t.Errorf("%q: visible %q", path, got)
		}
		if got := s.Visible(mount.Nodes{}); got != nil {
			t.Errorf("%q: no device is known, want nil for all, got %q", path, got)
		}
	}
	for _, path := range []string{nvidia, "/usr/bin/nvidia-container-toolkit", "/usr/local/nvidia/toolkit/nvidia-container-runtime-hook.real"} {
		if got := withHook(path, "NVIDIA_VISIBLE_DEVICES=1").Visible(mount.Nodes{}); !slices.Equal(got, []string{"1"}) {
			t.Errorf("%q: visible %q", path, got)
		}
	}
}

// A variable that understates the visible GPUs only adds to the nodes.
func TestExistingDeviceNodesAlwaysCount(t *testing.T) {
	s := withHook(nvidia, "NVIDIA_VISIBLE_DEVICES=1")
	s.Linux.Devices = []specs.LinuxDevice{
		{Type: "c", Major: 195, Minor: 2}, {Type: "c", Major: 195, Minor: 255}, {Type: "b", Major: 195, Minor: 3},
		{Type: "c", Major: 1, Minor: 4}, {Type: "c", Major: 195, Minor: -5},
		{Type: "c", Major: 195, Minor: mount.MaxGPUMinor}, {Type: "c", Major: 195, Minor: mount.MaxGPUMinor + 1},
	}
	if got := s.Visible(mount.Nodes{Minors: []uint32{0, 7}}); !slices.Equal(got, []string{"1", "minor:0", "minor:2", "minor:247", "minor:7"}) {
		t.Errorf("visible %q", got)
	}
	if got := s.Visible(mount.Nodes{Minors: []uint32{0}, Unclear: true}); got != nil {
		t.Errorf("there may be others, want nil for all, got %q", got)
	}
}

func TestOtherWaysToAskTheHookAreKnown(t *testing.T) {
	for _, c := range []struct {
		name string
		spec *Spec
		want string
	}{
		{"an old image", withHook(nvidia, "CUDA_VERSION=8.0"), ""},
		{"an old image with a request", withHook(nvidia, "CUDA_VERSION=8.0", "NVIDIA_VISIBLE_DEVICES=1"), "1 minor:9"},
		{"an image that is not so old", withHook(nvidia, "CUDA_VERSION=8.0", "NVIDIA_REQUIRE_CUDA=cuda>=8"), "minor:9"},
		{"swarm", withHook(nvidia, "NVIDIA_VISIBLE_DEVICES=1", "DOCKER_RESOURCE_GPU=0"), ""},
		{"a mount", withMount("/dev/null", "/var/run/nvidia-container-devices/2"), "1 2 minor:9"},
		{"a mount of CDI", withMount("/dev/null", "/var/run/nvidia-container-devices/cdi/nvidia.com/gpu/"+gpu), "1 " + gpu + " minor:9"},
		{"the other form", withMount("/dev/null", "/var/run/nvidia-container-devices/cdi/nvidia.com/gpu=3"), "1 3 minor:9"},
		{"all by a mount", withMount("/dev/null", "/var/run/nvidia-container-devices/all"), ""},
		{"no device", withMount("/dev/null", "/var/run/nvidia-container-devices/imex/0"), "1 minor:9"},
		{"another mount", withMount("/data", "/var/run/nvidia-container-devices/2"), "1 minor:9"},
	} {
		if got := strings.Join(c.spec.Visible(mount.Nodes{Minors: []uint32{9}}), " "); got != c.want {
			t.Errorf("%s: visible %q, want %q", c.name, got, c.want)
		}
	}
}

// Clients of containerd configure the program behind NVIDIA's hook instead of the hook.
func TestGPUsOfTheProgramBehindNVIDIAsHookAreVisible(t *testing.T) {
	for args, want := range map[string]string{
		"configure --device=1 --compute": "1 minor:9",
		"configure --device=0," + gpu:    "0 " + gpu + " minor:9",
		"configure --device=all":         "",
		"configure --device 0":           "",
		"configure -d0":                  "",
		"configure --compute":            "minor:9",
		"":                               "minor:9",
	} {
		s := &Spec{Env: []string{"NVIDIA_VISIBLE_DEVICES=3"}}
		words := "containerd oci-hook -- /usr/bin/nvidia-container-cli --load-kmods " + args + " --pid={{pid}} {{rootfs}}"
		s.Hooks.CreateRuntime = []specs.Hook{{Path: "/usr/bin/containerd", Args: strings.Fields(words)}}
		if got := strings.Join(s.Visible(mount.Nodes{Minors: []uint32{9}}), " "); got != want {
			t.Errorf("%s: visible %q, want %q", args, got, want)
		}
	}
}

func withMount(source, destination string) *Spec {
	s := withHook(nvidia, "NVIDIA_VISIBLE_DEVICES=1")
	s.Mounts = []specs.Mount{{Source: source, Destination: destination}}
	return s
}

const (
	denied  = `{"allow":false,"access":"rwm"}`
	makeAll = `{"allow":true,"type":"c","access":"m"},{"allow":true,"type":"b","access":"m"}`
	usual   = `{"allow":true,"type":"c","major":1,"minor":3,"access":"rwm"},{"allow":true,"type":"c","major":136,"access":"rwm"},{"allow":true,"type":"c","major":10,"minor":200,"access":"rwm"}`
)

func TestOnlyContainersWithoutGPUMayHaveNoQuota(t *testing.T) {
	for _, c := range []struct {
		name    string
		text    string // of config.json
		nodes   mount.Nodes
		reaches bool
	}{
		{"containerd's", `{"linux":{"resources":{"devices":[` + denied + `]}}}`, mount.Nodes{}, false},
		{"an engine's list", `{"linux":{"resources":{"devices":[` + denied + `,` + makeAll + `,` + usual + `]}}}`, mount.Nodes{}, false},
		{"all types", `{"linux":{"resources":{"devices":[{"allow":false,"type":"a","major":-1,"minor":-1,"access":"rwm"}]}}}`, mount.Nodes{}, false},
		{"a node is there", `{"linux":{"resources":{"devices":[` + denied + `]}}}`, mount.Nodes{Minors: []uint32{0}}, true},
		{"one may be", `{"linux":{"resources":{"devices":[` + denied + `]}}}`, mount.Nodes{Unclear: true}, true},
		{"a node is made elsewhere", `{"linux":{"devices":[{"type":"c","major":195,"minor":0}],"resources":{"devices":[` + denied + `]}}}`, mount.Nodes{}, true},
		{"no rules", `{}`, mount.Nodes{}, true},
		{"null", `{"linux":null}`, mount.Nodes{}, true},
		{"privileged", `{"linux":{"resources":{"devices":[` + denied + `,{"allow":true,"access":"rwm"}]}}}`, mount.Nodes{}, true},
		{"a rule for GPUs", `{"linux":{"resources":{"devices":[` + denied + `,{"allow":true,"type":"c","major":195,"access":"rw"}]}}}`, mount.Nodes{}, true},
		{"a rule for all characters", `{"linux":{"resources":{"devices":[` + denied + `,{"allow":true,"type":"c","access":"r"}]}}}`, mount.Nodes{}, true},
		{"a rule without letters", `{"linux":{"resources":{"devices":[` + denied + `,{"allow":true,"type":"c","major":195}]}}}`, mount.Nodes{}, true},
		{"any misc device", `{"linux":{"resources":{"devices":[` + denied + `,{"allow":true,"type":"c","major":10,"access":"rw"}]}}}`, mount.Nodes{}, true},
		{"taken back", `{"linux":{"resources":{"devices":[{"allow":true,"access":"rwm"},` + denied + `]}}}`, mount.Nodes{}, false},
		{"half denied", `{"linux":{"resources":{"devices":[{"allow":false,"access":"m"}]}}}`, mount.Nodes{}, true},
		{"one denied", `{"linux":{"resources":{"devices":[{"allow":false,"type":"c","major":195,"access":"rwm"}]}}}`, mount.Nodes{}, true},
		{"NVIDIA's hook", `{"hooks":{"prestart":[{"path":"` + nvidia + `"}]},"linux":{"resources":{"devices":[` + denied + `]}}}`, mount.Nodes{}, false},
		{"NVIDIA's hook is asked", `{"hooks":{"createRuntime":[{"path":"` + nvidia + `"}]},"mounts":[{"source":"/dev/null","destination":"/var/run/nvidia-container-devices/0"}],
			"linux":{"resources":{"devices":[` + denied + `]}}}`, mount.Nodes{}, true},
		{"nerdctl --gpus", `{"hooks":{"createRuntime":[{"path":"/usr/bin/containerd","args":["containerd","oci-hook","--","/usr/bin/nvidia-container-cli","configure","--device=0"]}]},
			"linux":{"resources":{"devices":[` + denied + `]}}}`, mount.Nodes{}, true},
	} {
		var s Spec
		if err := json.Unmarshal([]byte(c.text), &s); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if got := s.Reaches(c.nodes); got != c.reaches {
			t.Errorf("%s: reaches a GPU: %v, want %v", c.name, got, c.reaches)
		}
	}
}

func FuzzVisibleDevices(f *testing.F) {
	for _, s := range []string{"all", "none", "0,1", gpu, mig, "nvidia.com/gpu=0", "0:1", ",,", "void"} {
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, value, name string) {
		s := withHook(nvidia, "NVIDIA_VISIBLE_DEVICES="+value)
		s.Mounts = []specs.Mount{{Source: "/dev/null", Destination: mountRoot + name}}
		names := s.Visible(mount.Nodes{Minors: []uint32{9}})
		if names == nil {
			return
		}
		if !slices.Contains(names, "minor:9") {
			t.Errorf("%q, %q: a node that is there is not visible: %q", value, name, names)
		}
		r := api.RegisterRequest{ID: "c", PID: 1, Quotas: []api.Quota{{Device: api.AllDevices, Bytes: 1}}, Visible: names}
		if err := r.Validate(); err != nil {
			t.Errorf("%q, %q: %v", value, name, err)
		}
		if !slices.IsSorted(names) || len(slices.Compact(slices.Clone(names))) != len(names) {
			t.Errorf("%q, %q: %q", value, name, names)
		}
		if strings.Contains(value, "all") && slices.Contains(strings.Split(value, ","), "all") {
			t.Errorf("%q: %q, not all", value, names)
		}
	})
}
