// SPDX-License-Identifier: Apache-2.0

// Package shim runs between an engine and the low-level OCI runtime: runc, crun or nvidia-container-runtime. It adds gpuslice's
// hooks to the bundle before a container is created. Then gpuslice-runtime replaces itself by the low-level runtime with
// execve(2), or waits for it to report the hook's error in one sentence, which runc wraps and crun hides. Package shim/containerd
// is the same for containerd's shim.
//
// It changes no argument, and nothing but the hooks of a bundle. It checks the annotations as the hook does, since engines show
// its errors unwrapped.
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

// hookTimeout is the time in seconds after which the low-level runtime kills a hook. The hook's own deadlines
// ([hook.DefaultDeadlines]) are shorter, so that it can report an error.
const hookTimeout = 90

// hookEnv is the whole environment of a hook. Without one a runtime passes its own, and runc 1.1.5 passed the image's to some
// hooks: an image's LD_PRELOAD must not reach a program of root on the host.
//
// With a single processor for Go the hook ends about a millisecond sooner.
var hookEnv = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "GOMAXPROCS=1"}

// Runtime edits bundles and names the low-level runtime that runs them.
type Runtime struct {
	Policy   annotations.Policy
	HookPath string // absolute; "" if not found
	Config   string // the hook's configuration; "" for the default path
	Low      string // absolute path of the low-level runtime

	reports bool // the hook reports errors to a file, and its caller shows them
}

// Prepare edits the bundle of config before the low-level runtime creates a container from it. It checks the text that it edits,
// since the file may change. It skips a container that the policy lets pass. The hook decides whether a pod's sandbox needs a
// quota, by its devices, which do not exist yet.
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
