// SPDX-License-Identifier: Apache-2.0

package vmm

// order is a list of pages in order of insertion, with removal at any position. Pages are numbered from 1 and 0 is the head,
// so that zeroed memory is an empty list and stays untouched until use.
type order struct {
	before, after []int32
}

func newOrder(pages int) *order {
	return &order{before: make([]int32, pages+1), after: make([]int32, pages+1)}
}

func (o *order) push(page int) {
	at, last := int32(page+1), o.before[0]
	o.before[at], o.after[at] = last, 0
	o.after[last], o.before[0] = at, at
}

func (o *order) remove(page int) {
	at := page + 1
	before, after := o.before[at], o.after[at]
	o.after[before], o.before[after] = after, before
}

// oldest returns the page inserted first. The list must not be empty.
func (o *order) oldest() int { return int(o.after[0]) - 1 }
