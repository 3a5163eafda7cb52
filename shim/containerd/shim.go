// SPDX-License-Identifier: Apache-2.0

// Package containerd is the containerd runtime io.containerd.gpuslice.v1: containerd's own shim for runc, which prepares each
// bundle as gpuslice-runtime does before the low-level runtime sees it. So a container, and each pod, gets exactly what it gets
// from io.containerd.runc.v2, and a client names it without an option: `ctr run --runtime io.containerd.gpuslice.v1`.
// A container that runc's shim starts by gpuslice-runtime costs one more execution of a program for each
// thing that is done with it; here there is none.
//
// It owns what runc's shim cannot do: it understands the options that a caller sends to a runtime which is not
// runc's ([understand]), and it answers what containerd 2 asks of a newer shim. It looks at no container: annotations
// and hooks are the business of package shim, slices that of the hook.
//
// It is built on containerd 1.7, whose shims containerd 1.6 to 2.x all run; one built on 2.x does not serve 1.x.
package containerd

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/namespaces"
	"github.com/containerd/containerd/plugin"
	"github.com/containerd/containerd/runtime/v2/runc"
	"github.com/containerd/containerd/runtime/v2/runc/manager"
	_ "github.com/containerd/containerd/runtime/v2/runc/pause" // pods that the shim itself is asked to sandbox
	"github.com/containerd/containerd/runtime/v2/shim"
	"google.golang.org/protobuf/proto"

	"github.com/gpuslice/gpuslice/api"
	gpuslice "github.com/gpuslice/gpuslice/shim"
)

const (
	// Name is the runtime's; containerd makes the program's of its last two words.
	Name    = "io.containerd.gpuslice.v1"
	program = "containerd-shim-gpuslice-v1"
)

// maxInput is what is read of standard input: [maxOptions] and what containerd adds.
const maxInput = 1 << 20

// Main is the program. It returns the exit status, if containerd's package does not exit itself.
func Main(args []string) int {
	// Package shim of containerd 1.7 knows no -info, and would tell its own version. Neither comes with other flags.
	if len(args) == 1 {
		switch args[0] {
		case "-v", "--v", "-version", "--version":
			fmt.Println(program, api.Version)
			return 0
		case "-info", "--info":
			return report(writeInfo(context.Background(), gpuslice.Configured, os.Stdin, os.Stdout))
		}
	}
	plugin.Register(taskPlugin(gpuslice.Configured))
	shim.RunManager(context.Background(), &shimManager{manager.NewShimManager(Name), gpuslice.Configured})
	return 0
}

func report(err error) int {
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", Name, err)
		return 1
	}
	return 0
}

// configured is [gpuslice.Configured], or what a test has in its place.
type configured func(creates bool) (*gpuslice.Runtime, error)

// shimManager starts a shim, and cleans up after one that died.
type shimManager struct {
	shim.Manager
	find configured
}

// Start refuses options that are not understood before there is anything to clean up, and hands the
// rest on: runc's shim is put into ShimCgroup here.
func (m *shimManager) Start(ctx context.Context, id string, opts shim.StartOpts) (string, error) {
	namespace, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return "", err
	}
	input, err := readInput(os.Stdin)
	if err != nil {
		return "", err
	}
	sent, err := startOptions(input, id, namespace)
	if err != nil {
		return "", err
	}
	runc, err := understand(sent)
	if err != nil {
		return "", err
	}
	options, err := pack(runc)
	if err != nil {
		return "", err
	}
	text, err := proto.Marshal(options)
	if err != nil {
		return "", err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return "", err
	}
	go func() {
		_, _ = w.Write(text) // the reader sees what is missing
		w.Close()
	}()
	os.Stdin = r // where the manager of runc's shim reads
	return m.Manager.Start(ctx, id, opts)
}

// Stop is what containerd runs when a shim died: it deletes the container by the low-level runtime that the bundle's file
// names. If the shim died before it wrote that, or the runtime was moved since, the one that is found now takes its
// place; else what was mounted would stay, and so would the container's processes.
func (m *shimManager) Stop(ctx context.Context, id string) (shim.StopStatus, error) {
	cwd, err := os.Getwd()
	if err != nil {
		return shim.StopStatus{}, err
	}
	bundle := filepath.Join(filepath.Dir(cwd), id)
	recorded, err := runc.ReadRuntime(bundle)
	if err == nil {
		_, err = os.Stat(recorded)
	}
	if err != nil {
		low := "runc" // if it cannot be run either, runc's manager warns, and cleans up all else
		if found, err := m.find(false); err == nil {
			low = found.Low
		}
		if err := runc.WriteRuntime(bundle, low); err != nil {
			return shim.StopStatus{}, err
		}
	}
	return m.Manager.Stop(ctx, id)
}

func readInput(r io.Reader) ([]byte, error) {
	input, err := io.ReadAll(io.LimitReader(r, maxInput+1))
	if err != nil {
		return nil, fmt.Errorf("read the runtime's options: %w", err)
	}
	if len(input) > maxInput {
		return nil, fmt.Errorf("the runtime's options are larger than %s", api.FormatSize(maxInput))
	}
	return input, nil
}
