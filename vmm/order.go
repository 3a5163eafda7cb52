// SPDX-License-Identifier: Apache-2.0

package vmm

// order is a list of pages in the order in which they came, from which any can be taken out. Pages are numbered from 1 on in it, so
// that fresh memory is an empty list and costs nothing until it is used; 0 is the list's head.
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

// oldest is the page that came first; there has to be one.
func (o *order) oldest() int { return int(o.after[0]) - 1 }
