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

// RuntimeName is the file name of gpuslice's OCI runtime.
const RuntimeName = "gpuslice-runtime"

// configEnv overrides the path of the configuration in the engine's environment.
const configEnv = "GPUSLICE_CONFIG"

// Configured returns the Runtime of the running program. Defaults for this machine complete the configuration. An invalid
// configuration is an error only if creates is set, since it must not keep containers from being stopped and deleted.
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
