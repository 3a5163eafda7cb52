// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/gpuslice/gpuslice/vmm"
)

// holdAll maps memory through a Shared without a limit.
func holdAll(d *vmm.Device, memory uint64) (err error) {
	const model, step = "model", 64 * mib
	shared, err := d.NewShared(0, vmm.Options{PageSize: page})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, shared.Close()) }()
	if err := shared.Register(model, 1<<40); err != nil {
		return err
	}
	for held := uint64(0); memory == 0 || held < memory; held += step {
		_, err := shared.Map(model, held, step)
		var refused *vmm.MemoryError
		if memory == 0 && errors.As(err, &refused) {
			fmt.Printf("refused: requested %d, limit %d, current %d\n", refused.Requested, refused.Limit, refused.Current)
			break
		}
		if err != nil {
			return err
		}
	}
	stats, err := shared.Stats()
	if err != nil {
		return err
	}
	fmt.Printf("holds %d: limit %d, current %d\n", stats.MappedBytes, stats.Limit, stats.Current)
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}
