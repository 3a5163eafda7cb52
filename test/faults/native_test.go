//go:build faults

// SPDX-License-Identifier: Apache-2.0

package faults

import "fmt"

// limitsDiffer compares the driver's limits on the containers' cgroups with the model: their quotas if the driver enforces, else
// none.
func (w *world) limitsDiffer() error {
	for _, s := range w.slices {
		if s.session || s.state == damaged || s.state == closed {
			continue
		}
		for device := range devices {
			want := "none"
			switch {
			case !w.native:
			case s.state == released:
				want = "ok 0"
			case s.elastic:
				want = fmt.Sprint("ok ", s.pool.limit)
			default:
				want = fmt.Sprint("ok ", s.limit)
			}
			if got := w.observer.ask("limit %d %s", device, s.cgroup); got != want {
				return fmt.Errorf("the driver holds the cgroup of %s to %q on device %d, the model to %q", s.id, got, device, want)
			}
		}
	}
	return nil
}
