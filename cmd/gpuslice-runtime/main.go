// SPDX-License-Identifier: Apache-2.0

// Gpuslice-runtime is an OCI runtime: it prepares the bundle and becomes runc. See package shim.
package main

import (
	"cmp"
	"fmt"
	"os"

	"github.com/gpuslice/gpuslice/enforcer/api"
	"github.com/gpuslice/gpuslice/enforcer/config"
	"github.com/gpuslice/gpuslice/hook/annotations"
	"github.com/gpuslice/gpuslice/shim"
)

// configEnv names another configuration than the default one. It is the engine's environment, and so the operator's:
// a container's never gets here.
const configEnv = "GPUSLICE_CONFIG"

func main() {
	args := shim.ParseArgs(os.Args[1:])
	status, err := run(args)
	if err != nil {
		shim.Report(err, args.Log, os.Stderr)
	}
	os.Exit(status)
}

// run returns only if it did not become the low-level runtime.
func run(args shim.Args) (status int, err error) {
	if os.Getenv(shim.ActiveEnv) != "" {
		return 1, shim.ErrLoop
	}
	file := cmp.Or(os.Getenv(configEnv), api.DefaultConfig)
	cfg, err := config.Load(file)
	if err != nil {
		if args.Creates() {
			return 1, err
		}
		cfg.Runtime.Runtimes = config.Runtimes(file)
	}
	self, info, err := executable()
	if err != nil {
		return 1, err
	}
	runtime, err := shim.FindRuntime(cfg.Runtime.Runtimes, os.Getenv("PATH"), info)
	if err != nil {
		return 1, err
	}
	cwd, err := os.Getwd()
	if err != nil {
		return 1, fmt.Errorf("find the working directory: %w", err)
	}
	r := shim.Runtime{
		Policy:   annotations.Policy{DefaultVRAM: cfg.Runtime.DefaultVRAM, Pass: cfg.Runtime.Missing == config.MissingPass, AllowEnv: cfg.Runtime.AllowEnv},
		HookPath: shim.FindHook(self, os.Getenv("PATH")),
		Config:   os.Getenv(configEnv),
		Reports:  shim.HidesHooks(runtime),
	}
	if err := r.Prepare(args, cwd); err != nil {
		return 1, err
	}
	env := append(os.Environ(), shim.ActiveEnv+"=1")
	if r.Reports && args.Creates() {
		return shim.Wait(runtime, os.Args[1:], env, args.BundleDir(cwd))
	}
	return 1, shim.Exec(runtime, os.Args[1:], env)
}

func executable() (path string, info os.FileInfo, err error) {
	if path, err = os.Executable(); err == nil {
		info, err = os.Stat(path)
	}
	if err != nil {
		return "", nil, fmt.Errorf("find this program: %w", err)
	}
	return path, info, nil
}
