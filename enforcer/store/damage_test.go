// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/gpuslice/gpuslice/enforcer/durable"
)

func aside(t testing.TB, path, kind string) []string {
	t.Helper()
	files, err := filepath.Glob(path + "." + kind + "-*")
	check(t, err)
	return files
}

// keptAside says that the file was kept as it was, and that the log says where.
func (p *place) keptAside(path, kind string, data []byte) {
	p.t.Helper()
	kept := aside(p.t, path, kind)
	if len(kept) != 1 || !bytes.Equal(read(p.t, kept[0]), data) {
		p.t.Fatalf("the file was not kept as it was: %q", kept)
	}
	if !strings.Contains(p.log.String(), kept[0]) {
		p.t.Errorf("it is not reported: %s", p.log.String())
	}
}

// lived is both files with a past.
func lived(t testing.TB) (run, state []byte) {
	t.Helper()
	p := newPlace(t)
	s := p.open()
	for i := range 12 {
		slice := example(fmt.Sprintf("slice-%03d", i), uint64(i))
		if i%9 == 1 {
			slice.Dir = strings.Repeat("long/", 1500)
		}
		check(t, s.PutSlice(slice))
	}
	for i := range 4 {
		check(t, s.Forget("", uint64(i*2)))
	}
	check(t, s.PutPool(examplePool("p")))
	check(t, s.PutContext("NVIDIA H100", 500<<20))
	check(t, s.Close())
	return read(t, p.runFile()), read(t, p.stateFile())
}

func TestADamagedRunFileIsReportedAndKept(t *testing.T) {
	healthy, _ := lived(t)
	text := bytes.ReplaceAll(healthy, []byte(`{"request"`), []byte(`[["request"`)[:10])
	for name, data := range map[string][]byte{
		"empty":               {},
		"text":                []byte("this is not a database"),
		"zeros":               make([]byte, len(healthy)),
		"zeros behind":        append(bytes.Clone(healthy[:2*os.Getpagesize()]), make([]byte, len(healthy))...),
		"truncated":           healthy[:3*os.Getpagesize()],
		"the first page only": healthy[:os.Getpagesize()],
		"a record":            text,
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			write(t, p.runFile(), data)
			s := p.openAny()
			p.keptAside(p.runFile(), "damaged", data)
			same(t, slicesIn(t, s), nil)
			check(t, s.PutSlice(example("a", 1)))
			check(t, s.Close())
			same(t, slicesIn(t, p.open()), []Slice{example("a", 1)})
		})
	}
}

func TestANewerFileIsReportedAndKept(t *testing.T) {
	p := newPlace(t)
	s := p.open()
	check(t, s.run.Update(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketAbout).Put(keySchema, binary.BigEndian.AppendUint64(nil, runSchema+1))
	}))
	check(t, s.Close())
	run := read(t, p.runFile())
	state := bytes.Replace(read(t, p.stateFile()), []byte("state 2"), []byte("state 3"), 1)
	write(t, p.stateFile(), state)
	p.openAny()
	p.keptAside(p.runFile(), "newer", run)
	p.keptAside(p.stateFile(), "newer", state)
	if !strings.Contains(p.log.String(), "newer version") {
		t.Error(p.log.String())
	}
}

func TestFilesSetAsideInOneSecondDoNotReplaceEachOther(t *testing.T) {
	p := newPlace(t)
	for i := range 3 {
		write(t, p.stateFile(), []byte{byte(i)})
		check(t, p.openAny().Close())
	}
	if kept := aside(t, p.stateFile(), "damaged"); len(kept) != 3 {
		t.Errorf("kept %q, want three", kept)
	}
}

func TestWhatIsNoFileIsLeftAlone(t *testing.T) {
	for _, path := range []func(*place) string{(*place).runFile, (*place).stateFile} {
		p := newPlace(t)
		check(t, os.MkdirAll(path(p), 0o700))
		if _, err := Open(p.Options); err == nil {
			t.Error("a directory was opened")
		}
		if _, err := os.Stat(path(p)); err != nil {
			t.Error("the directory is gone")
		}
	}
	p, other := newPlace(t), newPlace(t)
	check(t, other.open().Close())
	check(t, os.MkdirAll(p.RunDir, 0o700))
	check(t, os.Symlink(other.runFile(), p.runFile()))
	if _, err := Open(p.Options); err == nil {
		t.Error("a link was followed")
	}
}

func TestNoFlippedBitLosesAPoolInSilence(t *testing.T) {
	_, data := lived(t)
	_, err := decode(data)
	check(t, err)
	for bit := range 8 * len(data) {
		damaged := bytes.Clone(data)
		damaged[bit/8] ^= 1 << (bit % 8)
		if d, err := decode(damaged); err == nil {
			t.Fatalf("bit %d: %+v", bit, d)
		}
	}
	for n := range data {
		if d, err := decode(bytes.Clone(data[:n])); err == nil { // a clone has nothing behind its end
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
	_, data := lived(f)
	f.Add(data)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := decode(data)
		if err != nil {
			return
		}
		again, err := d.encode()
		check(t, err)
		back, err := decode(again)
		check(t, err)
		a, _ := json.Marshal(d)
		b, _ := json.Marshal(back)
		if !bytes.Equal(a, b) {
			t.Errorf("%s\n%s", a, b)
		}
	})
}

// A change that failed is in none of memory, the file, and what the next enforcer finds, wherever it failed.
func TestAWriteThatTheDiskRefusedIsNotThere(t *testing.T) {
	for name, fail := range map[string]func(s *Store, p *place) (heal func()){
		"it cannot be written": func(_ *Store, p *place) (heal func()) {
			obstacle := p.stateFile() + ".new"
			check(t, os.MkdirAll(filepath.Join(obstacle, "x"), 0o700))
			return func() { check(t, os.RemoveAll(obstacle)) }
		},
		"it cannot be synced": func(s *Store, _ *place) (heal func()) {
			s.state.disk.SyncDir = func(string) error { return syscall.EIO }
			return func() { s.state.disk = durable.Host() }
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			s := p.open()
			check(t, s.PutPool(examplePool("p")))
			cost := map[string]uint64{"NVIDIA H100": 500 << 20}
			check(t, s.PutContext("NVIDIA H100", cost["NVIDIA H100"]))
			heal := fail(s, p)
			for _, err := range []error{s.PutPool(examplePool("new")), s.DeletePool("p"), s.PutContext("NVIDIA H100", 1)} {
				if err == nil {
					t.Fatal("the disk took it")
				}
			}
			if _, failures, err := s.Progress(); failures != 3 || err == nil {
				t.Error(failures, err)
			}
			same(t, s.Pools(), []Pool{examplePool("p")})
			d, err := decode(read(t, p.stateFile()))
			check(t, err)
			same(t, d, document{map[string]Pool{"p": examplePool("p")}, cost})
			heal()
			check(t, s.PutSlice(example("a", 1))) // the other file
			if _, _, err := s.Progress(); err == nil {
				t.Error("nothing says any more that the disk fails")
			}
			check(t, s.Close())
			s = p.open()
			same(t, s.Pools(), []Pool{examplePool("p")})
			same(t, s.Contexts(), cost)
			check(t, s.PutPool(examplePool("new")))
			same(t, s.Pools(), []Pool{examplePool("new"), examplePool("p")})
		})
	}
}

// What could neither be synced nor put back is put right by whatever is written next.
func TestWhatCouldNotBePutBackIsPutRight(t *testing.T) {
	p := newPlace(t)
	s := p.open()
	check(t, s.PutPool(examplePool("p")))
	obstacle := p.stateFile() + ".new"
	s.state.disk.SyncDir = func(string) error {
		check(t, os.MkdirAll(filepath.Join(obstacle, "x"), 0o700))
		return syscall.EIO
	}
	if err := s.PutPool(examplePool("new")); !errors.Is(err, syscall.EIO) {
		t.Fatal(err)
	}
	check(t, os.RemoveAll(obstacle))
	s.state.disk = durable.Host()
	check(t, s.Close())
	same(t, p.open().Pools(), []Pool{examplePool("p")})
}
