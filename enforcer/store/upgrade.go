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
	"os"
	"path/filepath"

	"go.etcd.io/bbolt"
)

// Before there were two files all was in one, bbolt in the state directory, schema 1:
//
//	about     schema, generation, sum
//	slices    by id, and released by generation: Slice, with "boot_id"
//	pools     by name: Pool and PoolState, with "boot_id"
//	contexts  by model: uint64, of which driver is not known
//
// with a CRC-32C of bucket, key and value behind each value, and the exclusive-or of checksums of all entries in sum.

// formerName is that file, and formerKept what it is called once it was taken over: an enforcer of the version before finds its
// pools again if it is renamed back.
const (
	formerName = "gpuslice.db"
	formerKept = formerName + ".schema-1"
)

type former struct {
	slices []Slice
	pools  []Pool
	states map[string]PoolState
}

// upgrade takes over the former file, if there is one: then the enforcer before this one was of the version before, and
// what both files of this one have is older. The former file goes last, so that this begins again if it was not finished.
func (s *Store) upgrade(o Options) error {
	path := filepath.Join(o.StateDir, formerName)
	if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	f, err := readFormer(path, o.Boot)
	if errors.Is(err, errUnusable) {
		return setAside(o, path, err)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	err = s.run.Update(func(tx *bbolt.Tx) error {
		for _, name := range [][]byte{bucketSlices, bucketPools} {
			if err := tx.DeleteBucket(name); err != nil {
				return err
			}
			if _, err := tx.CreateBucket(name); err != nil {
				return err
			}
		}
		for _, slice := range f.slices {
			value, err := json.Marshal(slice)
			if err == nil {
				err = putRecord(tx, slice.Generation, value)
			}
			if err != nil {
				return err
			}
		}
		for name, p := range f.states {
			value, err := json.Marshal(p)
			if err == nil {
				err = tx.Bucket(bucketPools).Put([]byte(name), value)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	err = s.state.change(func(d *document) {
		clear(d.Pools)
		for _, p := range f.pools {
			d.Pools[p.Name] = p
		}
	})
	if err != nil {
		return err
	}
	if err := errors.Join(o.disk.Rename(path, filepath.Join(o.StateDir, formerKept)), o.disk.SyncDir(o.StateDir)); err != nil {
		return err
	}
	o.Log.Info("the state of the version before was taken over", "file", path, "kept", formerKept, "slices", len(f.slices), "pools", len(f.pools))
	return nil
}

func readFormer(path, boot string) (f former, err error) {
	err = whole(func() error {
		db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: LockPatience, ReadOnly: true})
		if err != nil {
			return openError(err)
		}
		err = db.View(func(tx *bbolt.Tx) error { return f.read(tx, boot) })
		if err = errors.Join(err, db.Close()); err != nil {
			return fmt.Errorf("%w: %w", errUnusable, err)
		}
		return nil
	})
	return f, err
}

func (f *former) read(tx *bbolt.Tx, boot string) error {
	f.states = make(map[string]PoolState)
	var count, sum uint64
	each := func(bucket string, take func(key string, value []byte) error) error {
		b := tx.Bucket([]byte(bucket))
		if b == nil {
			return fmt.Errorf("it has no bucket %q", bucket)
		}
		return b.ForEach(func(key, sealed []byte) error {
			value, err := unseal(bucket, key, sealed)
			if err != nil {
				return err
			}
			if bucket != "about" {
				h := crc64.Update(0, ecma, []byte(bucket))
				h = crc64.Update(h, ecma, key)
				count, sum = count+1, sum^crc64.Update(h, ecma, sealed)
			}
			return take(string(key), value)
		})
	}
	slice := func(released bool) func(string, []byte) error {
		return func(_ string, value []byte) error {
			r := struct {
				Slice
				BootID string `json:"boot_id"`
			}{}
			if err := json.Unmarshal(value, &r); err != nil {
				return err
			}
			if r.Released = released; r.BootID == boot {
				f.slices = append(f.slices, r.Slice)
			}
			return nil
		}
	}
	pool := func(_ string, value []byte) error {
		r := struct {
			Pool
			PoolState
			BootID string `json:"boot_id"`
		}{}
		if err := json.Unmarshal(value, &r); err != nil {
			return err
		}
		f.pools = append(f.pools, r.Pool)
		if r.BootID == boot {
			f.states[r.Name] = r.PoolState
		}
		return nil
	}
	about := make(map[string][]byte)
	err := errors.Join(
		each("slices", slice(false)), each("released", slice(true)), each("pools", pool),
		each("contexts", func(string, []byte) error { return nil }), // they are learned again
		each("about", func(key string, value []byte) error { about[key] = value; return nil }),
	)
	if err != nil {
		return err
	}
	if schema := binary.BigEndian.AppendUint64(nil, 1); !bytes.Equal(about["schema"], schema) {
		return fmt.Errorf("its schema is %x", about["schema"])
	}
	if written := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, count), sum); !bytes.Equal(about["sum"], written) {
		return fmt.Errorf("it has %d entries with another checksum than those that were written", count)
	}
	return nil
}

var ecma = crc64.MakeTable(crc64.ECMA)

// unseal checks and removes the checksum of a value of the former file.
func unseal(bucket string, key, sealed []byte) ([]byte, error) {
	n := len(sealed) - 4
	if n < 0 {
		return nil, fmt.Errorf("%s/%.80q: the value is too short", bucket, key)
	}
	sum := crc32.Update(0, castagnoli, []byte(bucket))
	sum = crc32.Update(sum, castagnoli, []byte{0})
	sum = crc32.Update(sum, castagnoli, key)
	sum = crc32.Update(sum, castagnoli, []byte{0})
	if crc32.Update(sum, castagnoli, sealed[:n]) != binary.BigEndian.Uint32(sealed[n:]) {
		return nil, fmt.Errorf("%s/%.80q: the value does not match its checksum", bucket, key)
	}
	return sealed[:n], nil
}
