// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/cdi"
	specs "tags.cncf.io/container-device-interface/specs-go"
)

// GPU is a GPU of the host.
type GPU struct {
	UUID  string
	Index int // in NVML
	Minor int // of /dev/nvidiaN; -1 if unknown
}

// nvidia is the kind of devices in NVIDIA's specification.
const nvidia = "nvidia.com/gpu"

// inContainer is the directory in which CUDA images expect the host's libraries.
const inContainer = "/usr/local/nvidia/lib64"

// Host finds GPUs in the CDI specifications of the host.
type Host struct {
	Dirs []string // directories of specifications that the container runtime reads
}

// Device returns the CDI name of a GPU in NVIDIA's specification, by UUID or by index (nvidia-ctk's default), or "" if absent.
func (h *Host) Device(gpu GPU) string {
	names := []string{gpu.UUID, strconv.Itoa(gpu.Index)}
	for _, dir := range h.Dirs {
		entries, _ := os.ReadDir(dir) // a missing directory has no devices
		for _, e := range entries {
			if ext := filepath.Ext(e.Name()); strings.HasPrefix(e.Name(), prefix) || ext != ".json" && ext != ".yaml" {
				continue
			}
			spec, err := cdi.ReadSpec(filepath.Join(dir, e.Name()), 0)
			if err != nil || spec.Kind != nvidia {
				continue
			}
			for _, name := range names {
				if spec.GetDevice(name) != nil {
					return nvidia + "=" + name
				}
			}
		}
	}
	return ""
}

// Direct returns an error if a GPU needs NVIDIA's specification.
func (gpu GPU) Direct() error {
	switch {
	case strings.HasPrefix(gpu.UUID, "MIG-"):
		return fmt.Errorf("device %s is a MIG instance, which only NVIDIA's CDI specification brings into a container: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml", gpu.UUID)
	case gpu.Minor < 0:
		return fmt.Errorf("device %s is in no CDI specification of NVIDIA's, and its device node is not known: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml", gpu.UUID)
	}
	return nil
}

// nodes returns the device nodes that CUDA opens. The runtime finds their numbers on the host.
func nodes(gpus []GPU) []*specs.DeviceNode {
	paths := []string{"/dev/nvidiactl", "/dev/nvidia-uvm"}
	for _, gpu := range gpus {
		paths = append(paths, "/dev/nvidia"+strconv.Itoa(gpu.Minor))
	}
	var all []*specs.DeviceNode
	for _, path := range paths {
		all = append(all, &specs.DeviceNode{Path: path})
	}
	return all
}

func (w *Writer) libraries() []*specs.Mount {
	if w.Libraries == "" {
		return nil
	}
	return []*specs.Mount{{HostPath: w.Libraries, ContainerPath: inContainer, Options: []string{"ro", "nosuid", "nodev", "rbind"}}}
}
