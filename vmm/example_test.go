// SPDX-License-Identifier: Apache-2.0

package vmm_test

import (
	"errors"
	"fmt"
	"log"

	"github.com/gpuslice/gpuslice/vmm"
)

const (
	mib = 1 << 20
	gib = 1 << 30
)

// A pool of 128 GiB of addresses, more than the card's memory. Only mapped pages take memory.
func ExampleDevice_NewPool() {
	gpu, err := vmm.Open(0)
	if err != nil {
		log.Fatal(err)
	}
	defer gpu.Close()

	pool, err := gpu.NewPool(128*gib, vmm.Options{PageSize: 2 * mib})
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()

	address, err := pool.Map(64*gib, gib)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("at its offset:", address == pool.Base()+64*gib)
	fmt.Println("pages:", pool.Stats().MappedPages)

	if err := pool.Unmap(64*gib, gib); err != nil {
		log.Fatal(err)
	}
	fmt.Println("pages:", pool.Stats().MappedPages)
	// Output:
	// at its offset: true
	// pages: 512
	// pages: 0
}

// Two models, each with addresses for 32 GiB, share 32 GiB of memory.
func ExampleDevice_NewShared() {
	gpu, err := vmm.Open(0)
	if err != nil {
		log.Fatal(err)
	}
	defer gpu.Close()

	shared, err := gpu.NewShared(32*gib, vmm.Options{PageSize: 32 * mib})
	if err != nil {
		log.Fatal(err)
	}
	defer shared.Close()
	for _, model := range []string{"llama", "mistral"} {
		if err := shared.Register(model, 32*gib); err != nil {
			log.Fatal(err)
		}
	}

	if _, err := shared.Map("llama", 0, 24*gib); err != nil {
		log.Fatal(err)
	}
	_, err = shared.Map("mistral", 0, 16*gib)
	var memory *vmm.MemoryError
	if errors.As(err, &memory) {
		fmt.Printf("%d GiB requested, %d of %d are used\n", memory.Requested/gib, memory.Current/gib, memory.Limit/gib)
	}

	// Unmapping memory of one model makes room for the other.
	if err := shared.Unmap("llama", 8*gib, 16*gib); err != nil {
		log.Fatal(err)
	}
	if _, err := shared.Map("mistral", 0, 16*gib); err != nil {
		log.Fatal(err)
	}
	stats, err := shared.Stats()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("llama:", stats.Models["llama"].MappedBytes/gib, "GiB, mistral:", stats.Models["mistral"].MappedBytes/gib, "GiB")
	// Output:
	// 16 GiB requested, 24 of 32 are used
	// llama: 8 GiB, mistral: 16 GiB
}
