// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

func TestUnsetMemoryLimitIsIgnored(t *testing.T) {
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

func TestPendingGrantsCountInASharedCgroup(t *testing.T) {
	fake := newFakeHost(t, v2...)
	for pid, dir := range map[string]string{"501": "/all/a", "502": "/all/b", "503": "/other"} {
		fake.process(pid, 1, "0::"+dir)
		for name, text := range map[string]string{"memory.max": "100", "memory.current": "40", "memory.stat": "inactive_file 10"} {
			for at := dir; at != "/"; at = filepath.Dir(at) {
				fake.write(filepath.Join(fake.mount, "unified", at, name), text)
			}
		}
	}
	host := fake.open()
	for beside, want := range map[int]bool{0: false, 502: true, 503: false, 504: false} {
		short := must.Get(host.MemoryShort(map[int]uint64{501: 60}, map[int]uint64{beside: 20}))(t)
		expect.Equal(t, short != nil, want, "beside 20 bytes of process", beside)
	}
}
