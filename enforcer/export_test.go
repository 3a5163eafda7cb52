// SPDX-License-Identifier: Apache-2.0

package enforcer

import "github.com/gpuslice/gpuslice/enforcer/ledger"

// LeavePlaces makes the slice's ledger look as if all but n of its process slots had been given out.
func (e *Enforcer) LeavePlaces(id string, n int) {
	s := e.find(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next = uint32(ledger.Slots + 1 - n)
}
