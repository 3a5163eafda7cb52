// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// schema1 is a file that an enforcer of the version before has written: slices a and c, b that is released, and pool night of boot
// 5f3c; slice old and pool day of another boot.
func schema1(t *testing.T) []byte {
	t.Helper()
	zipped, err := gzip.NewReader(bytes.NewReader(read(t, filepath.Join("testdata", "schema1.db.gz"))))
	check(t, err)
	data, err := io.ReadAll(zipped)
	check(t, err)
	return data
}

func (p *place) former() string { return filepath.Join(p.StateDir, formerName) }

func TestTheStateOfTheVersionBeforeIsTakenOver(t *testing.T) {
	p := newPlace(t)
	write(t, p.former(), schema1(t))
	for range 2 { // and nothing of it is taken over again
		s := p.open()
		same(t, slicesIn(t, s), []Slice{example("a", 1), example("c", 3)})
		same(t, releasedIn(t, s), []Slice{released(example("b", 2))})
		same(t, s.Pools(), []Pool{examplePool("day"), examplePool("night")})
		states, err := s.PoolStates()
		check(t, err)
		same(t, states, map[string]PoolState{"night": examplePoolState()})
		same(t, s.Contexts(), map[string]uint64{}) // they are learned again
		check(t, s.Close())
	}
	if !bytes.Equal(read(t, filepath.Join(p.StateDir, formerKept)), schema1(t)) {
		t.Error("the file was not kept as it was")
	}
	if _, err := os.Lstat(p.former()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an older enforcer would go on from there: %v", err)
	}
}

// Who went back to the version before and comes again finds what that has left.
func TestWhatTheVersionBeforeLeftReplacesWhatWasThere(t *testing.T) {
	p := newPlace(t)
	s := p.open()
	check(t, s.PutSlice(example("stale", 9)))
	check(t, s.PutPool(examplePool("stale")))
	check(t, s.PutPoolState("stale", examplePoolState()))
	check(t, s.Close())
	write(t, p.former(), schema1(t))
	s = p.open()
	same(t, slicesIn(t, s), []Slice{example("a", 1), example("c", 3)})
	same(t, s.Pools(), []Pool{examplePool("day"), examplePool("night")})
	states, err := s.PoolStates()
	check(t, err)
	same(t, states, map[string]PoolState{"night": examplePoolState()})
}

// An enforcer that is killed before it was done begins again.
func TestATakeoverThatWasNotFinishedBeginsAgain(t *testing.T) {
	p := newPlace(t)
	write(t, p.former(), schema1(t))
	kept := filepath.Join(p.StateDir, formerKept)
	check(t, os.MkdirAll(filepath.Join(kept, "x"), 0o700))
	if _, err := Open(p.Options); err == nil {
		t.Fatal("it goes on, and the next enforcer would take over what is old by then")
	}
	check(t, os.RemoveAll(kept))
	same(t, slicesIn(t, p.open()), []Slice{example("a", 1), example("c", 3)})
}

func TestADamagedStateOfTheVersionBeforeIsReportedAndKept(t *testing.T) {
	healthy := schema1(t)
	value := bytes.Clone(healthy)
	for i := range value {
		if bytes.HasPrefix(value[i:], []byte(`"bytes":4294967296`)) {
			value[i+8] = '5'
		}
	}
	for name, data := range map[string][]byte{
		"text": []byte("this is not a database"), "zeros": make([]byte, len(healthy)), "a value": value,
		"truncated": healthy[:3*os.Getpagesize()], "zeros behind": append(bytes.Clone(healthy[:2*os.Getpagesize()]), make([]byte, len(healthy))...),
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			write(t, p.former(), data)
			s := p.openAny()
			p.keptAside(p.former(), "damaged", data)
			same(t, slicesIn(t, s), nil)
			same(t, s.Pools(), nil)
		})
	}
}
