// SPDX-License-Identifier: Apache-2.0

package config

import (
	"math"
	"path"
	"time"

	"github.com/gpuslice/gpuslice/api"
)

// Elastic is the section [elastic]: moves between devices and host memory.
type Elastic struct {
	// Overcommit is how many times each byte of a device may be promised to elastic slices, to thousandths; 1 to MostOvercommit.
	Overcommit  float64       `toml:"overcommit"`
	Remap       bool          `toml:"remap"` // processes move their own memory where possible
	MinResident time.Duration `toml:"min_resident"`
	Quantum     time.Duration `toml:"quantum"`
	Patience    time.Duration `toml:"patience"`     // end a slice that its processes keep on a device for longer while others wait; 0 is never
	MaxPriority int           `toml:"max_priority"` // for containers and users' sessions
	// HostCgroup is the cgroup charged for the host memory of processes that move their own memory, relative to the root of its
	// hierarchy; "" is each process's own.
	HostCgroup string `toml:"host_cgroup"`
	HostMemory Bytes  `toml:"host_memory"` // for evicted slices, and kept for later evictions; 0 is unlimited
}

func defaultElastic() Elastic {
	return Elastic{Overcommit: 4, Remap: true, MinResident: 2 * time.Second, Quantum: 30 * time.Second, Patience: 5 * time.Minute}
}

// Thousandths returns the overcommit in thousandths.
func (e *Elastic) Thousandths() uint64 { return uint64(math.Round(e.Overcommit * 1000)) }

func (e *Elastic) check(f *faults) {
	// The form of the condition also rejects NaN.
	f.unless(e.Overcommit >= 1 && e.Overcommit <= MostOvercommit, "elastic.overcommit", e.Overcommit, "1.0 to %d.0 are accepted", MostOvercommit)
	f.unless(e.MinResident >= 0 && e.MinResident <= time.Hour, "elastic.min_resident", e.MinResident, "0s to 1h are accepted")
	f.unless((e.Quantum >= e.MinResident || f.bad["elastic.min_resident"]) && e.Quantum <= 24*time.Hour, "elastic.quantum", e.Quantum, "min_resident (%s) to 24h are accepted", e.MinResident)
	f.unless(e.Patience >= 0 && e.Patience <= 24*time.Hour, "elastic.patience", e.Patience, "0s to 24h are accepted")
	f.unless(e.MaxPriority >= api.MinPriority && e.MaxPriority <= api.MaxPriority, "elastic.max_priority", e.MaxPriority,
		"%d to %d are accepted", api.MinPriority, api.MaxPriority)
	if e.HostCgroup != "" {
		isBelow := isPath(e.HostCgroup) && path.Clean(e.HostCgroup) == e.HostCgroup && e.HostCgroup != "/" && len(e.HostCgroup) <= 255
		f.unless(isBelow, "elastic.host_cgroup", e.HostCgroup, `a path below the root of the cgroups such as "/gpuslice-host" is accepted, or ""`)
		f.unless(e.Remap, "elastic.host_cgroup", e.HostCgroup, "that is for remap = true")
	}
}
