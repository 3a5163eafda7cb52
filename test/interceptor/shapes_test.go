// SPDX-License-Identifier: Apache-2.0

package interceptor

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/test/must"
)

type shape struct {
	name  string // as the conformance program prints it
	line  string // as programs/shapes.c reads it
	count uint64
	one   uint64 // bytes that one takes
	many  uint64 // bytes that `count` take
	takes bool   // its own memory: neither sparse nor deferred
}

// flags of CUDA_ARRAY3D_DESCRIPTOR, by the names of test/conformance/array.c.
var flags = map[string]uint{
	"nv12_video": 0x100,
	"1d":         0, "2d": 0, "3d": 0, "bc1": 0, "bc3": 0, "bc7": 0, "unorm8x4": 0,
	"1d_layered": 0x01, "2d_layered": 0x01, "cubemap": 0x04, "cubemap_layered": 0x05,
	"sparse": 0x40, "deferred": 0x80,
}

// array.KIND.WxHxD.0xFORMAT.CHANNELS: held N, 64 hold N, left 0; or mipmapLEVELS instead of array
var arrayLine = regexp.MustCompile(`^(?:array|mipmap(\d+))\.(\w+)\.(\d+)x(\d+)x(\d+)\.0x(\w+)\.(\d): held (\d+),(?: (\d+) hold (\d+),)? left 0$`)

func shapes(t *testing.T) []shape {
	t.Helper()
	f := must.Get(os.Open("../conformance/expected/h100.txt"))(t)
	defer f.Close()
	number := func(text string, base int) uint64 {
		if text == "" {
			return 0
		}
		return must.Get(strconv.ParseUint(text, base, 64))(t)
	}
	var list []shape
	for lines := bufio.NewScanner(f); lines.Scan(); {
		m := arrayLine.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		flag, known := flags[m[2]]
		if !known {
			t.Fatalf("%q: what flags has %q?", lines.Text(), m[2])
		}
		s := shape{name: strings.SplitN(lines.Text(), ":", 2)[0], one: number(m[8], 10), count: 1}
		s.takes = flag&(0x40|0x80) == 0
		s.many = s.one
		if m[9] != "" && s.takes {
			s.count, s.many = number(m[9], 10), number(m[10], 10)
		}
		s.line = fmt.Sprintf("%s %s %s %d %s %d %d %d",
			m[3], m[4], m[5], number(m[6], 16), m[7], flag, number(m[1], 10), s.count)
		list = append(list, s)
	}
	must.True(t, len(list) >= 80, "shapes in h100.txt:", len(list))
	return list
}

// took runs shapes.c and calls `each` with its figures for one array and for `count`.
func took(t *testing.T, list []shape, c *exec.Cmd, each func(t *testing.T, s shape, one, many uint64)) {
	t.Helper()
	var in strings.Builder
	for _, s := range list {
		fmt.Fprintln(&in, s.line)
	}
	c.Stdin = strings.NewReader(in.String())
	out := must.Output(must.Printed(c))(t)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	must.Equal(t, len(lines), len(list), "answers", out)
	for i, s := range list {
		var one, many uint64
		if _, err := fmt.Sscan(lines[i], &one, &many); err != nil {
			t.Fatalf("%s: %q: %v", s.name, lines[i], err)
		}
		each(t, s, one, many)
	}
}

// Arrays up to 1 MiB share blocks. Without driver truth the interceptor guesses from the card's free memory how many there are.
func TestAnArrayIsChargedAsMuchAsTheCardTakes(t *testing.T) {
	for _, truth := range []string{"", "fail"} {
		t.Run("NVML "+truth, func(t *testing.T) {
			c := exec.Command(filepath.Join(bin(t), "gpuslice"), "run", "--embedded", "--quiet", "--vram", "4G", "--", compile(t, "shapes"))
			c.Env = environment(t, "FAKECUDA_NVML="+truth)
			took(t, shapes(t), c, func(t *testing.T, s shape, one, many uint64) {
				if s.takes && (one != s.one || many != s.many) || !s.takes && one != 0 {
					t.Errorf("%s: %d bytes are charged for one and %d for %d, the card took %d and %d", s.name, one, many, s.count, s.one, s.many)
				}
			})
		})
	}
}

func TestTheSimulatedCardGivesAnArrayWhatTheCardGave(t *testing.T) {
	c := exec.Command(compile(t, "shapes"))
	c.Env = environment(t)
	took(t, shapes(t), c, func(t *testing.T, s shape, one, many uint64) {
		if one != s.one || many != s.many {
			t.Errorf("%s: %d bytes, and %d for %d; the card gave %d and %d", s.name, one, many, s.count, s.one, s.many)
		}
	})
}
