// SPDX-License-Identifier: Apache-2.0

package truth

import "time"

// To list a device's processes takes the kernel time for each of them: 5 ms of CPU for 100 (NVML of driver 580 on an H100). How
// much of its memory is in use it says in 8 µs. If that is what it was, and what all lanes hold is, nobody has come, gone, charged
// or given back by a lane, and what any process got otherwise another one gave back to the byte. A process that gives back past
// its lane could, so they are listed now and then in any case.

// Totals are known of a device without its processes.
type Totals struct {
	Used  uint64 // bytes of its memory that are in use
	Lanes uint64 // a digest of what all lanes hold there, and of how often each was changed
}

// Idle is how things stood when a device's processes were listed. The zero value is of a device that was never.
type Idle struct {
	at     time.Time
	totals Totals
	quiet  bool
}

// Listed is of a list that was asked for at one time, with the totals before and after it. open says that another
// one may find something else though no total changes.
func Listed(at time.Time, before, after Totals, open bool) Idle {
	return Idle{at, after, before == after && !open}
}

// Stands says whether the list is as good as one of now; not for longer than limit.
func (i Idle) Stands(at time.Time, now Totals, limit time.Duration) bool {
	return i.quiet && i.totals == now && at.Sub(i.at) < limit
}
