// SPDX-License-Identifier: Apache-2.0

package lease_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/gpuslice/gpuslice/lease"
)

// Two kernels process one buffer in a lease of 64 MiB: 0, 1 and 2 become 10, 12 and 14. See test/lease/examples for a longer
// program.
func Example() {
	ctx := context.Background()
	l, err := host.Acquire(ctx, lease.Request{VRAM: 64 << 20, TTL: 120 * time.Second}) // lease.Acquire uses this host's service
	if err != nil {
		log.Fatal(err)
	}
	defer host.Drop(ctx, l.ID)

	session, err := host.Open(ctx, l)
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close()

	numbers, err := session.Alloc(ctx, 3*4)
	if err != nil {
		log.Fatal(err)
	}
	if err := numbers.Write(ctx, 0, lease.Bytes([]float32{0, 1, 2})); err != nil {
		log.Fatal(err)
	}
	code, err := os.ReadFile("../test/lease/examples/kernels.ptx")
	if err != nil {
		log.Fatal(err)
	}
	kernels, err := session.Load(ctx, code)
	if err != nil {
		log.Fatal(err)
	}

	// Launches do not wait. Sync does, and returns their failures.
	three := lease.Shape{Block: lease.Dim{X: 3}}
	if err := kernels.Launch(ctx, "scale", three, numbers, float32(2), uint32(3)); err != nil {
		log.Fatal(err)
	}
	if err := kernels.Launch(ctx, "bias", three, numbers, float32(10), uint32(3)); err != nil {
		log.Fatal(err)
	}
	if err := session.Sync(ctx); err != nil {
		log.Fatal(err)
	}
	results := make([]float32, 3)
	if err := numbers.Read(ctx, 0, lease.Bytes(results)); err != nil {
		log.Fatal(err)
	}
	for _, number := range results {
		fmt.Println(number)
	}
	// Output:
	// 10
	// 12
	// 14
}

// A refused allocation reports three figures.
func ExampleError() {
	ctx := context.Background()
	l, err := host.Acquire(ctx, lease.Request{VRAM: 64 << 20})
	if err != nil {
		log.Fatal(err)
	}
	defer host.Drop(ctx, l.ID)
	session, err := lease.Open(ctx, l.Address, l.TokenFile)
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close()

	if _, err := session.Alloc(ctx, 48<<20); err != nil {
		log.Fatal(err)
	}
	_, err = session.Alloc(ctx, 32<<20)
	var refused *lease.Error
	if errors.As(err, &refused) && refused.Code == lease.AllocFailed {
		fmt.Printf("%d MiB of %d are taken, and %d more do not fit\n", refused.Current>>20, refused.Limit>>20, refused.Requested>>20)
	}
	// Output: 48 MiB of 64 are taken, and 32 more do not fit
}

// One request with code, buffers and launches. All are freed afterwards.
func ExampleSession_Submit() {
	ctx := context.Background()
	l, err := host.Acquire(ctx, lease.Request{VRAM: 64 << 20})
	if err != nil {
		log.Fatal(err)
	}
	defer host.Drop(ctx, l.ID)
	session, err := lease.Open(ctx, l.Address, l.TokenFile)
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close()

	code, err := os.ReadFile("../test/lease/examples/kernels.ptx")
	if err != nil {
		log.Fatal(err)
	}
	buffers, err := session.Submit(ctx, lease.Submission{
		Image:   code,
		Buffers: []lease.SubmittedBuffer{{Size: 3 * 4, Out: true}},
		Launches: []lease.SubmittedLaunch{{
			Kernel: "bias", Shape: lease.Shape{Block: lease.Dim{X: 3}},
			Arguments: []any{lease.BufferNumber(0), float32(10), uint32(3)},
		}},
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(buffers[0]), "bytes came back")
	// Output: 12 bytes came back
}
