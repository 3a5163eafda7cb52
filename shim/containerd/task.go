// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	taskapi "github.com/containerd/containerd/api/runtime/task/v2"
	"github.com/containerd/containerd/pkg/shutdown"
	"github.com/containerd/containerd/plugin"
	"github.com/containerd/containerd/runtime/v2/runc/task"
	"github.com/containerd/containerd/runtime/v2/shim"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/gpuslice/gpuslice/hook"
	gpuslice "github.com/gpuslice/gpuslice/shim"
	"github.com/gpuslice/gpuslice/shim/spec"
)

// service serves the containers of one pod, or one container, by runc's service.
type service struct {
	taskapi.TaskService
	find configured
}

// taskPlugin replaces package runc/task/plugin, which registers runc's service unchanged.
func taskPlugin(find configured) *plugin.Registration {
	return &plugin.Registration{
		Type:     plugin.TTRPCPlugin,
		ID:       "task",
		Requires: []plugin.Type{plugin.EventPlugin, plugin.InternalPlugin},
		InitFn: func(ic *plugin.InitContext) (any, error) {
			publisher, err := ic.GetByID(plugin.EventPlugin, "publisher")
			if err != nil {
				return nil, err
			}
			stop, err := ic.GetByID(plugin.InternalPlugin, "shutdown")
			if err != nil {
				return nil, err
			}
			runc, err := task.NewTaskService(ic.Context, publisher.(shim.Publisher), stop.(shutdown.Service))
			if err != nil {
				return nil, err
			}
			return &service{runc, find}, nil
		},
	}
}

// RegisterTTRPC registers the service. Package shim requires this method.
func (s *service) RegisterTTRPC(server *ttrpc.Server) error {
	taskapi.RegisterTaskService(server, s)
	return nil
}

// Create creates a container with the caller's options and the low-level runtime. runc's service records both in the bundle for
// [shimManager.Stop].
func (s *service) Create(ctx context.Context, r *taskapi.CreateTaskRequest) (*taskapi.CreateTaskResponse, error) {
	low, err := s.prepare(r)
	if err != nil {
		return nil, errors.New(hook.Sentence(err))
	}
	remapped, err := mountRemapped(r.Rootfs, r.Bundle)
	if err != nil {
		return nil, err
	}
	if remapped {
		r.Rootfs = nil
	}
	made, err := s.TaskService.Create(ctx, r)
	if err != nil {
		if said := low.HookSaid(r.Bundle); said != nil {
			return nil, errors.New(hook.Sentence(said))
		}
	}
	return made, err
}

// prepare edits the bundle and converts the caller's options to those of runc's service.
func (s *service) prepare(r *taskapi.CreateTaskRequest) (*gpuslice.Runtime, error) {
	runc, err := understand(r.Options)
	if err != nil {
		return nil, err
	}
	config, err := spec.Read(r.Bundle)
	if err != nil {
		return nil, err
	}
	if saysNothing(r.Options) {
		if runc.SystemdCgroup, err = impliesSystemd(config); err != nil {
			return nil, err
		}
	}
	low, err := s.find(true)
	if err != nil {
		return nil, err
	}
	runc.BinaryName = low.Low
	if r.Options, err = pack(runc); err != nil {
		return nil, err
	}
	// For a low-level runtime that wraps gpuslice-runtime.
	if err := os.Setenv(gpuslice.ActiveEnv, "1"); err != nil {
		return nil, err
	}
	return low, low.Prepare(config)
}

// saysNothing reports whether the caller could not set SystemdCgroup: it sent no options (nerdctl), they were lost (containerd
// 1.6, dockerd), or containerd made them up to set the owner of a container's pipes in a user namespace.
func saysNothing(sent *anypb.Any) bool {
	if name := typeName(sent.GetTypeUrl()); name != runcType && name != createType {
		return len(sent.GetValue()) == 0
	}
	runc, err := decode(sent)
	if err != nil || runc.IoUid == 0 && runc.IoGid == 0 {
		return false
	}
	runc.IoUid, runc.IoGid = 0, 0
	return proto.Size(runc) == 0
}

// impliesSystemd reports whether the container's cgroup path is in the form of systemd, "kubepods-pod1.slice:cri-containerd:ID".
// The other manager of cgroups would create a cgroup of that name outside the limits of the slice.
func impliesSystemd(config *spec.File) (bool, error) {
	var container struct {
		Linux struct {
			CgroupsPath string `json:"cgroupsPath"`
		} `json:"linux"`
	}
	if err := json.Unmarshal(config.Text, &container); err != nil {
		return false, fmt.Errorf("the bundle's %s: %w", config.Path, err)
	}
	parts := strings.Split(container.Linux.CgroupsPath, ":")
	return len(parts) == 3 && strings.HasSuffix(parts[0], ".slice"), nil
}
