// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"time"
)

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

func (a *Audit) check() error {
	switch {
	case a.File != "" && !isPath(a.File):
		return fmt.Errorf("audit.file = %q: an absolute path is accepted, and \"\" for none", a.File)
	case a.MaxSize < smallestAudit:
		return fmt.Errorf("audit.max_size = %q: \"64KiB\" and more are accepted", a.MaxSize)
	case a.MaxAge < Duration(time.Minute):
		return fmt.Errorf("audit.max_age = %q: \"1m\" and more are accepted", time.Duration(a.MaxAge))
	case a.Keep < 0 || a.Keep > largestKeep:
		return fmt.Errorf("audit.keep = %d: 0 to %d are accepted", a.Keep, largestKeep)
	}
	return nil
}
