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

// Bundle holds the parts of a container's config.json that the hook uses.
type Bundle struct {
	Dir         string // directory of config.json
	Rootfs      string // absolute path
	OCIVersion  string
	Annotations map[string]string
	Args        []string
	GPUs        gpus.Spec
	Masked      []string            // paths that the runtime masks after the hook
	Seccomp     *specs.LinuxSeccomp // nil if absent

	// Own is the grant of this run's command line.
	Own annotations.Grant
}

// ReadBundle reads a bundle's config.json, which the engine writes. It ignores the copy of the annotations in the state: the root
// filesystem is in config.json only, and one source cannot contradict itself.
func ReadBundle(dir string) (Bundle, error) {
	path := filepath.Join(dir, "config.json")
	// O_NONBLOCK: it may be a FIFO.
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

// ParseBundle parses the text of a config.json; path is its location.
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

// Request returns the container's request, or nil without an error if gpuslice does not apply to it.
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

// sandboxKeys mark a container as the sandbox of a pod. CRI copies the pod's annotations to the sandbox, which must not take the
// quota of the pod's containers.
var sandboxKeys = []string{
	"io.kubernetes.cri.container-type", // containerd
	"io.kubernetes.cri-o.ContainerType",
}

// pauses lists the command lines of sandboxes without another mark visible to a runtime, those of cri-dockerd and podman.
var pauses = [][]string{
	{"/pause"},           // Kubernetes' image
	{"/catatonit", "-P"}, // podman's
}

// IsSandbox reports whether the container claims to be the sandbox of a pod, which any user can make it do. [gpus.Spec.Reaches]
// decides whether it may run without a quota.
func (b *Bundle) IsSandbox() bool {
	for _, key := range sandboxKeys {
		if b.Annotations[key] == "sandbox" {
			return true
		}
	}
	return slices.ContainsFunc(pauses, func(p []string) bool { return slices.Equal(p, b.Args) })
}
