// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/test/simulated"
)

func TestMain(m *testing.M) { os.Exit(simulated.Run(m, "../..")) }

func open(t testing.TB) *Device {
	t.Helper()
	d, err := Open(0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func TestErrorsNameFunctionAndResult(t *testing.T) {
	d := open(t)
	err := d.Unmap(Range{Start: 1 << 21, Size: 1 << 21})
	var called *Error
	if !errors.As(err, &called) || called.Function != "cuMemUnmap" || called.Result != 1 {
		t.Fatal(err)
	}
	if text := err.Error(); !strings.HasPrefix(text, "cuMemUnmap: CUDA_ERROR_INVALID_VALUE (") {
		t.Error(text)
	}
	if text := Result(987654).Error(); !strings.Contains(text, "987654") {
		t.Error(text)
	}
}

func TestDevicesAreDescribed(t *testing.T) {
	n, err := Count()
	if err != nil || n < 1 {
		t.Fatal(n, err)
	}
	d := open(t)
	name, err := d.Name()
	if err != nil || name == "" {
		t.Error(name, err)
	}
	if has, err := d.HasVirtualMemory(); err != nil || !has {
		t.Error(has, err)
	}
	minimum, recommended, err := d.Granularity()
	if err != nil || minimum == 0 || recommended%minimum != 0 {
		t.Error(minimum, recommended, err)
	}
}

func TestCreateMakesAsManyAsThereIsRoomFor(t *testing.T) {
	d := open(t)
	free, _, err := d.MemoryInfo()
	if err != nil {
		t.Fatal(err)
	}
	const size = 1 << 30
	// In a slice on a card, the context's memory is charged in the first seconds.
	changes := os.Getenv(simulated.OnCard) != ""
	handles := make([]Handle, free/size+3)
	made, err := d.Create(handles, size)
	if made != int(free/size) && !changes || !errors.Is(err, OutOfMemory) {
		t.Errorf("made %d of %d bytes free: %v", made, free, err)
	}
	if released, err := d.Release(handles[:made]); released != made || err != nil {
		t.Error(released, err)
	}
	if now, _, err := d.MemoryInfo(); now != free && !changes || err != nil {
		t.Error(now, free, err)
	}
	// The rest is released although one handle is unknown.
	if made, err = d.Create(handles[1:3], size); made != 2 || err != nil {
		t.Fatal(made, err)
	}
	handles[0] = 0
	if released, err := d.Release(handles[:3]); released != 2 || err == nil {
		t.Error(released, err)
	}
	if now, _, err := d.MemoryInfo(); now != free && !changes || err != nil {
		t.Error(now, free, err)
	}
}

func TestMapIsWholeOrNothing(t *testing.T) {
	d := open(t)
	piece, _, err := d.Granularity()
	if err != nil {
		t.Fatal(err)
	}
	space, err := d.Reserve(8 * piece)
	if err != nil {
		t.Fatal(err)
	}
	handles := make([]Handle, 4)
	if _, err := d.Create(handles, piece); err != nil {
		t.Fatal(err)
	}
	at := func(i uint64) Address { return space.Start + Address(i*piece) }
	if err := d.Map(Range{at(2), piece}, handles[:1], ReadWrite); err != nil {
		t.Fatal(err)
	}
	var called *Error
	if err := d.Map(Range{at(0), 3 * piece}, handles[1:], ReadWrite); !errors.As(err, &called) || called.Function != "cuMemMap" {
		t.Error(err)
	}
	// Only leftovers of the failed call could make this one fail.
	if err := d.Map(Range{at(0), 2 * piece}, handles[1:3], ReadOnly); err != nil {
		t.Error(err)
	}
	if err := d.Write(at(0), []byte{1}); err == nil {
		t.Error("memory was written that is open for reading only")
	}
	if err := d.SetAccess(Range{at(0), piece}, ReadWrite); err != nil {
		t.Error(err)
	}
	if err := d.Write(at(0), []byte{1}); err != nil {
		t.Error(err)
	}
	for _, r := range []Range{{at(4), 3 * piece}, {at(4), 0}} {
		if err := d.Map(r, handles[:2], ReadWrite); err == nil {
			t.Errorf("%d bytes were mapped in two pieces", r.Size)
		}
	}
	if err := d.Map(Range{at(4), piece}, nil, ReadWrite); err == nil {
		t.Error("nothing was mapped")
	}
	if err := errors.Join(d.Unmap(Range{at(0), 3 * piece}), d.Free(space)); err != nil {
		t.Error(err)
	}
	if _, err := d.Release(handles); err != nil {
		t.Error(err)
	}
}

func TestWithoutADriverTheErrorSaysSo(t *testing.T) {
	const inside = "GPUSLICE_TEST_INSIDE"
	if os.Getenv(inside) == "" {
		cmd := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), inside+"=1", simulated.OnCard+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	if _, err := Open(0); err == nil {
		t.Skip("requires a machine without a driver")
	} else if !errors.Is(err, ErrNoDriver) || !strings.Contains(err.Error(), "libcuda.so.1") {
		t.Error(err)
	}
}

// Physical memory mapped twice: two addresses show the same bytes.
func ExampleDevice_Map() {
	gpu, err := Open(0)
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	must(err)
	defer gpu.Close()
	size, _, err := gpu.Granularity()
	must(err)

	memory := make([]Handle, 1)
	_, err = gpu.Create(memory, size)
	must(err)
	both, err := gpu.Reserve(2 * size)
	must(err)
	first, second := Range{both.Start, size}, Range{both.Start + Address(size), size}
	must(gpu.Map(first, memory, ReadWrite))
	must(gpu.Map(second, memory, ReadOnly))
	fmt.Println(second.Start-first.Start == Address(size))

	must(gpu.Unmap(both))
	_, err = gpu.Release(memory)
	must(err)
	must(gpu.Free(both))
	// Output: true
}
