// SPDX-License-Identifier: Apache-2.0

package truth

import "time"

// Listing a device's processes costs the kernel 5 ms of CPU for 100 processes (NVML of driver 580 on an H100). Reading the device's used
// bytes costs 8 µs. If these and the digest of all lanes are unchanged, no process has come, gone, charged or released by its lane, and any
// other change of one process was matched to the byte by another's. A process that releases past its lane could cause that, so the
// processes are listed from time to time in any case.

// Totals are the figures of a device that need no list of processes.
type Totals struct {
	Used  uint64 // bytes of memory in use
	Lanes uint64 // digest of the bytes of all lanes, and of the numbers of their changes
}

// Idle is the state of a device when its processes were last listed. The zero value means never.
type Idle struct {
	at     time.Time
	totals Totals
	quiet  bool
}

// Listed records a list that was requested at one time, with the totals before and after it. open means that another list may differ even
// if no total changes.
func Listed(at time.Time, before, after Totals, open bool) Idle {
	return Idle{at, after, before == after && !open}
}

// Stands reports whether the list is still valid, which it is for at most limit.
func (i Idle) Stands(at time.Time, now Totals, limit time.Duration) bool {
	return i.quiet && i.totals == now && at.Sub(i.at) < limit
}
