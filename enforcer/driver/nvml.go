// SPDX-License-Identifier: Apache-2.0

// Package driver reads from NVIDIA's driver, through NVML, which devices the host has and how much memory each process really holds on
// them. This is driver truth, against which the ledger is checked.
//
// The package owns the loading of libnvidia-ml.so.1 and the differences between its versions. It must never change a device's settings, and
// must not crash the enforcer. go-nvml binds functions lazily, and the dynamic linker ends the process at the first call of a missing one,
// so the package looks up each function before it calls it.
package driver

import (
	"errors"
	"fmt"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

const libraryName = "libnvidia-ml.so.1"

var (
	// ErrNoNVML means that this host has no driver truth. The error that wraps it says why and what to do.
	ErrNoNVML = errors.New("there is no driver truth")
	// ErrNoDevice means that NVML shows no device with the UUID (any more).
	ErrNoDevice = errors.New("no such device")
)

// needed are the functions that this package cannot do without. Every NVML since R450 has them.
var needed = []string{
	"nvmlInit_v2", "nvmlShutdown", "nvmlErrorString", "nvmlSystemGetDriverVersion",
	"nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2",
	"nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo",
}

// NVML is the loaded and initialised library. It is safe for concurrent use.
type NVML struct {
	lib nvml.Interface
	has func(symbol string) bool

	mu      sync.Mutex
	handles map[string]nvml.Device // by UUID, as of the last call of Devices
}

// Open loads and initialises NVML. Its errors wrap ErrNoNVML, and say what an operator can do.
func Open() (*NVML, error) {
	library := dl.New(libraryName, dl.RTLD_LAZY|dl.RTLD_GLOBAL)
	if err := library.Open(); err != nil {
		return nil, noNVML("%v: install the NVIDIA driver's libraries (libnvidia-compute, or nvidia-driver-libs), or set nvml = \"off\"", err)
	}
	// The library stays loaded while go-nvml uses it, since go-nvml opens it again and dlopen counts.
	has := func(symbol string) bool { return library.Lookup(symbol) == nil }
	for _, symbol := range needed {
		if !has(symbol) {
			_ = library.Close()
			return nil, noNVML("%s has no %s: the driver is older than R450, or the library is not NVIDIA's: install a newer driver, or set nvml = \"off\"", libraryName, symbol)
		}
	}
	lib := nvml.New()
	if ret := lib.Init(); ret != nvml.SUCCESS {
		_ = library.Close()
		return nil, noNVML("cannot initialise NVML: %v: %s", ret, remedy(ret))
	}
	return newNVML(lib, has), nil
}

func newNVML(lib nvml.Interface, has func(string) bool) *NVML {
	return &NVML{lib: lib, has: has, handles: make(map[string]nvml.Device)}
}

func noNVML(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrNoNVML, fmt.Sprintf(format, args...))
}

func remedy(ret nvml.Return) string {
	switch ret {
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return "load the kernel module (`sudo modprobe nvidia`), or set nvml = \"off\""
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return "the library and the kernel module are of two driver versions: reboot, or reload the module"
	case nvml.ERROR_NO_PERMISSION:
		return "run the enforcer as root"
	default:
		return "nvidia-smi shows the same error if the driver is at fault"
	}
}

// DriverVersion returns the driver's version, or "" if it is not reported.
func (n *NVML) DriverVersion() string {
	v, ret := n.lib.SystemGetDriverVersion()
	if ret != nvml.SUCCESS {
		return ""
	}
	return v
}

// Close shuts NVML down. The library stays loaded, since threads of the driver may still run in it.
func (n *NVML) Close() error {
	if ret := n.lib.Shutdown(); ret != nvml.SUCCESS {
		return fmt.Errorf("cannot shut NVML down: %w", ret)
	}
	return nil
}
