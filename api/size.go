// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"
)

// MaxSize is the largest accepted size in bytes; `docker run --memory` has the same maximum. Sums of a ledger's sizes stay far
// below 2^64, which means "no limit".
const MaxSize = math.MaxInt64

// bytesAlone is the smallest number that may lack a unit. Below it the unit was probably forgotten.
const bytesAlone = 1 << 20

const sizesAccepted = "a size such as 4G, 4GiB, 4096m or 4294967296 is accepted (units k, m, g, t, p are powers of 1024)"

// ParseSize parses a size in bytes as `docker run --memory` does: digits, then a unit k, m, g, t or p in either case, optionally
// with b, ib or (as in Kubernetes) i; or b for bytes. Units are powers of 1024. Decimals are accepted if the result is whole
// (1.5G). Without a unit a size is in bytes, and at least 1 MiB. Signs, spaces and zero are rejected. Its error is an *Error with
// CodeBadRequest.
func ParseSize(s string) (uint64, error) {
	number := strings.TrimRight(s, "bBiIkKmMgGtTpP")
	shift, ok := unitShift(s[len(number):])
	whole, fraction, decimals := strings.Cut(number, ".")
	if !ok || !digits(whole) || (decimals && !digits(fraction)) {
		return 0, sizeError(s, "is not a size")
	}
	n, err := strconv.ParseUint(whole, 10, 64)
	if err != nil || n > MaxSize>>shift {
		return 0, sizeError(s, "is too large")
	}
	if number == s && n > 0 && n < bytesAlone {
		return 0, sizeError(s, "has no unit: "+meant(s, n))
	}
	n <<= shift
	if part := strings.TrimRight(fraction, "0"); part != "" {
		b, ok := fractionBytes(part, shift)
		if !ok {
			return 0, sizeError(s, "is not a whole number of bytes")
		}
		n += b // stays below MaxSize: b is less than a unit, n a multiple of it
	}
	if n == 0 {
		return 0, sizeError(s, "is no memory at all")
	}
	return n, nil
}

func meant(s string, n uint64) string {
	if n < 128 {
		return fmt.Sprintf("%sG or %sm was probably meant, and %sb would be bytes", s, s, s)
	}
	return fmt.Sprintf("%sm was probably meant, and %sb would be bytes", s, s)
}

// fractionBytes returns 0.part units of 2^shift bytes, or false if that is not a whole number. It is exact: a quota is never
// rounded.
func fractionBytes(part string, shift uint) (uint64, bool) {
	if len(part) > 19 { // 10^19 is the last power of ten below 2^64
		return 0, false
	}
	numerator, err := strconv.ParseUint(part, 10, 64)
	if err != nil {
		return 0, false
	}
	denominator := uint64(1)
	for range part {
		denominator *= 10
	}
	high, low := bits.Mul64(numerator, 1<<shift)
	bytes, rest := bits.Div64(high, low, denominator) // numerator < denominator, so high < denominator
	return bytes, rest == 0
}

func unitShift(unit string) (uint, bool) {
	unit = strings.ToLower(unit)
	if unit == "" || unit == "b" {
		return 0, true
	}
	if rest := unit[1:]; rest != "" && rest != "b" && rest != "i" && rest != "ib" {
		return 0, false
	}
	i := strings.IndexByte("kmgtp", unit[0])
	return uint(i+1) * 10, i >= 0
}

func digits(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

func sizeError(s, what string) error {
	return Errorf(CodeBadRequest, "%.80q %s: %s", s, what, sizesAccepted)
}

// ParseQuota parses a quota: a size as ParseSize does, or a percentage of the device from 1% to 100%. If err is nil, exactly one
// of bytes and percent is set. Its error is an *Error with CodeBadRequest.
func ParseQuota(s string) (bytes uint64, percent uint32, err error) {
	if share, ok := strings.CutSuffix(s, "%"); ok {
		n, err := strconv.ParseUint(share, 10, 32)
		if err != nil || !digits(share) || n < 1 || n > 100 {
			return 0, 0, Errorf(CodeBadRequest, "%.80q is not a share of a device: a whole number from 1%% to 100%% is accepted", s)
		}
		return 0, uint32(n), nil
	}
	bytes, err = ParseSize(s)
	if err != nil {
		return 0, 0, Errorf(CodeBadRequest, "%s, and so is a share of the device, such as 50%%", err.Error())
	}
	return bytes, 0, nil
}

// FormatSize formats bytes in binary units: exact if two decimals suffice ("4GiB", "1.5GiB"), else rounded to two decimals
// ("3.73GiB").
func FormatSize(bytes uint64) string {
	unit := (bits.Len64(bytes|1) - 1) / 10
	if unit == 0 {
		return strconv.FormatUint(bytes, 10) + "B"
	}
	if unit > 5 {
		unit = 5
	}
	number := strconv.FormatFloat(float64(bytes)/float64(uint64(1)<<(10*unit)), 'f', 2, 64)
	number = strings.TrimSuffix(strings.TrimRight(number, "0"), ".")
	return fmt.Sprintf("%s%ciB", number, "KMGTP"[unit-1])
}
