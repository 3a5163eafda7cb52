// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"time"

	"github.com/gpuslice/gpuslice/api"
)

// Expiry is the section [expiry]: the treatment of expired slices, and the maximum time to live.
type Expiry struct {
	Grace  time.Duration `toml:"grace"`
	MaxTTL TTL           `toml:"max_ttl"`
}

// TTL is a time to live, written as that of a container; "" is 0, no limit.
type TTL time.Duration

// UnmarshalText implements encoding.TextUnmarshaler.
func (t *TTL) UnmarshalText(text []byte) error {
	*t = 0
	if len(text) == 0 {
		return nil
	}
	d, err := api.ParseDuration(string(text))
	if err != nil || d < api.MinTTL || d > api.MaxTTL {
		return fmt.Errorf("%.80q is not a time to live: a duration from %s to %s is accepted, such as \"12h\" or \"7d\", and \"\" for none",
			text, api.FormatTTL(api.MinTTL), api.FormatTTL(api.MaxTTL))
	}
	*t = TTL(d)
	return nil
}

func (e *Expiry) check(f *faults) {
	f.unless(e.Grace >= 100*time.Millisecond && e.Grace <= time.Hour, "expiry.grace", e.Grace, `"100ms" to "1h" are accepted`)
}
