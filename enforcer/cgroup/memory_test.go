// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

func TestALimitOfMemoryIsOneThatIsSet(t *testing.T) {
	const more = 1 << 62 // more than any host has
	for _, files := range []memoryFiles{memoryV1, memoryV2} {
		for limit, want := range map[string]bool{"max": false, "9223372036854771712": false, "68719476736": true, "0": true} {
			dir := t.TempDir()
			for name, text := range map[string]string{files.limit: limit, files.current: "4096", "memory.stat": files.reclaimable + " 0"} {
				must.Do(t, os.WriteFile(filepath.Join(dir, name), []byte(text+"\n"), 0o600))
			}
			expect.Equal(t, must.Get(files.short(dir, more))(t) != nil, want, files.limit, limit)
		}
		if short, err := files.short(t.TempDir(), more); short != nil || err != nil { // like the root
			t.Errorf("%+v, %v", short, err)
		}
	}
}
