// SPDX-License-Identifier: Apache-2.0

// Package simulated runs a package's tests in one process with the simulated driver, with a machine of their own.
package simulated

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/dl"
)

// OnCard is the variable that selects this machine's own driver and card.
const OnCard = "GPUSLICE_TEST_CARD"

// Run runs the tests and returns the exit status. Root is the path of the repository.
func Run(m *testing.M, root string) int {
	if os.Getenv(OnCard) != "" {
		return m.Run()
	}
	library, err := filepath.Abs(filepath.Join(root, "bin/fakecuda/libcuda.so.1"))
	if err == nil {
		// From now on libcuda.so.1 is this one for the dynamic linker, by its soname.
		err = dl.New(library, dl.RTLD_NOW|dl.RTLD_GLOBAL).Open()
	}
	if err != nil {
		fmt.Printf("skipped: requires the simulated driver (make test-programs): %v\n", err)
		return 0
	}
	// One for each process: a fuzz target runs in several.
	dir, err := os.MkdirTemp("/dev/shm", "gpuslice-simulated-")
	if err == nil {
		defer os.RemoveAll(dir)
		err = os.Setenv("FAKECUDA_STATE", filepath.Join(dir, "machine"))
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return m.Run()
}
