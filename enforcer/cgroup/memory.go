// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

// Short is a cgroup with too little memory left below its limit. Sizes are in bytes.
type Short struct {
	Dir         string
	Limit, Left uint64
	Need        uint64
}

// memoryFiles names the memory controller's files for the limit and the charged bytes, and the field of memory.stat for bytes that are
// reclaimed before the kernel kills a process.
type memoryFiles struct{ limit, current, reclaimable string }

var (
	memoryV2 = memoryFiles{"memory.max", "memory.current", "inactive_file"}
	memoryV1 = memoryFiles{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"}
)

// MemoryShort returns the first cgroup, from below, without room for the given additional bytes of each process, or nil if all have room. The
// additional bytes of other processes (beside) count in the cgroups that they share with these. Inactive file cache counts as room.
func (h *Host) MemoryShort(needs, beside map[int]uint64) (*Short, error) {
	of, files := h.controllers["memory"], memoryV1
	if of == nil {
		of, files = h.unified, memoryV2
	}
	if of == nil {
		return nil, nil
	}
	sums := make(map[string]uint64)
	for pid, bytes := range needs {
		m, err := h.Membership(pid)
		if err != nil {
			return nil, err
		}
		m.Each(func(mount, rel string) {
			if mount == of.mount {
				sums[rel] += bytes
			}
		})
	}
	for pid, bytes := range beside {
		m, err := h.Membership(pid)
		if err != nil {
			continue // it has ended
		}
		m.Each(func(mount, rel string) {
			if _, shared := sums[rel]; shared && mount == of.mount {
				sums[rel] += bytes
			}
		})
	}
	all := make([]string, 0, len(sums))
	for rel := range sums {
		all = append(all, rel)
	}
	slices.SortFunc(all, func(a, b string) int { return len(b) - len(a) })
	for _, rel := range all {
		short, err := files.short(filepath.Join(of.mount, rel), sums[rel])
		if short != nil || err != nil {
			return short, err
		}
	}
	return nil, nil
}

// short returns nil if the cgroup has no limit or enough room.
func (f memoryFiles) short(dir string, need uint64) (*Short, error) {
	limit, known, err := figure(filepath.Join(dir, f.limit))
	if err != nil || !known {
		return nil, err
	}
	current, _, err := figure(filepath.Join(dir, f.current))
	if err != nil {
		return nil, err
	}
	stat, err := os.ReadFile(filepath.Join(dir, "memory.stat"))
	if err != nil && !isGone(err) {
		return nil, err
	}
	for line := range bytes.Lines(stat) {
		name, value, _ := bytes.Cut(bytes.TrimSpace(line), []byte(" "))
		if n, err := strconv.ParseUint(string(value), 10, 64); err == nil && string(name) == f.reclaimable {
			current -= min(current, n)
		}
	}
	left := limit - min(limit, current)
	if need <= left {
		return nil, nil
	}
	return &Short{Dir: dir, Limit: limit, Left: left, Need: need}, nil
}

// figure reads a number from a file. known is false if the file does not exist, as in the root, or has no number, as "max".
func figure(path string) (n uint64, known bool, err error) {
	text, err := os.ReadFile(path)
	if isGone(err) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("cannot read the memory of a cgroup: %w", err)
	}
	n, err = strconv.ParseUint(string(bytes.TrimSpace(text)), 10, 64)
	return n, err == nil, nil
}
