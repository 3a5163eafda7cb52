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

// Short is a cgroup whose limit of memory leaves less than is needed. Sizes in bytes.
type Short struct {
	Dir         string
	Limit, Left uint64
	Need        uint64
}

// files of the memory controller that say how much may be charged, how much is, and what of that goes before anything is killed.
type memoryFiles struct{ limit, current, reclaimable string }

var (
	memoryV2 = memoryFiles{"memory.max", "memory.current", "inactive_file"}
	memoryV1 = memoryFiles{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"}
)

// MemoryShort is the first cgroup, from below, that has no room for so many more bytes of memory of each of these processes; nil if all have.
// What is cached of files and was not used of late is room.
func (h *Host) MemoryShort(needs map[int]uint64) (*Short, error) {
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

// short is nil where nothing is limited.
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
	if err != nil && !gone(err) {
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

// figure is a file's number; not known if there is no such file, as in the root, or no number in it, as of "max".
func figure(path string) (n uint64, known bool, err error) {
	text, err := os.ReadFile(path)
	if gone(err) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("memory of a cgroup: %w", err)
	}
	n, err = strconv.ParseUint(string(bytes.TrimSpace(text)), 10, 64)
	return n, err == nil, nil
}
