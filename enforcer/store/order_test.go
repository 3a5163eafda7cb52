// SPDX-License-Identifier: Apache-2.0

package store

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuslice/gpuslice/enforcer/durable/durabletest"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// replaced has the operations of a replacement of the state file.
var replaced = []string{
	"create state.json.new", "write state.json.new", "sync state.json.new", "close state.json.new", "rename state.json.new state.json", "syncdir state",
}

// recorded makes the store record its operations on the state directory.
func recorded(p *place) *durabletest.Recorder {
	r := &durabletest.Recorder{}
	p.disk = r.Disk()
	return r
}

func TestAChangeOfTheStateIsOnDiskBeforeItIsReported(t *testing.T) {
	p := newPlace(t)
	r := recorded(p)
	s := p.open()
	same(t, r.Take(), replaced) // an empty file
	for _, change := range []func() error{
		func() error { return s.PutPool(examplePool("p")) },
		func() error { return s.PutContext("NVIDIA H100", 1) },
		func() error { return s.DeletePool("p") },
	} {
		must.Do(t, change())
		same(t, r.Take(), replaced)
	}
}

func TestAFileIsSetAsideBeforeAnEmptyOneTakesItsPlace(t *testing.T) {
	p := newPlace(t)
	write(t, p.stateFile(), []byte("damaged"))
	r := recorded(p)
	p.openAny()
	done := r.Take()
	if len(done) < 3 || !strings.HasPrefix(done[0], "link state.json state.json.damaged-") {
		t.Fatalf("%q", done)
	}
	same(t, done[1:], append([]string{"remove state.json", "syncdir state"}, replaced...))
}

// Each operation that fails makes Open fail, and leaves the files to the next Open.
func TestOpenFailsWithAnyFailedOperation(t *testing.T) {
	for name, prepare := range map[string]func(p *place) (file string){
		"an empty state":  func(*place) string { return "" },
		"a damaged state": func(p *place) string { write(p.t, p.stateFile(), []byte("damaged")); return p.stateFile() },
		"a damaged record": func(p *place) string {
			write(p.t, p.record(1), []byte("damaged"))
			return p.record(1)
		},
	} {
		count := 0
		for fails := 0; fails <= count; fails++ { // the first pass counts the operations
			p := newPlace(t)
			file := prepare(p)
			r := recorded(p)
			if fails > 0 {
				r.Fail = func(string) error {
					if len(r.Done) == fails {
						return syscall.EIO
					}
					return nil
				}
			}
			s, err := Open(p.Options)
			if fails == 0 {
				must.Do(t, err)
				must.Do(t, s.Close())
				count = len(r.Done)
				continue
			}
			expect.ErrorIs(t, err, syscall.EIO, name, r.Done[fails-1], "fails")
			if s != nil {
				must.Do(t, s.Close())
			}
			kept, _ := filepath.Glob(file + "*")
			moved, _ := filepath.Glob(filepath.Join(p.RunDir, filepath.Base(file)+".damaged-*"))
			if file != "" && len(kept)+len(moved) == 0 {
				t.Errorf("%s: %s fails: the file is gone", name, r.Done[fails-1])
			}
		}
		expect.True(t, count != 0, name, "nothing was done")
	}
}
