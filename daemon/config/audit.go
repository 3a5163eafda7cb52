// SPDX-License-Identifier: Apache-2.0

package config

import "time"

// Audit is the section [audit].
type Audit struct {
	File    string   `toml:"file"` // "" disables the audit log
	MaxSize Size     `toml:"max_size"`
	MaxAge  Duration `toml:"max_age"`
	Keep    int      `toml:"keep"`
}

const (
	smallestAudit = 64 << 10
	largestKeep   = 10000
)

func (a *Audit) check(f *faults) {
	f.unless(a.File == "" || isPath(a.File), "audit.file", a.File, `an absolute path is accepted, and "" for none`)
	f.unless(a.MaxSize >= smallestAudit, "audit.max_size", a.MaxSize, `"64KiB" and more are accepted`)
	f.unless(a.MaxAge >= Duration(time.Minute), "audit.max_age", time.Duration(a.MaxAge), `"1m" and more are accepted`)
	f.unless(a.Keep >= 0 && a.Keep <= largestKeep, "audit.keep", a.Keep, "0 to %d are accepted", largestKeep)
}
