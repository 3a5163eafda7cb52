// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/crc64"
	"strconv"

	"go.etcd.io/bbolt"
)

var (
	bucketAbout    = []byte("about")
	bucketSlices   = []byte("slices")
	bucketReleased = []byte("released")
	bucketPools    = []byte("pools")
	bucketContexts = []byte("contexts")

	allBuckets = [][]byte{bucketAbout, bucketSlices, bucketReleased, bucketPools, bucketContexts}

	keySchema     = []byte("schema")
	keyGeneration = []byte("generation")
	keySum        = []byte("sum")

	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	ecma       = crc64.MakeTable(crc64.ECMA)
)

var errValue = errors.New("the value does not match its checksum")

// seal appends the checksum of (bucket, key, value) to value.
func seal(bucket []byte, key string, value []byte) []byte {
	return binary.BigEndian.AppendUint32(value, checksum(bucket, key, value))
}

// open checks and removes the checksum.
func open(bucket []byte, key string, sealed []byte) ([]byte, error) {
	n := len(sealed) - 4
	if n < 0 || binary.BigEndian.Uint32(sealed[n:]) != checksum(bucket, key, sealed[:n]) {
		return nil, fmt.Errorf("%s/%.80q: %w", bucket, key, errValue)
	}
	return sealed[:n], nil
}

func checksum(bucket []byte, key string, value []byte) uint32 {
	sum := crc32.Update(0, castagnoli, bucket)
	sum = crc32.Update(sum, castagnoli, []byte{0})
	sum = crc32.Update(sum, castagnoli, []byte(key))
	sum = crc32.Update(sum, castagnoli, []byte{0})
	return crc32.Update(sum, castagnoli, value)
}

// keyOf a slice in a bucket. An id has one slice at a time, and any number of former ones.
func keyOf(bucket []byte, slice Slice) string {
	if bytes.Equal(bucket, bucketReleased) {
		return releasedKey(slice.Generation)
	}
	return slice.Request.ID
}

func releasedKey(generation uint64) string { return strconv.FormatUint(generation, 10) }

func encodeSlice(bucket []byte, slice Slice) (key string, value []byte, err error) {
	b, err := json.Marshal(slice)
	if err != nil {
		return "", nil, fmt.Errorf("encode slice %s: %w", slice.Request.ID, err)
	}
	key = keyOf(bucket, slice)
	return key, seal(bucket, key, b), nil
}

func decodeSlice(bucket []byte, key string, value []byte) (Slice, error) {
	b, err := open(bucket, key, value)
	if err != nil {
		return Slice{}, err
	}
	var slice Slice
	if err := json.Unmarshal(b, &slice); err != nil {
		return Slice{}, fmt.Errorf("%s/%.80q: %w", bucket, key, err)
	}
	if got := keyOf(bucket, slice); got != key {
		return Slice{}, fmt.Errorf("%s/%.80q: the record is of slice %.80q", bucket, key, got)
	}
	return slice, nil
}

func encodeNumber(bucket []byte, key string, n ...uint64) []byte {
	var b []byte
	for _, n := range n {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	return seal(bucket, key, b)
}

func decodeNumber(bucket []byte, key string, value []byte) (uint64, error) {
	n, err := decodeNumbers(bucket, key, value, 1)
	if err != nil {
		return 0, err
	}
	return n[0], nil
}

func decodeNumbers(bucket []byte, key string, value []byte, count int) ([]uint64, error) {
	b, err := open(bucket, key, value)
	if err != nil {
		return nil, err
	}
	if len(b) != 8*count {
		return nil, fmt.Errorf("%s/%.80q: %d bytes, where %d are expected", bucket, key, len(b), 8*count)
	}
	numbers := make([]uint64, count)
	for i := range numbers {
		numbers[i] = binary.BigEndian.Uint64(b[8*i:])
	}
	return numbers, nil
}

func putAbout(tx *bbolt.Tx, key []byte, n ...uint64) error {
	return tx.Bucket(bucketAbout).Put(key, encodeNumber(bucketAbout, string(key), n...))
}

// put and remove change an entry of a bucket that the sum covers, and the sum with it. The sum is what finds an
// entry that vanished as a whole: a page whose count of entries lost one is a perfectly good page.
func put(tx *bbolt.Tx, bucket []byte, key string, value []byte) error {
	b := tx.Bucket(bucket)
	if err := addToSum(tx, bucket, key, b.Get([]byte(key)), value); err != nil {
		return err
	}
	return b.Put([]byte(key), value)
}

func remove(tx *bbolt.Tx, bucket []byte, key string) error {
	b := tx.Bucket(bucket)
	if err := addToSum(tx, bucket, key, b.Get([]byte(key)), nil); err != nil {
		return err
	}
	return b.Delete([]byte(key))
}

type sum struct{ count, xor uint64 }

// add counts an entry; nil is none.
func (s *sum) add(bucket []byte, key string, value []byte, by int) {
	if value == nil {
		return
	}
	s.count += uint64(by)
	h := crc64.Update(0, ecma, bucket)
	h = crc64.Update(h, ecma, []byte(key))
	s.xor ^= crc64.Update(h, ecma, value)
}

func addToSum(tx *bbolt.Tx, bucket []byte, key string, before, after []byte) error {
	s, err := readSum(tx)
	if err != nil {
		return err
	}
	s.add(bucket, key, before, -1)
	s.add(bucket, key, after, +1)
	return putAbout(tx, keySum, s.count, s.xor)
}

func readSum(tx *bbolt.Tx) (sum, error) {
	n, err := decodeNumbers(bucketAbout, string(keySum), tx.Bucket(bucketAbout).Get(keySum), 2)
	if err != nil {
		return sum{}, err
	}
	return sum{n[0], n[1]}, nil
}
