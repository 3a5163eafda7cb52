// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/daemon/config"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// The unit must allow what docs/operate/bounds.md promises to concurrent clients.
func TestTheLeaseServicesUnitLeavesItWhatItsClientsMayHave(t *testing.T) {
	text := must.Get(os.ReadFile(filepath.Join(root, "configs/gpuslice-leased.service")))(t)
	value := func(key string) string {
		t.Helper()
		line := regexp.MustCompile(`(?m)^` + key + `=(.*)$`).FindSubmatch(text)
		if line == nil {
			t.Fatalf("the unit has no %s", key)
		}
		return string(line[1])
	}
	families := strings.Fields(value("RestrictAddressFamilies"))
	for _, family := range []string{"AF_UNIX", "AF_INET", "AF_INET6"} {
		expect.True(t, slices.Contains(families, family), "the unit refuses", family, "no other machine could be served")
	}
	for _, key := range []string{"PrivateNetwork", "IPAddressDeny"} {
		expect.True(t, !regexp.MustCompile(`(?m)^`+key+`=`).Match(text), "with", key, "no other machine is served")
	}
	limit := must.Get(strconv.Atoi(value("LimitNOFILE")))(t)
	const local, handshakes, remote = 1024, 256, 256
	if most := 3*config.Default().Leases.MaxLeases + local + handshakes + 2*remote; limit < 8*most {
		t.Errorf("the unit lets gpuslice-leased have %d descriptors, and its clients can take %d by default", limit, most)
	}
	// Each connection from another machine buffers 1 MiB in each direction.
	if got := value("MemoryMax"); got != "1G" {
		t.Errorf("MemoryMax is %s: is it more than the %d MiB that other machines can have wait?", got, 2*remote)
	}
}
