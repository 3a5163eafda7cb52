// SPDX-License-Identifier: Apache-2.0

// Containerd-shim-gpuslice-v1 is containerd's runtime io.containerd.gpuslice.v1; see package containerd.
package main

import (
	"os"

	"github.com/gpuslice/gpuslice/shim/containerd"
)

func main() { os.Exit(containerd.Main(os.Args[1:])) }
