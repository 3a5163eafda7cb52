// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuslice/gpuslice/hook/annotations"
	"github.com/gpuslice/gpuslice/hook/gpus"
)

const maxConfig = 16 << 20

// Bundle is what the hook needs to know of a container's config.json.
type Bundle struct {
	Dir         string // of config.json
	Rootfs      string // absolute
	OCIVersion  string
	Annotations map[string]string
	Args        []string
	GPUs        gpus.Spec
	Masked      []string            // paths that the runtime hides after the hook
	Seccomp     *specs.LinuxSeccomp // nil if there is none

	// Own is what the command line of this run of the hook grants.
	Own annotations.Grant
}

// ReadBundle reads a bundle's config.json. The annotations come from there and not from the state, where the
// OCI specification has a copy of them: the root filesystem is named only there, and one source cannot
// contradict itself. Both are the engine's words, neither is the image's.
func ReadBundle(dir string) (Bundle, error) {
	path := filepath.Join(dir, "config.json")
	// Not blocking, should it be a FIFO.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return Bundle{}, fmt.Errorf("the bundle: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
	if err != nil {
		return Bundle{}, fmt.Errorf("the bundle's %s: %w", path, err)
	}
	return ParseBundle(path, text)
}

// ParseBundle is [ReadBundle] for whoever has read config.json already; path is where that is.
func ParseBundle(path string, text []byte) (Bundle, error) {
	var config struct {
		OCIVersion string `json:"ociVersion"`
		Root       struct {
			Path string `json:"path"`
		} `json:"root"`
		Process struct {
			Args []string `json:"args"`
			Env  []string `json:"env"`
		} `json:"process"`
		Annotations map[string]string `json:"annotations"`
		Mounts      []specs.Mount     `json:"mounts"`
		Hooks       gpus.Hooks        `json:"hooks"`
		Linux       struct {
			gpus.Linux
			MaskedPaths []string            `json:"maskedPaths"`
			Seccomp     *specs.LinuxSeccomp `json:"seccomp"`
		} `json:"linux"`
	}
	if err := decode(text, maxConfig, &config); err != nil {
		return Bundle{}, fmt.Errorf("the bundle's %s: %w", path, err)
	}
	if config.Root.Path == "" {
		return Bundle{}, fmt.Errorf("the bundle's %s names no root filesystem", path)
	}
	rootfs := config.Root.Path
	if !filepath.IsAbs(rootfs) {
		rootfs = filepath.Join(filepath.Dir(path), rootfs)
	}
	return Bundle{
		Dir: filepath.Dir(path), Rootfs: filepath.Clean(rootfs), OCIVersion: config.OCIVersion,
		Annotations: config.Annotations, Args: config.Process.Args,
		GPUs:   gpus.Spec{Env: config.Process.Env, Mounts: config.Mounts, Hooks: config.Hooks, Linux: config.Linux.Linux},
		Masked: config.Linux.MaskedPaths, Seccomp: config.Linux.Seccomp,
	}, nil
}

// Request is what the container asks for; nil without an error if it is none of our business.
func (b *Bundle) Request(policy annotations.Policy) (*annotations.Request, error) {
	grant, err := granted(slices.Concat(b.GPUs.Hooks.Prestart, b.GPUs.Hooks.CreateRuntime), b.Own)
	if err != nil {
		return nil, err
	}
	if len(grant.Pools) > 0 {
		return annotations.ParseGranted(b.Annotations, grant)
	}
	request, err := annotations.Parse(b.Annotations, b.GPUs.Env, policy)
	return request, b.advise(err)
}

// sandboxKeys say that a container is only a pod's sandbox. CRI gives the pod's annotations to it too; it runs
// nothing but pause, and must not take the quota that the pod's containers ask for.
var sandboxKeys = []string{
	"io.kubernetes.cri.container-type", // containerd
	"io.kubernetes.cri-o.ContainerType",
}

// pauses are the command lines of sandboxes that nothing else tells from a container: cri-dockerd marks its own by a
// label, which an engine keeps to itself, and podman its infra containers nowhere that a runtime sees.
var pauses = [][]string{
	{"/pause"},           // Kubernetes' image
	{"/catatonit", "-P"}, // podman's
}

// IsSandbox says whether the container says of itself that it is a pod's sandbox. Whoever may start a container can
// write the annotation by hand, or name a program so: [gpus.Spec.Reaches] says whether it may go without a quota.
func (b *Bundle) IsSandbox() bool {
	for _, key := range sandboxKeys {
		if b.Annotations[key] == "sandbox" {
			return true
		}
	}
	return slices.ContainsFunc(pauses, func(p []string) bool { return slices.Equal(p, b.Args) })
}
