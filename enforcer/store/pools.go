// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/json"
	"fmt"
	"time"

	"go.etcd.io/bbolt"

	"github.com/gpuslice/gpuslice/enforcer/api"
)

// Pool is what a restarted enforcer needs to find a pool's ledger again. Of another boot, its name, quotas and time count.
type Pool struct {
	Name    string      `json:"name"`
	Quotas  []api.Quota `json:"quotas"`
	Created time.Time   `json:"created"`
	Limits  []Limit     `json:"limits"` // the devices of the ledger, in its order

	BootID      string   `json:"boot_id"`
	LedgerName  [16]byte `json:"ledger_name"`
	LedgerDev   uint64   `json:"ledger_dev"`
	LedgerInode uint64   `json:"ledger_inode"`
}

// PutPool writes a pool, in place of one of the same name.
func (s *Store) PutPool(pool Pool) error {
	b, err := json.Marshal(pool)
	if err != nil {
		return fmt.Errorf("encode pool %s: %w", pool.Name, err)
	}
	value := seal(bucketPools, pool.Name, b)
	if err := s.write(func(tx *bbolt.Tx) error { return put(tx, bucketPools, pool.Name, value) }); err != nil {
		return fmt.Errorf("store pool %s: %w", pool.Name, err)
	}
	return nil
}

// DeletePool forgets a pool. It is not an error if there is none.
func (s *Store) DeletePool(name string) error {
	if err := s.write(func(tx *bbolt.Tx) error { return remove(tx, bucketPools, name) }); err != nil {
		return fmt.Errorf("delete pool %s from the store: %w", name, err)
	}
	return nil
}

// Pools returns all pools, ordered by name.
func (s *Store) Pools() ([]Pool, error) {
	var pools []Pool
	err := s.db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketPools).ForEach(func(key, value []byte) error {
			pool, err := decodePool(string(key), value)
			if err != nil {
				return err
			}
			pools = append(pools, pool)
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("read the stored pools: %w", err)
	}
	return pools, nil
}

func decodePool(key string, value []byte) (Pool, error) {
	b, err := open(bucketPools, key, value)
	if err != nil {
		return Pool{}, err
	}
	var pool Pool
	if err := json.Unmarshal(b, &pool); err != nil {
		return Pool{}, fmt.Errorf("%s/%.80q: %w", bucketPools, key, err)
	}
	if pool.Name != key {
		return Pool{}, fmt.Errorf("%s/%.80q: the record is of pool %.80q", bucketPools, key, pool.Name)
	}
	return pool, nil
}
