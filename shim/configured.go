// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"cmp"
	"fmt"
	"os"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/daemon/config"
	"github.com/gpuslice/gpuslice/hook/annotations"
)

// RuntimeName is our OCI runtime's program.
const RuntimeName = "gpuslice-runtime"

// configEnv names another configuration file. It is the engine's environment, never the container's.
const configEnv = "GPUSLICE_CONFIG"

// Configured is how the running program, one of ours, prepares containers, and the low-level runtime that it hands
// them to: as the configuration says, and for what is not there the machine. creates says whether a container is to be
// made: a spoilt configuration keeps nobody from stopping or deleting one.
func Configured(creates bool) (*Runtime, error) {
	file := cmp.Or(os.Getenv(configEnv), api.DefaultConfig)
	cfg, err := config.Load(file)
	if err != nil {
		if creates {
			return nil, err
		}
		cfg.Runtime.Runtimes = config.Runtimes(file)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	path := os.Getenv("PATH")
	low, err := findRuntime(cfg.Runtime.Runtimes, path, self, findBeside(RuntimeName, self, path))
	if err != nil {
		return nil, err
	}
	return &Runtime{
		Policy:   annotations.PolicyOf(cfg.Runtime),
		HookPath: findHook(self, path),
		Config:   os.Getenv(configEnv),
		Low:      low,
		reports:  os.Getenv(listenPID) == "" || hidesHooks(low),
	}, nil
}
