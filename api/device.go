// SPDX-License-Identifier: Apache-2.0

package api

import (
	"strconv"
	"strings"
)

// MaxVisible bounds RegisterRequest.Visible: 16 GPUs of 7 MIG instances each are fewer.
const MaxVisible = 128

const minorPrefix = "minor:"

// VisibleMinor names the GPU of the device node /dev/nvidiaN for RegisterRequest.Visible. On some hosts minor numbers and NVML's
// indices differ.
func VisibleMinor(minor uint32) string { return minorPrefix + strconv.FormatUint(uint64(minor), 10) }

// ParseMinor parses a name made by VisibleMinor.
func ParseMinor(name string) (minor int, ok bool) {
	digits, ok := strings.CutPrefix(name, minorPrefix)
	n, err := strconv.ParseUint(digits, 10, 8) // the driver uses minors below 248 for GPUs
	return int(n), ok && err == nil && strconv.FormatUint(n, 10) == digits
}

// DeviceName returns s in NVML's form if it is an index from 0 to 1023, or a UUID (NVML writes hexadecimal digits in lower case).
// Otherwise it returns false. The device need not exist.
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
