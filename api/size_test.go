// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/docker/go-units"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

func TestSizesAreReadAsDockerReadsThem(t *testing.T) {
	for s, want := range map[string]uint64{
		"4G": 4 << 30, "4g": 4 << 30, "4GiB": 4 << 30, "4gb": 4 << 30, "4gib": 4 << 30, "4Gi": 4 << 30, "4096Mi": 4 << 30, "4096m": 4 << 30, "4294967296b": 4 << 30, "4294967296": 4 << 30, "1048576": 1 << 20,
		"1b": 1, "1B": 1, "1k": 1 << 10, "1kb": 1 << 10, "1m": 1 << 20, "1T": 1 << 40, "1P": 1 << 50, "007m": 7 << 20,
		"1.5G": 3 << 29, "1.50G": 3 << 29, "2.0b": 2, "0.5k": 512, "0.0009765625k": 1, "0.125G": 128 << 20, "1.000m": 1 << 20,
		"8191P": 8191 << 50, "9223372036854775807b": MaxSize,
	} {
		expect.Equal(t, must.Get(ParseSize(s))(t), want, s)
	}
}

func TestAnInvalidSizeIsRefusedInOneSentence(t *testing.T) {
	for _, s := range []string{
		"", "0", "0G", "0.0G", "00", "-1", "-4G", "+4G", "1.5", "0.3k", "0.1G", "1e9", "0x10", "4 G", " 4G", "4G ", "4G\n", "G", "b", "iB",
		"4X", "4GG", "4Bi", "4Bb", "4iB", "4E", "4.G", ".5G", "1.2.3G", "1,5G", "4_000", "٤G", "4Gbps",
		"9223372036854775808", "18446744073709551615", "18446744073709551616", "8192P", "99999999999999999999G", "1.00000000000000000001P",
		strings.Repeat("9", 1000), "50%",
	} {
		got, err := ParseSize(s)
		if err == nil {
			t.Errorf("%q: got %d, want an error", s, got)
			continue
		}
		if !errors.Is(err, ErrBadRequest) || !strings.Contains(err.Error(), "4GiB") || strings.Contains(err.Error(), "\n") || len(err.Error()) > 300 {
			t.Errorf("%q: %v", s, err)
		}
	}
}

func TestSizeWithoutUnitIsRefusedWithASuggestion(t *testing.T) {
	for s, want := range map[string]string{
		"500": `"500" has no unit: 500m was probably meant, and 500b would be bytes: `, "40": `"40" has no unit: 40G or 40m was probably meant`,
		"1": "1G or 1m", "2.0": "2.0G or 2.0m", "1048575": `"1048575" has no unit: 1048575m was probably meant`,
	} {
		expect.ErrorContains(t, must.Err(ParseSize(s)), want, s)
		if _, _, err := ParseQuota(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q as a quota: %v", s, err)
		}
	}
}

func TestAQuotaIsASizeOrAShare(t *testing.T) {
	for s, want := range map[string]struct {
		bytes   uint64
		percent uint32
	}{"4G": {4 << 30, 0}, "1%": {0, 1}, "50%": {0, 50}, "100%": {0, 100}} {
		bytes, percent, err := ParseQuota(s)
		if err != nil || bytes != want.bytes || percent != want.percent {
			t.Errorf("%q: got %d, %d, %v", s, bytes, percent, err)
		}
	}
	for _, s := range []string{"", "%", "0%", "101%", "-5%", "+5%", "12.5%", "50 %", "50%%", "4G%", "0", "4X", "4294967346%"} {
		if bytes, percent, err := ParseQuota(s); !errors.Is(err, ErrBadRequest) || bytes != 0 || percent != 0 || !strings.Contains(err.Error(), "%") {
			t.Errorf("%q: got %d, %d, %v", s, bytes, percent, err)
		}
	}
}

func TestSizesAreShownShort(t *testing.T) {
	for n, want := range map[uint64]string{
		0: "0B", 1: "1B", 1023: "1023B", 1 << 10: "1KiB", 1536: "1.5KiB", 4 << 30: "4GiB", 4000000000: "3.73GiB",
		81559 << 20: "79.65GiB", 1 << 50: "1PiB", MaxSize: "8192PiB", 1<<64 - 1: "16384PiB",
	} {
		expect.Equal(t, FormatSize(n), want, n)
	}
}

func FuzzParseSize(f *testing.F) {
	for _, s := range []string{"4G", "1.5GiB", "0.0009765625k", "4294967296b", "9223372036854775807b", "500", "1.9999999999999999999P", "8191.99P", "1Gi"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := ParseSize(s)
		if err != nil {
			expect.Equal(t, n, 0, s, err)
			return
		}
		if n == 0 || n > MaxSize {
			t.Fatalf("%q: got %d", s, n)
		}
		expect.Equal(t, must.Get(ParseSize(strconv.FormatUint(n, 10)+"b"))(t), n, s, "is read as another number")
		// Docker's parser has no Gi unit, and uses a float64, which is exact below 2^53 only.
		if docker, err := units.RAMInBytes(strings.TrimRight(s, "iI")); n < 1<<53 && (err != nil || uint64(docker) != n) {
			t.Errorf("%q is %d, for docker %d, %v", s, n, docker, err)
		}
		// FormatSize rounds by at most half a percent.
		if shown, err := ParseSize(FormatSize(n)); err == nil {
			if d := int64(shown) - int64(n); d > int64(n/200) || -d > int64(n/200) {
				t.Errorf("%d is shown as %s", n, FormatSize(n))
			}
		}
		if bytes, percent, err := ParseQuota(s); err != nil || bytes != n || percent != 0 {
			t.Errorf("%q as a quota: %d, %d, %v", s, bytes, percent, err)
		}
	})
}
