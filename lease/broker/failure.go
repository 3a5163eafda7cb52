// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"errors"
	"fmt"
	"strings"

	"github.com/gpuslice/gpuslice/lease/leasepb"
	"github.com/gpuslice/gpuslice/vmm/cuda"
)

func failed(code leasepb.Code, format string, args ...any) *leasepb.Failure {
	return &leasepb.Failure{Code: code, Message: fmt.Sprintf(format, args...)}
}

func advised(f *leasepb.Failure, advice string) *leasepb.Failure {
	f.Advice = advice
	return f
}

func invalid(format string, args ...any) *leasepb.Failure {
	return failed(leasepb.Code_INVALID_REQUEST, format, args...)
}

func noRoom(requested, limit, current uint64) *leasepb.Failure {
	return &leasepb.Failure{
		Code:      leasepb.Code_ALLOC_FAILED,
		Message:   fmt.Sprintf("%d bytes are refused: the session has %d of the lease's %d", requested, current, limit),
		Advice:    "free buffers, or acquire a larger lease",
		Requested: &requested, Limit: &limit, Current: &current,
	}
}

// loadAdvice says what to do about a load that failed with err and the compiler's log, on a device of that compute capability.
func loadAdvice(err error, log, capability string) string {
	var result cuda.Result
	if !errors.As(err, &result) {
		return ""
	}
	switch result {
	case cuda.NoBinary:
		return "recompile without -arch, or for this device's compute capability, " + capability + ", so that the image has PTX or code for it"
	case cuda.UnsupportedPTX:
		return "compile with the CUDA version of the host's driver or an older one, or lower the PTX's .version"
	case cuda.InvalidPTX:
		if strings.Contains(log, ".target") { // "SM version specified by .target is higher than …"
			return "recompile for compute capability " + capability + " or an older one: the PTX's .target is newer than the device"
		}
		return "see the log for the line"
	case cuda.InvalidImage:
		return "send PTX text, a cubin or a fatbin"
	case cuda.OutOfMemory:
		return "the module's variables and code have to fit beside the buffers: acquire a larger lease"
	}
	return ""
}
