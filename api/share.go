// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"math/bits"
)

// Share is a part of a device's memory, as a person writes it: a size, or whole percentages. At most one of the two is
// set; if neither is, nothing was written.
type Share struct {
	Bytes   uint64
	Percent uint32 // 1 to 100
}

// ParseShare reads what ParseQuota does; "" is the Share that IsZero.
func ParseShare(s string) (Share, error) {
	if s == "" {
		return Share{}, nil
	}
	bytes, percent, err := ParseQuota(s)
	return Share{Bytes: bytes, Percent: percent}, err
}

// IsZero says whether nothing was written.
func (s Share) IsZero() bool { return s == Share{} }

// Of is the share of a device of total bytes, rounded down. A size is itself, however large the device is.
func (s Share) Of(total uint64) uint64 {
	if s.Percent == 0 {
		return s.Bytes
	}
	high, low := bits.Mul64(total, uint64(min(s.Percent, 100)))
	bytes, _ := bits.Div64(high, low, 100)
	return bytes
}

func (s Share) String() string {
	if s.Percent > 0 {
		return fmt.Sprintf("%d%%", s.Percent)
	}
	return FormatSize(s.Bytes)
}
