// SPDX-License-Identifier: Apache-2.0

// Gpuslice-runtime is an OCI runtime: it prepares the bundle and runs runc for the rest. See package shim.
package main

import (
	"os"

	"github.com/gpuslice/gpuslice/shim"
	"github.com/gpuslice/gpuslice/shim/spec"
)

func main() {
	args := shim.ParseArgs(os.Args[1:])
	status, err := run(args)
	if err != nil {
		shim.Report(err, args.Log, os.Stderr)
	}
	os.Exit(status)
}

// run executes the low-level runtime in place of this process, or returns an error.
func run(args shim.Args) (status int, err error) {
	if os.Getenv(shim.ActiveEnv) != "" {
		return 1, shim.ErrLoop
	}
	r, err := shim.Configured(args.Creates())
	if err != nil {
		return 1, err
	}
	bundle, err := args.BundleDir()
	if err != nil {
		return 1, err
	}
	if bundle != "" {
		config, err := spec.Read(bundle)
		if err == nil {
			err = r.Prepare(config)
		}
		if err != nil {
			return 1, err
		}
	}
	return r.Delegate(os.Args[1:], bundle)
}
