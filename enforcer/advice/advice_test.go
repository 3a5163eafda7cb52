// SPDX-License-Identifier: Apache-2.0

package advice

import (
	"os"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/test/expect"
)

func TestSystemdIsNamedWhereItRunsOnly(t *testing.T) {
	before := booted
	t.Cleanup(func() { booted = before })
	for _, with := range []bool{true, false} {
		booted = t.TempDir()
		if !with {
			booted += "/none"
		}
		for _, says := range []func(string) string{Start, Restart, Enable, Log} {
			said := says("gpusliced")
			if named := strings.Contains(said, "systemctl") || strings.Contains(said, "journalctl"); named != with {
				t.Errorf("systemd runs: %v; %q", with, said)
			}
		}
	}
}

func TestCommandForRootHasSudoForOtherUsers(t *testing.T) {
	want := "`sudo systemctl start gpusliced`"
	if os.Geteuid() == 0 {
		want = "`systemctl start gpusliced`"
	}
	expect.Equal(t, AsRoot("systemctl start", "gpusliced"), want)
}
