// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
)

// bbolt's file format, version 2, which has not changed since 2014; numbers are in the host's order.
//
//	page    id u64, flags u16, count u16, overflow u32, then:
//	meta    magic u32, version u32, page size u32, flags u32, root (bucket), freelist u64, pages u64, transaction u64, FNV-1a u64
//	branch  count × (position u32, key size u32, page u64), keys
//	leaf    count × (flags u32, position u32, key size u32, value size u32), keys and values
//	bucket  root page u64, sequence u64, and if the root is 0 a leaf page without an id
//
// Pages 0 and 1 are metas, written in turn. Every other page below the meta's number of pages is
// part of the tree, or of the freelist, or listed in the freelist: each exactly once.
const (
	pageHeader    = 16
	elementSize   = 16
	metaSize      = 64
	bucketHeader  = 16
	flagBranch    = 0x01
	flagLeaf      = 0x02
	flagMeta      = 0x04
	flagFreelist  = 0x10
	elementBucket = 0x01
	boltMagic     = 0xED0CDAED
	boltVersion   = 2
	noFreelist    = 1<<64 - 1
	manyFree      = 0xFFFF // a count that says: the true one is the first entry
	maxTreeDepth  = 32
)

var native = binary.NativeEndian

// pages is a file that is being read.
type pages struct {
	data    []byte
	size    uint64 // of a page
	count   uint64
	seen    []bool                       // page is accounted for
	buckets map[string]map[string][]byte // what was found
}

type meta struct{ size, root, freelist, pages, transaction uint64 }

// readPages reads the tree of the newest meta page, and makes sure that every page is accounted for.
func readPages(data []byte) (*pages, error) {
	first, err := readMeta(data, 0, 0)
	if err != nil {
		return nil, err
	}
	second, err := readMeta(data, first.size, 1)
	if err != nil {
		return nil, err
	}
	if second.size != first.size {
		return nil, damaged("the meta pages disagree on the page size")
	}
	m := first
	if second.transaction > first.transaction {
		m = second
	}
	if m.pages < 2 || m.pages > uint64(len(data))/m.size {
		return nil, damaged("it has %d bytes, where %d pages of %d are expected", len(data), m.pages, m.size)
	}
	p := &pages{data: data, size: m.size, count: m.pages, seen: make([]bool, m.pages), buckets: make(map[string]map[string][]byte)}
	p.seen[0], p.seen[1] = true, true
	if err := p.tree(m.root, keys{}, 0, p.bucket); err != nil {
		return nil, err
	}
	return p, p.freelist(m.freelist)
}

func readMeta(data []byte, offset, id uint64) (meta, error) {
	if offset+pageHeader+metaSize > uint64(len(data)) {
		return meta{}, damaged("it has %d bytes only", len(data))
	}
	header, b := data[offset:], data[offset+pageHeader:]
	sum := fnv.New64a()
	sum.Write(b[:metaSize-8])
	m := meta{
		size: uint64(native.Uint32(b[8:])), root: native.Uint64(b[16:]),
		freelist: native.Uint64(b[32:]), pages: native.Uint64(b[40:]), transaction: native.Uint64(b[48:]),
	}
	switch {
	case native.Uint32(b) != boltMagic:
		return meta{}, damaged("meta page %d is not one of bbolt", id)
	case native.Uint64(b[56:]) != sum.Sum64():
		return meta{}, damaged("meta page %d does not match its checksum", id)
	case native.Uint32(b[4:]) != boltVersion:
		return meta{}, fmt.Errorf("%w (bbolt file format %d, this one knows %d)", errNewer, native.Uint32(b[4:]), boltVersion)
	case native.Uint64(header) != id || native.Uint16(header[8:]) != flagMeta:
		return meta{}, damaged("page %d is not marked as a meta page", id)
	case m.size < 512 || m.size&(m.size-1) != 0:
		return meta{}, damaged("pages of %d bytes", m.size)
	}
	return m, nil
}

// page returns the bytes of page id with those that it overflows into, and marks them as accounted for.
func (p *pages) page(id uint64) ([]byte, error) {
	if id >= p.count || p.seen[id] {
		return nil, damaged("page %d of %d is used twice or does not exist", id, p.count)
	}
	b := p.data[id*p.size:]
	if native.Uint64(b) != id {
		return nil, damaged("page %d is marked as page %d", id, native.Uint64(b))
	}
	n := 1 + uint64(native.Uint32(b[12:]))
	if n > p.count-id {
		return nil, damaged("page %d goes on for %d pages, of %d", id, n, p.count)
	}
	for i := id; i < id+n; i++ {
		if p.seen[i] {
			return nil, damaged("page %d is used twice", i)
		}
		p.seen[i] = true
	}
	return b[:n*p.size], nil
}

// keys is the range of a page's keys: from low to high, excluded; nil is no bound. low is the page's first key: bbolt finds a page
// in its parent by that when it writes, and would enter it a second time if the two differed.
type keys struct{ low, high []byte }

// hold says whether the range has a key, which is the page's first one or comes after another.
func (k keys) hold(key []byte, first bool) bool {
	if first && k.low != nil && !bytes.Equal(key, k.low) {
		return false
	}
	return len(key) > 0 && (k.low == nil || bytes.Compare(key, k.low) >= 0) && (k.high == nil || bytes.Compare(key, k.high) < 0)
}

type visit func(flags uint32, key, value []byte) error

// tree visits the entries of the tree at page id, whose keys must be in within.
func (p *pages) tree(id uint64, within keys, depth int, each visit) error {
	if depth > maxTreeDepth {
		return damaged("its tree is deeper than %d", maxTreeDepth)
	}
	b, err := p.page(id)
	if err != nil {
		return err
	}
	switch native.Uint16(b[8:]) {
	case flagLeaf:
		return leaf(b, within, each)
	case flagBranch:
		return p.branch(b, within, depth, each)
	}
	return damaged("page %d is neither a branch nor a leaf", id)
}

// elements is how many entries a page has, if their headers fit it.
func elements(b []byte) (int, error) {
	n := int(native.Uint16(b[10:]))
	if pageHeader+n*elementSize > len(b) {
		return 0, damaged("a page of %d bytes has %d entries", len(b), n)
	}
	return n, nil
}

// cut returns size bytes at position, which counts from the element's own header.
func cut(b []byte, element int, position uint32, size uint64) ([]byte, error) {
	start := uint64(element) + uint64(position) // neither sum overflows: all are below 2^33
	if start+size > uint64(len(b)) {
		return nil, damaged("an entry reaches beyond its page")
	}
	return b[start : start+size], nil
}

func leaf(b []byte, within keys, each visit) error {
	n, err := elements(b)
	if err != nil {
		return err
	}
	var last []byte
	for i := range n {
		at := pageHeader + i*elementSize
		position, ksize, vsize := native.Uint32(b[at+4:]), native.Uint32(b[at+8:]), native.Uint32(b[at+12:])
		entry, err := cut(b, at, position, uint64(ksize)+uint64(vsize))
		if err != nil {
			return err
		}
		key, value := entry[:ksize], entry[ksize:]
		if !within.hold(key, i == 0) || bytes.Compare(key, last) <= 0 {
			return damaged("key %.80q is out of order", key)
		}
		last = key
		if err := each(native.Uint32(b[at:]), key, value); err != nil {
			return err
		}
	}
	return nil
}

func (p *pages) branch(b []byte, within keys, depth int, each visit) error {
	n, err := elements(b)
	if err != nil {
		return err
	}
	if n == 0 {
		return damaged("a branch has no children")
	}
	children := make([]keys, n)
	for i := range n {
		at := pageHeader + i*elementSize
		key, err := cut(b, at, native.Uint32(b[at:]), uint64(native.Uint32(b[at+4:])))
		if err != nil {
			return err
		}
		if !within.hold(key, i == 0) || (i > 0 && bytes.Compare(key, children[i-1].low) <= 0) {
			return damaged("branch key %.80q is out of order", key)
		}
		children[i].low, children[i].high = key, within.high
		if i > 0 {
			children[i-1].high = key
		}
	}
	for i, child := range children {
		if err := p.tree(native.Uint64(b[pageHeader+i*elementSize+8:]), child, depth+1, each); err != nil {
			return err
		}
	}
	return nil
}

// bucket reads one of the buckets at the top.
func (p *pages) bucket(flags uint32, name, value []byte) error {
	if flags != elementBucket || len(value) < bucketHeader {
		return damaged("%.80q is not a bucket", name)
	}
	entries := make(map[string][]byte)
	p.buckets[string(name)] = entries
	each := func(flags uint32, key, value []byte) error {
		if flags != 0 {
			return damaged("%.80q in bucket %.80q is not a value", key, name)
		}
		entries[string(key)] = value
		return nil
	}
	if root := native.Uint64(value); root != 0 {
		return p.tree(root, keys{}, 0, each)
	}
	inline := value[bucketHeader:]
	if len(inline) < pageHeader || native.Uint16(inline[8:]) != flagLeaf {
		return damaged("bucket %.80q is not a leaf", name)
	}
	return leaf(inline, keys{}, each)
}

// freelist makes sure that the pages that are in no tree are free, and the others are not.
func (p *pages) freelist(id uint64) error {
	if id == noFreelist {
		return damaged("it has no freelist")
	}
	b, err := p.page(id)
	if err != nil {
		return err
	}
	if native.Uint16(b[8:]) != flagFreelist {
		return damaged("page %d is not a freelist", id)
	}
	n, ids := uint64(native.Uint16(b[10:])), b[pageHeader:]
	if n == manyFree {
		n, ids = native.Uint64(ids), ids[8:]
	}
	if n > uint64(len(ids)/8) {
		return damaged("the freelist of %d pages does not fit its page", n)
	}
	for i := range n {
		free := native.Uint64(ids[8*i:])
		if free >= p.count || p.seen[free] {
			return damaged("page %d is free and used, or does not exist", free)
		}
		p.seen[free] = true
	}
	for id, seen := range p.seen {
		if !seen {
			return damaged("page %d is neither used nor free", id)
		}
	}
	return nil
}
