// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"math/bits"
)

// Share is a part of a device's memory: a size or a percentage. At most one field is set; the zero Share means unset.
type Share struct {
	Bytes   uint64
	Percent uint32 // 1 to 100
}

// ParseShare parses s as ParseQuota does, and "" as the zero Share.
func ParseShare(s string) (Share, error) {
	if s == "" {
		return Share{}, nil
	}
	bytes, percent, err := ParseQuota(s)
	return Share{Bytes: bytes, Percent: percent}, err
}

// IsZero reports whether the share is unset.
func (s Share) IsZero() bool { return s == Share{} }

// Of returns the share of a device with total bytes, rounded down. A size is returned as it is, even if it exceeds total.
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
