// SPDX-License-Identifier: Apache-2.0

package api

import (
	"strconv"
	"strings"
)

// MaxVisible is more devices than a container sees (16 GPUs, each with 7 MIG instances), and bounds a request.
const MaxVisible = 128

// minorPrefix is before the number of a device node in RegisterRequest.Visible.
const minorPrefix = "minor:"

// VisibleMinor names the GPU of the device node /dev/nvidiaN in RegisterRequest.Visible. Minor numbers and NVML's
// indices differ on some hosts.
func VisibleMinor(minor uint32) string { return minorPrefix + strconv.FormatUint(uint64(minor), 10) }

// ParseMinor reads what VisibleMinor made.
func ParseMinor(name string) (minor int, ok bool) {
	digits, ok := strings.CutPrefix(name, minorPrefix)
	n, err := strconv.ParseUint(digits, 10, 8) // the driver has minors below 248 for GPUs
	return int(n), ok && err == nil && strconv.FormatUint(n, 10) == digits
}

// DeviceName reads an index from 0 to 1023, or a UUID, whose hexadecimal digits NVML writes small. It says whether s is one
// of the two; neither has to exist.
func DeviceName(s string) (string, bool) {
	if n, err := strconv.ParseUint(s, 10, 10); err == nil {
		return s, strconv.FormatUint(n, 10) == s // not "+1", "007"
	}
	if len(s) < len("GPU-") {
		return "", false
	}
	kind, uuid := strings.ToUpper(s[:4]), strings.ToLower(s[4:])
	return kind + uuid, (kind == "GPU-" || kind == "MIG-") && isUUID(uuid)
}

func isUUID(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		dash := i == 8 || i == 13 || i == 18 || i == 23
		hex := c >= '0' && c <= '9' || c >= 'a' && c <= 'f'
		if dash != (c == '-') || !dash && !hex {
			return false
		}
	}
	return true
}
