// SPDX-License-Identifier: Apache-2.0

// Package containerd is the containerd runtime io.containerd.gpuslice.v1: containerd's own shim for runc, which prepares each
// bundle as gpuslice-runtime does. Containers and pods get the same as from io.containerd.runc.v2, and clients need no option:
// `ctr run --runtime io.containerd.gpuslice.v1`. With gpuslice-runtime under runc's shim each operation would execute one more
// program.
//
// The package parses the options that callers send to other runtimes than runc's ([understand]) and answers the queries of
// containerd 2. Annotations and hooks belong to package shim, slices to the hook.
//
// It uses containerd 1.7: containerd 1.6 to 2.x run its shims, while 1.x does not run a shim of 2.x.
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
	_ "github.com/containerd/containerd/runtime/v2/runc/pause" // pods that use the shim as their sandbox
	"github.com/containerd/containerd/runtime/v2/shim"
	"google.golang.org/protobuf/proto"

	"github.com/gpuslice/gpuslice/api"
	gpuslice "github.com/gpuslice/gpuslice/shim"
)

const (
	// Name is the name of the runtime. containerd derives the program's from its last two words.
	Name    = "io.containerd.gpuslice.v1"
	program = "containerd-shim-gpuslice-v1"
)

// maxInput limits standard input, in bytes: [maxOptions] and containerd's additions.
const maxInput = 1 << 20

// Main runs the program and returns its exit status, unless containerd's package exits itself.
func Main(args []string) int {
	// Package shim of containerd 1.7 has no -info and would print its own version. Neither comes with other flags.
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

// configured is [gpuslice.Configured] or a test's replacement.
type configured func(creates bool) (*gpuslice.Runtime, error)

// shimManager starts shims and cleans up after dead ones.
type shimManager struct {
	shim.Manager
	find configured
}

// Start rejects invalid options before anything exists. runc's manager does the rest and moves the shim to ShimCgroup.
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
		_, _ = w.Write(text) // on an error the reader sees a truncated message
		w.Close()
	}()
	os.Stdin = r // read by the manager of runc's shim
	return m.Manager.Start(ctx, id, opts)
}

// Stop deletes the container of a dead shim, at containerd's request, by the low-level runtime recorded in the bundle. If the
// record or the runtime is missing, it uses the configured one: otherwise the container's mounts and processes would remain.
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
		low := "runc" // if it cannot be run, runc's manager warns and cleans up the rest
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
