// SPDX-License-Identifier: Apache-2.0

package api

import (
	"testing"

	"github.com/gpuslice/gpuslice/test/expect"
)

func TestAMisspeltWordHasANearestOne(t *testing.T) {
	known := []string{"", "set", "suspend", "socket", "q"}
	for word, want := range map[string]string{"sockt": "socket", "sokcet": "socket", "sst": "set", "y": "", "frobnicate": "", "": "", "suspnd": "suspend"} {
		expect.Equal(t, Nearest(word, known), want, word)
	}
}
