// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuslice/gpuslice/enforcer/durable"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

func aside(t testing.TB, path, kind string) []string {
	t.Helper()
	return must.Get(filepath.Glob(path + "." + kind + "-*"))(t)
}

// keptAside checks that a file was kept unchanged under another name of base, which the log names.
func (p *place) keptAside(base, kind string, data []byte) {
	p.t.Helper()
	kept := aside(p.t, base, kind)
	if len(kept) != 1 || !bytes.Equal(read(p.t, kept[0]), data) {
		p.t.Fatalf("the file was not kept unchanged: %q", kept)
	}
	expect.Contains(p.t, p.log.String(), kept[0], "it is not reported")
}

// lived returns a state file after some changes.
func lived(t testing.TB) []byte {
	t.Helper()
	p := newPlace(t)
	s := p.open()
	must.Do(t, s.PutPool(examplePool("p")))
	must.Do(t, s.PutContext("NVIDIA H100", 500<<20))
	must.Do(t, s.Close())
	return read(t, p.stateFile())
}

// Damage to a record loses that record only.
func TestADamagedRecordIsReportedAndKeptAndCostsNoOther(t *testing.T) {
	p := newPlace(t)
	s := p.open()
	must.Do(t, s.PutSlice(example("a", 1)))
	must.Do(t, s.PutPoolState("night", examplePoolState()))
	healthy := read(t, p.record(1))
	damages := map[string][]byte{
		"empty":                        {},
		"text":                         []byte("this is no record"),
		"of another slice":             seal(sliceKind, sliceKey(1), recordSchema, []byte(`{"generation":1}`)),
		"of a field with another type": seal(sliceKind, sliceKey(7), recordSchema, []byte(`{"generation":7,"suspended":true}`)),
		"of another generation":        seal(sliceKind, sliceKey(7), recordSchema, []byte(`{"generation":8}`)),
		"of a schema before the first": seal(sliceKind, sliceKey(7), 0, []byte(`{"generation":7}`)),
	}
	for n := range healthy {
		flipped := bytes.Clone(healthy)
		flipped[n] ^= 1 << (n % 8)
		damages[fmt.Sprint("a bit of byte ", n)] = flipped
		damages[fmt.Sprint("its first bytes ", n)] = healthy[:n]
	}
	must.Do(t, s.Close())
	for name, data := range damages {
		write(t, p.record(7), data)
		s := p.openAny()
		if slices, pools := s.Slices(), s.PoolStates(); len(slices) != 1 || slices[0].Generation != 1 || len(pools) != 1 {
			t.Fatalf("%s: %+v, %+v", name, slices, pools)
		}
		must.Do(t, s.Close())
		base := filepath.Join(p.RunDir, filepath.Base(p.record(7)))
		kept, err := filepath.Glob(base + ".*-*") // damaged, or newer
		must.Do(t, err)
		if len(kept) != 1 || !bytes.Equal(read(t, kept[0]), data) || !strings.Contains(p.log.String(), kept[0]) {
			t.Fatalf("%s: kept as %q: %s", name, kept, p.log.String())
		}
		must.Do(t, os.Remove(kept[0]))
	}
	same(t, p.open().Slices(), []Slice{example("a", 1)})
}

func TestANewerFileIsReportedAndKept(t *testing.T) {
	p := newPlace(t)
	must.Do(t, p.open().Close())
	record := seal(sliceKind, sliceKey(1), recordSchema+1, []byte("{}"))
	write(t, p.record(1), record)
	state := bytes.Replace(read(t, p.stateFile()), []byte("state 2"), []byte("state 3"), 1)
	write(t, p.stateFile(), state)
	p.openAny()
	p.keptAside(filepath.Join(p.RunDir, filepath.Base(p.record(1))), "newer", record)
	p.keptAside(p.stateFile(), "newer", state)
	expect.Contains(t, p.log.String(), "newer version")
}

// The fixtures have each field, as written by an earlier gpuslice.
func TestRecordsOfTheFirstSchemaAreRead(t *testing.T) {
	p := newPlace(t)
	write(t, p.record(1), read(t, "testdata/slice-1"))
	write(t, filepath.Join(p.records(), "pool-night"), read(t, "testdata/pool-1"))
	write(t, p.stateFile(), read(t, "testdata/state-2.json"))
	s := p.open()
	slices := s.Released()
	must.Len(t, slices, 1)
	for _, stored := range []any{slices[0], s.PoolStates()["night"], s.Pools()[0]} {
		for _, field := range unset(reflect.ValueOf(stored), reflect.TypeOf(stored).Name()) {
			t.Errorf("%s has no value: add it to the fixture", field)
		}
	}
}

// unset returns the names of the fields without a value, including those of nested structs.
func unset(v reflect.Value, name string) (fields []string) {
	switch {
	case v.Kind() == reflect.Pointer && !v.IsNil():
		return unset(v.Elem(), name)
	case v.Kind() == reflect.Struct && v.Type().PkgPath() == reflect.TypeFor[Slice]().PkgPath():
		for i := range v.NumField() {
			fields = append(fields, unset(v.Field(i), name+"."+v.Type().Field(i).Name)...)
		}
	case v.Kind() == reflect.Slice && v.Len() > 0:
		return unset(v.Index(0), name)
	case v.IsZero():
		fields = []string{name}
	}
	return fields
}

func TestFilesSetAsideInOneSecondDoNotReplaceEachOther(t *testing.T) {
	p := newPlace(t)
	for i := range 3 {
		write(t, p.stateFile(), []byte{byte(i)})
		must.Do(t, p.openAny().Close())
	}
	must.Len(t, aside(t, p.stateFile(), "damaged"), 3, "kept")
}

func TestNonRegularFilesAreLeftAlone(t *testing.T) {
	for _, path := range []func(*place) string{(*place).stateFile, func(p *place) string { return p.record(1) }} {
		for what, place := range map[string]func(string, uint32) error{"a directory": syscall.Mkdir, "a FIFO": syscall.Mkfifo} {
			p := newPlace(t)
			must.Do(t, os.MkdirAll(filepath.Dir(path(p)), 0o700))
			must.Do(t, place(path(p), 0o700))
			expect.Error(t, must.Err(Open(p.Options)), what, "was opened")
			expect.NoError(t, must.Err(os.Stat(path(p))), what, "is gone")
		}
	}
	p, other := newPlace(t), newPlace(t)
	must.Do(t, other.open().Close())
	must.Do(t, os.MkdirAll(p.RunDir, 0o700))
	must.Do(t, os.Symlink(other.records(), p.records()))
	expect.Error(t, must.Err(Open(p.Options)), "a link was followed")
}

func TestFlippedBitInAPoolIsReported(t *testing.T) {
	data := lived(t)
	must.Get(decode(data))(t)
	for bit := range 8 * len(data) {
		damaged := bytes.Clone(data)
		damaged[bit/8] ^= 1 << (bit % 8)
		if d, err := decode(damaged); err == nil {
			t.Fatalf("bit %d: %+v", bit, d)
		}
	}
	for n := range data {
		if d, err := decode(bytes.Clone(data[:n])); err == nil { // a clone has no bytes behind its end
			t.Fatalf("%d bytes: %+v", n, d)
		}
	}
	p := newPlace(t)
	data[len(data)/2] ^= 4
	write(t, p.stateFile(), data)
	s := p.openAny()
	p.keptAside(p.stateFile(), "damaged", data)
	same(t, s.Pools(), nil)
}

func FuzzDecode(f *testing.F) {
	data := lived(f)
	f.Add(data)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := decode(data)
		if err != nil {
			return
		}
		again := must.Get(d.encode())(t)
		back := must.Get(decode(again))(t)
		a, _ := json.Marshal(d)
		b, _ := json.Marshal(back)
		expect.True(t, bytes.Equal(a, b), a, b)
	})
}

// A failed change is neither in memory nor in the file, nor found by the next enforcer, at whichever step it failed.
func TestFailedWriteLeavesNoRecord(t *testing.T) {
	for name, fail := range map[string]func(s *Store, p *place) (heal func()){
		"it cannot be written": func(_ *Store, p *place) (heal func()) {
			obstacle := p.stateFile() + ".new"
			must.Do(t, os.MkdirAll(filepath.Join(obstacle, "x"), 0o700))
			return func() { must.Do(t, os.RemoveAll(obstacle)) }
		},
		"it cannot be synced": func(s *Store, _ *place) (heal func()) {
			s.state.disk.SyncDir = func(string) error { return syscall.EIO }
			return func() { s.state.disk = durable.Host() }
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			s := p.open()
			must.Do(t, s.PutPool(examplePool("p")))
			cost := map[string]uint64{"NVIDIA H100": 500 << 20}
			must.Do(t, s.PutContext("NVIDIA H100", cost["NVIDIA H100"]))
			heal := fail(s, p)
			for _, err := range []error{s.PutPool(examplePool("new")), s.DeletePool("p"), s.PutContext("NVIDIA H100", 1)} {
				must.True(t, err != nil, "the disk took it")
			}
			if _, failures, err := s.Progress(); failures != 3 || err == nil {
				t.Error(failures, err)
			}
			same(t, s.Pools(), []Pool{examplePool("p")})
			d := must.Get(decode(read(t, p.stateFile())))(t)
			same(t, d, document{map[string]Pool{"p": examplePool("p")}, cost})
			heal()
			must.Do(t, s.PutSlice(example("a", 1))) // in the other file
			if _, _, err := s.Progress(); err == nil {
				t.Error("the failure of the disk is no longer reported")
			}
			must.Do(t, s.Close())
			s = p.open()
			same(t, s.Pools(), []Pool{examplePool("p")})
			same(t, s.Contexts(), cost)
			must.Do(t, s.PutPool(examplePool("new")))
			same(t, s.Pools(), []Pool{examplePool("new"), examplePool("p")})
		})
	}
}

// The next write repairs a file that could be neither synced nor put back.
func TestFailedRollbackIsRepaired(t *testing.T) {
	p := newPlace(t)
	s := p.open()
	must.Do(t, s.PutPool(examplePool("p")))
	obstacle := p.stateFile() + ".new"
	s.state.disk.SyncDir = func(string) error {
		must.Do(t, os.MkdirAll(filepath.Join(obstacle, "x"), 0o700))
		return syscall.EIO
	}
	expect.ErrorIs(t, s.PutPool(examplePool("new")), syscall.EIO)
	must.Do(t, os.RemoveAll(obstacle))
	s.state.disk = durable.Host()
	must.Do(t, s.Close())
	same(t, p.open().Pools(), []Pool{examplePool("p")})
}
