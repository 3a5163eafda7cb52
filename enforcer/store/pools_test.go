// SPDX-License-Identifier: Apache-2.0

package store

import (
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/gpuslice/gpuslice/enforcer/api"
)

func examplePool(name string) Pool {
	return Pool{
		Name: name, Quotas: []api.Quota{{Device: api.AllDevices, Percent: 50}, {Device: "GPU-1", Bytes: 4 << 30}},
		Created: time.Date(2024, 5, 17, 12, 0, 0, 123, time.UTC), Limits: []Limit{{Device: "GPU-1", Bytes: 4 << 30, Total: 80 << 30}},
		BootID: "5f3c", LedgerName: [16]byte{1, 2, 255}, LedgerDev: 25, LedgerInode: 1 << 63,
	}
}

func TestPoolsAreThereAfterARestartUntilTheyAreDeleted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "slices.db")
	s := mustOpen(t, path)
	check(t, s.PutPool(examplePool("b")))
	check(t, s.PutPool(examplePool("a")))
	changed := examplePool("b")
	changed.Quotas = changed.Quotas[:1]
	check(t, s.PutPool(changed))
	check(t, s.Close())
	s = mustOpen(t, path)
	if got, err := s.Pools(); err != nil || !reflect.DeepEqual(got, []Pool{examplePool("a"), changed}) {
		t.Fatalf("%+v %v", got, err)
	}
	check(t, s.DeletePool("a"))
	check(t, s.DeletePool("never"))
	check(t, s.Close())
	s = mustOpen(t, path)
	if got, err := s.Pools(); err != nil || !reflect.DeepEqual(got, []Pool{changed}) {
		t.Fatalf("%+v %v", got, err)
	}
}

func TestADamagedPoolIsFound(t *testing.T) {
	for name, change := range map[string]func(tx *bbolt.Tx) error{
		"a bit": func(tx *bbolt.Tx) error {
			value := append([]byte(nil), tx.Bucket(bucketPools).Get([]byte("a"))...)
			value[3] ^= 1
			return tx.Bucket(bucketPools).Put([]byte("a"), value)
		},
		"its name": func(tx *bbolt.Tx) error {
			value := append([]byte(nil), tx.Bucket(bucketPools).Get([]byte("a"))...)
			value = value[:len(value)-4]
			return tx.Bucket(bucketPools).Put([]byte("b"), seal(bucketPools, "b", value))
		},
		"it is gone": func(tx *bbolt.Tx) error { return tx.Bucket(bucketPools).Delete([]byte("a")) },
		"its bucket": func(tx *bbolt.Tx) error { return tx.DeleteBucket(bucketPools) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "slices.db")
			s := mustOpen(t, path)
			check(t, s.PutPool(examplePool("a")))
			check(t, s.write(change))
			check(t, s.Close())
			s, report, err := Open(path)
			check(t, err)
			defer s.Close()
			if !strings.Contains(report, "cannot be used") {
				t.Fatalf("it was used: %q", report)
			}
			if got, err := s.Pools(); err != nil || len(got) > 0 {
				t.Fatal(got, err)
			}
		})
	}
}
