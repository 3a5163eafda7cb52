//go:build faults

// SPDX-License-Identifier: Apache-2.0

package faults

import "fmt"

// limitsDiffer compares what the driver holds the containers' cgroups to with the model: their quotas if the enforcer
// has it enforce, and else nothing.
func (w *world) limitsDiffer() error {
	for _, s := range w.slices {
		if s.session || s.state == spoilt || s.state == closed {
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
			if got := w.looker.ask("limit %d %s", device, s.cgroup); got != want {
				return fmt.Errorf("the driver holds the cgroup of %s to %q on device %d, the model to %q", s.id, got, device, want)
			}
		}
	}
	return nil
}
