// SPDX-License-Identifier: Apache-2.0

// Package shim is what stands between an engine and the low-level OCI runtime: it adds gpuslice's hooks to the bundle
// of a container that is about to be made, and leaves all else to runc, crun or nvidia-container-runtime. As
// gpuslice-runtime it becomes that one by execve(2), so that the engine talks to it from then on; while a container is made
// it waits for it, so as to say in one sentence what runc would wrap, and crun not show. As containerd's shim
// (package shim/containerd) it is a shim of that one.
//
// It never changes an argument, and of a bundle nothing but the hooks. Whatever the annotations ask for is
// checked here already, because what this program says is what an engine shows; what a hook says arrives
// wrapped in the runtime's words.
package shim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuslice/gpuslice/hook"
	"github.com/gpuslice/gpuslice/hook/annotations"
	"github.com/gpuslice/gpuslice/shim/spec"
)

// hookTimeout is the seconds after which the low-level runtime ends a hook. The hook ends itself before
// ([hook.DefaultDeadlines]), with a sentence instead of a signal.
const hookTimeout = 90

// hookEnv is all the environment that a hook gets. It is set explicitly because a runtime gives a hook without one
// its own, and runc 1.1.5 gave the image's to some: LD_PRELOAD of an image must not reach a program
// that root runs on the host.
//
// A hook lives for milliseconds and does one thing at a time: with one processor for Go it ends about a millisecond sooner.
var hookEnv = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "GOMAXPROCS=1"}

// Runtime edits bundles, and names the program that takes them.
type Runtime struct {
	Policy   annotations.Policy
	HookPath string // absolute; "" if it was not found
	Config   string // the configuration that the hook is to read; "" is the default's place
	Low      string // absolute path of the low-level runtime

	reports bool // the hook writes what it has to say to a file, and who made the container says it in place of Low
}

// Prepare edits the bundle of config, of which the low-level runtime is about to make a container: what is judged is what is
// edited, should the file change meanwhile. A container that the operator lets pass is left alone. Whether a pod's
// sandbox may go without a quota is for the hook to say: here its devices are not there yet.
func (r *Runtime) Prepare(config *spec.File) error {
	dir := filepath.Dir(config.Path)
	if r.reports {
		if err := os.Remove(filepath.Join(dir, reportName)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("an old report of the hook: %w", err)
		}
	}
	bundle, err := hook.ParseBundle(config.Path, config.Text)
	if err != nil {
		return err
	}
	request, err := bundle.Request(r.Policy)
	if request == nil && (err == nil || !bundle.IsSandbox()) {
		return err
	}
	if r.HookPath == "" {
		return errors.New(spec.HookName + " is neither beside this program nor in PATH: install gpuslice again")
	}
	edited, err := spec.AddHooks(config.Text, r.hook(spec.Prestart, dir), r.hook(spec.Poststop, dir))
	if err != nil {
		return fmt.Errorf("the bundle's %s: %w", config.Path, err)
	}
	if len(edited) == len(config.Text) {
		return nil
	}
	return config.Replace(edited)
}

func (r *Runtime) hook(stage, bundle string) specs.Hook {
	args := []string{spec.HookName}
	if r.Config != "" {
		args = append(args, "--config", r.Config)
	}
	if r.reports && stage == spec.Prestart {
		args = append(args, "--report", filepath.Join(bundle, reportName))
	}
	return specs.Hook{Path: r.HookPath, Args: append(args, stage), Env: hookEnv, Timeout: new(hookTimeout)}
}
