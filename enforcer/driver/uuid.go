// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"encoding/hex"
	"fmt"
	"strings"
)

// The two kinds of device with a quota. NVML writes the kind in front of the UUID.
const (
	gpuPrefix = "GPU-"
	migPrefix = "MIG-"
)

// UUID identifies a device. CUDA uses the 16 raw bytes, NVML and people the text.
type UUID struct {
	Raw [16]byte
	MIG bool
}

// ParseUUID parses GPU-8-4-4-4-12 or MIG-8-4-4-4-12 in hexadecimal, as NVML writes it. It rejects the form of drivers before R470 for MIG
// (MIG-GPU-<uuid>/3/0), which has no UUID of the instance.
func ParseUUID(s string) (UUID, error) {
	var u UUID
	digits, ok := strings.CutPrefix(s, gpuPrefix)
	if !ok {
		digits, ok = strings.CutPrefix(s, migPrefix)
		u.MIG = true
	}
	if !ok || len(digits) != 36 || digits[8] != '-' || digits[13] != '-' || digits[18] != '-' || digits[23] != '-' {
		return UUID{}, badUUID(s)
	}
	// Each group has an even number of digits. Without the four dashes there are 32.
	raw, err := hex.DecodeString(digits[:8] + digits[9:13] + digits[14:18] + digits[19:23] + digits[24:])
	if err != nil {
		return UUID{}, badUUID(s)
	}
	copy(u.Raw[:], raw)
	return u, nil
}

func badUUID(s string) error {
	return fmt.Errorf("device %.80q is not a UUID: GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx is accepted, or the same with MIG- (nvidia-smi -L shows them)", s)
}

func (u UUID) String() string {
	prefix := gpuPrefix
	if u.MIG {
		prefix = migPrefix
	}
	h := hex.EncodeToString(u.Raw[:])
	return prefix + h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}
