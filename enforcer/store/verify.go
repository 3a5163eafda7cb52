// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"
	"slices"
)

// verify reads a whole file and finds out whether it can be worked on. It returns nil, or what is wrong, which is
// errNewer if the file is of a later version.
//
// It goes through the bytes itself, since bbolt trusts its file: a flipped bit in a page makes it panic in a goroutine
// of its own, walk in a circle until memory ends, or fault beyond the end of its mapping; and of a
// damaged newest meta page it falls back to the older one, which silently takes back the last commit.
func verify(data []byte) error {
	tree, err := readPages(data)
	if err != nil {
		return err
	}
	about := tree.buckets[string(bucketAbout)]
	schema, err := decodeNumber(bucketAbout, string(keySchema), about[string(keySchema)])
	if err != nil {
		return err
	}
	if schema > Schema {
		return fmt.Errorf("%w (schema %d, this one knows %d)", errNewer, schema, Schema)
	}
	return verifyEntries(tree.buckets)
}

func verifyEntries(buckets map[string]map[string][]byte) error {
	for name := range buckets {
		if !slices.ContainsFunc(allBuckets, func(b []byte) bool { return string(b) == name }) {
			return fmt.Errorf("it has an unknown bucket %.80q", name)
		}
	}
	about := buckets[string(bucketAbout)]
	if _, err := decodeNumber(bucketAbout, string(keyGeneration), about[string(keyGeneration)]); err != nil {
		return err
	}
	var found sum
	for _, bucket := range [][]byte{bucketSlices, bucketReleased} {
		for key, value := range buckets[string(bucket)] {
			if _, err := decodeSlice(bucket, key, value); err != nil {
				return err
			}
			found.add(bucket, key, value, 1)
		}
	}
	for name, value := range buckets[string(bucketPools)] {
		if _, err := decodePool(name, value); err != nil {
			return err
		}
		found.add(bucketPools, name, value, 1)
	}
	for model, value := range buckets[string(bucketContexts)] {
		if _, err := decodeNumber(bucketContexts, model, value); err != nil {
			return err
		}
		found.add(bucketContexts, model, value, 1)
	}
	written, err := decodeNumbers(bucketAbout, string(keySum), about[string(keySum)], 2)
	if err != nil {
		return err
	}
	if found != (sum{written[0], written[1]}) {
		return fmt.Errorf("it has %d entries with another checksum than the %d that were written", found.count, written[0])
	}
	for _, name := range allBuckets {
		if buckets[string(name)] == nil {
			return fmt.Errorf("it has no bucket %q", name)
		}
	}
	return nil
}

var errPage = errors.New("its pages are damaged")

func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errPage, fmt.Sprintf(format, args...))
}
