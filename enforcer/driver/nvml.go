// SPDX-License-Identifier: Apache-2.0

// Package driver asks NVIDIA's driver, through NVML, which devices there are and what each process really holds
// on them: driver truth, against which the ledger is checked.
//
// It owns the loading of libnvidia-ml.so.1 and everything that differs between its versions. It reads only: it
// must never change a device's settings, and it must not take the enforcer down with it. go-nvml binds the
// library's functions lazily, and the dynamic linker ends the process at the first call of one that
// the installed library does not have; so no function is called that was not found before.
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
	// ErrNoNVML says that there is no driver truth on this host; the error around it says why and what to do.
	ErrNoNVML = errors.New("there is no driver truth")
	// ErrNoDevice says that NVML shows no device of that UUID (any more).
	ErrNoDevice = errors.New("no such device")
)

// needed is what every NVML since the R450 drivers has, and without which nothing works here.
var needed = []string{
	"nvmlInit_v2", "nvmlShutdown", "nvmlErrorString", "nvmlSystemGetDriverVersion",
	"nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2",
	"nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo",
}

// NVML is the driver's management library, loaded and initialised. Its methods may be called by several goroutines.
type NVML struct {
	lib nvml.Interface
	has func(symbol string) bool

	mu      sync.Mutex
	handles map[string]nvml.Device // by UUID, as of the last Devices
}

// Open loads and initialises NVML. An error wraps ErrNoNVML, and is a sentence for an operator.
func Open() (*NVML, error) {
	library := dl.New(libraryName, dl.RTLD_LAZY|dl.RTLD_GLOBAL)
	if err := library.Open(); err != nil {
		return nil, noNVML("%v: install the NVIDIA driver's libraries (libnvidia-compute, or nvidia-driver-libs), or set nvml = \"off\"", err)
	}
	// The library stays loaded while go-nvml uses it: it opens it again by the same name, and counts.
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
		return nil, noNVML("NVML does not start: %v: %s", ret, remedy(ret))
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

// DriverVersion is the driver's version, "" if it does not say.
func (n *NVML) DriverVersion() string {
	v, ret := n.lib.SystemGetDriverVersion()
	if ret != nvml.SUCCESS {
		return ""
	}
	return v
}

// Close gives NVML back. The library itself stays loaded: threads of the driver may still run in it.
func (n *NVML) Close() error {
	if ret := n.lib.Shutdown(); ret != nvml.SUCCESS {
		return fmt.Errorf("shut NVML down: %w", ret)
	}
	return nil
}
