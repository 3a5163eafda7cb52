// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"go.etcd.io/bbolt"
)

func read(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	check(t, err)
	return b
}

func write1(t testing.TB, path string, data []byte) {
	t.Helper()
	check(t, os.WriteFile(path, data, 0o600))
}

// lived is a file with a past: branch pages, values that overflow a page, free pages, and what is in it.
func lived(t testing.TB, slices int) ([]byte, []Slice) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "slices.db")
	s := mustOpen(t, path)
	for i := range slices {
		slice := example(fmt.Sprintf("slice-%03d", i), uint64(i))
		if i%9 == 1 {
			slice.Dir = strings.Repeat("long/", 1500)
		}
		check(t, s.PutSlice(slice))
	}
	for i := range slices / 3 {
		check(t, s.DeleteSlice(fmt.Sprintf("slice-%03d", i*2), uint64(i*2)))
	}
	check(t, s.PutContext("NVIDIA H100", 500<<20))
	_, err := s.NextGeneration()
	check(t, err)
	want, err := s.Slices()
	check(t, err)
	check(t, s.Close())
	return read(t, path), want
}

func aside(t testing.TB, path, kind string) []string {
	t.Helper()
	files, err := filepath.Glob(path + "." + kind + "-*")
	check(t, err)
	return files
}

func TestADamagedFileIsReportedAndKept(t *testing.T) {
	healthy, _ := lived(t, 12)
	for name, data := range map[string][]byte{
		"empty":                    {},
		"text":                     []byte("this is not a database"),
		"zeros":                    make([]byte, len(healthy)),
		"truncated":                healthy[:len(healthy)/2],
		"the first page only":      healthy[:4096],
		"older meta page gone bad": flipped(healthy, 8*(0*4096+16+40)),
		"newer meta page gone bad": flipped(healthy, 8*(1*4096+16+40)),
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "slices.db")
			write1(t, path, data)
			s, report, err := Open(path)
			check(t, err)
			defer s.Close()
			kept := aside(t, path, "damaged")
			if len(kept) != 1 || !reflect.DeepEqual(read(t, kept[0]), data) {
				t.Fatalf("the file was not kept as it was: %q", kept)
			}
			if !strings.Contains(report, kept[0]) || strings.Contains(report, "\n") {
				t.Errorf("the report is not one sentence that names the file: %q", report)
			}
			check(t, s.PutSlice(example("a", 1)))
		})
	}
}

func TestANewerFileIsReportedAndKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "slices.db")
	s := mustOpen(t, path)
	check(t, s.write(func(tx *bbolt.Tx) error {
		if _, err := tx.CreateBucket([]byte("phases")); err != nil { // as the next version would
			return err
		}
		return putAbout(tx, keySchema, Schema+1)
	}))
	check(t, s.Close())
	s, report, err := Open(path)
	check(t, err)
	defer s.Close()
	if kept := aside(t, path, "newer"); len(kept) != 1 || !strings.Contains(report, "newer version") {
		t.Errorf("kept %q, reported %q", kept, report)
	}
}

func TestFilesSetAsideInOneSecondDoNotReplaceEachOther(t *testing.T) {
	path := filepath.Join(t.TempDir(), "slices.db")
	for i := range 3 {
		write1(t, path, []byte{byte(i)})
		s, _, err := Open(path)
		check(t, err)
		check(t, s.Close())
	}
	if kept := aside(t, path, "damaged"); len(kept) != 3 {
		t.Errorf("kept %q, want three", kept)
	}
}

func TestWhatIsNoFileIsLeftAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "slices.db")
	check(t, os.Mkdir(path, 0o700))
	if _, _, err := Open(path); err == nil {
		t.Error("a directory was opened")
	}
	if _, err := os.Stat(path); err != nil {
		t.Error("the directory is gone")
	}
}

func flipped(data []byte, bit int) []byte {
	data = append([]byte(nil), data...)
	data[bit/8] ^= 1 << (bit % 8)
	return data
}

// opensWhole opens data and makes sure that it is either refused, or as good as what was written: nothing is lost
// in silence, nothing crashes, and what was taken as healthy can be worked on.
func opensWhole(t *testing.T, path string, data []byte, want []Slice) (refused bool) {
	t.Helper()
	if verify(data) != nil {
		return true
	}
	write1(t, path, data)
	s, report, err := Open(path)
	check(t, err)
	defer s.Close()
	if report != "" {
		t.Fatalf("verify and Open disagree: %s", report)
	}
	got, err := s.Slices()
	check(t, err)
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%d slices without a report, %d were written", len(got), len(want))
	}
	contexts, err := s.Contexts()
	check(t, err)
	if contexts["NVIDIA H100"] != 500<<20 || s.next < 2 {
		t.Fatalf("contexts %v, next generation %d", contexts, s.next)
	}
	for i := range 3 { // so that freed pages come into use
		check(t, s.PutSlice(example(fmt.Sprint("more-", i), 1)))
		check(t, s.DeleteSlice(fmt.Sprint("more-", i), 1))
	}
	return false
}

func TestNoFlippedBitLosesASliceInSilence(t *testing.T) {
	data, want := lived(t, 16)
	path := filepath.Join(t.TempDir(), "slices.db")
	if opensWhole(t, path, data, want) {
		t.Fatalf("a healthy file is refused: %v", verify(data))
	}
	random := rand.New(rand.NewPCG(1, 2))
	bits := make(map[int]bool)
	for page := 0; page < len(data); page += os.Getpagesize() {
		for bit := range 8 * 24 { // headers of pages and of their first entries: all of them
			bits[8*page+bit] = true
		}
		for range 20 { // and of what follows, some
			bits[8*page+random.IntN(8*os.Getpagesize())] = true
		}
	}
	free := freePages(t, data)
	refused, opened := 0, 0
	for bit := range bits {
		if bit >= 8*len(data) {
			continue
		}
		damaged := flipped(data, bit)
		if verify(damaged) != nil {
			refused++
			continue
		}
		// The many that hit free space are equal to one another: look into some of them. The others, in the pages of trees: into all.
		page := bit / 8 / os.Getpagesize()
		if opened++; opened%500 == 0 || page > 1 && !free[page] && bit/8%os.Getpagesize() < 128 {
			opensWhole(t, path, damaged, want)
		}
	}
	t.Logf("%d bits: %d refused, %d harmless", len(bits), refused, opened)
	if refused == 0 || opened == 0 {
		t.Error("the test does not hit what it means to")
	}
}

// freePages are those in the newest freelist, and those that were never used.
func freePages(t *testing.T, data []byte) map[int]bool {
	t.Helper()
	newest, err := readMeta(data, 0, 0)
	check(t, err)
	second, err := readMeta(data, newest.size, 1)
	check(t, err)
	if second.transaction > newest.transaction {
		newest = second
	}
	free := make(map[int]bool)
	list := data[newest.freelist*newest.size:]
	for i := range native.Uint16(list[10:]) {
		free[int(native.Uint64(list[pageHeader+8*int(i):]))] = true
	}
	for page := newest.pages; page < uint64(len(data))/newest.size; page++ {
		free[int(page)] = true
	}
	return free
}

func FuzzOpen(f *testing.F) {
	data, want := lived(f, 20)
	f.Add(uint32(0), uint64(0), uint32(len(data)))
	f.Add(uint32(4096+16+16), uint64(3), uint32(len(data)))
	f.Add(uint32(0), uint64(1), uint32(8192))
	f.Fuzz(func(t *testing.T, at uint32, xor uint64, size uint32) {
		damaged := append([]byte(nil), data[:min(int(size), len(data))]...)
		for i := range 8 {
			if j := int(at) + i; j < len(damaged) {
				damaged[j] ^= byte(xor >> (8 * i))
			}
		}
		opensWhole(t, filepath.Join(t.TempDir(), "slices.db"), damaged, want)
	})
}

func FuzzVerify(f *testing.F) {
	data, _ := lived(f, 2)
	f.Add(data)
	f.Add([]byte{})
	f.Fuzz(func(_ *testing.T, data []byte) { _ = verify(data) })
}
