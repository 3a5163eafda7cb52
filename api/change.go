// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// What a slice's time may be: at least a second, since no clock of a person is finer, and at most what
// added to any clock stays far from its end.
const (
	MinTTL = time.Second
	MaxTTL = 100 * 365 * 24 * time.Hour
)

// ChangeRequest is what is to be different about a slice that runs. What it does not name stays as it is.
type ChangeRequest struct {
	// Quotas each go in place of the slice's quota on the same device: AllDevices in place of the one that the slice has
	// on all. A device that had none of its own has one from then on.
	Quotas []Quota `json:"quotas,omitempty"`
	// Drop are devices on which the slice's own quota goes: that on AllDevices counts there from then on.
	Drop []string `json:"drop,omitempty"`
	// TTL is how long the slice lives from now, in nanoseconds; 0 is for ever.
	TTL *time.Duration `json:"ttl,omitempty"`
}

// Validate says what is wrong with a request that could be wrong on any host. Its error is an *Error with CodeBadRequest.
func (r *ChangeRequest) Validate() error {
	if len(r.Quotas)+len(r.Drop) == 0 && r.TTL == nil {
		return Errorf(CodeBadRequest, "the request changes nothing: quotas, drop and ttl are accepted")
	}
	if len(r.Drop) > MaxQuotas {
		return Errorf(CodeBadRequest, "there are %d quotas to drop: up to %d are accepted", len(r.Drop), MaxQuotas)
	}
	for _, device := range r.Drop {
		if device == "" || device == AllDevices || len(device) > 64 {
			return Errorf(CodeBadRequest, "drop the quota on device %.80q: a UUID or an index is accepted", device)
		}
	}
	if r.TTL != nil {
		if err := checkTTL(*r.TTL); err != nil {
			return err
		}
	}
	if len(r.Quotas) == 0 {
		return nil
	}
	return validateQuotas(r.Quotas)
}

// RenewRequest says how long a slice lives from now.
type RenewRequest struct {
	TTL *time.Duration `json:"ttl"` // in nanoseconds; 0 is for ever, and nil is an oversight
}

// Validate says what is wrong with a request that could be wrong on any host. Its error is an *Error with CodeBadRequest.
func (r *RenewRequest) Validate() error {
	if r.TTL == nil {
		return Errorf(CodeBadRequest, "the request says no ttl: a duration in nanoseconds is accepted, or 0 for ever")
	}
	return checkTTL(*r.TTL)
}

// checkTTL accepts 0, which is for ever.
func checkTTL(ttl time.Duration) error {
	if ttl != 0 && (ttl < MinTTL || ttl > MaxTTL) {
		return Errorf(CodeBadRequest, "ttl %s is not accepted: %s up to %s is, and 0 for ever", ttl, MinTTL, FormatTTL(MaxTTL))
	}
	return nil
}

// ParseDuration is time.ParseDuration for people, who count in days, too: "7d", "1d12h". A day has 24 hours.
func ParseDuration(s string) (time.Duration, error) {
	days, rest, found := strings.Cut(s, "d")
	if !found {
		return time.ParseDuration(s)
	}
	n, err := strconv.ParseUint(days, 10, 16)
	if err != nil || strings.HasPrefix(rest, "-") || strings.HasPrefix(rest, "+") {
		return 0, fmt.Errorf("%q is not a duration", s)
	}
	var more time.Duration
	if rest != "" {
		if more, err = time.ParseDuration(rest); err != nil {
			return 0, err
		}
	}
	return time.Duration(n)*24*time.Hour + more, nil
}

// ParseTTL reads what a person writes for how long a slice lives: a duration, or "never" or 0 for one that does not end.
func ParseTTL(s string) (time.Duration, error) {
	if s == "never" || s == "0" {
		return 0, nil
	}
	ttl, err := ParseDuration(s)
	if err != nil || ttl < MinTTL || ttl > MaxTTL {
		return 0, Errorf(CodeBadRequest, `%.80q is not a time to live: a duration from %s to %s, such as "90s", "30m", "12h" or "7d", is accepted, and "never" or 0`,
			s, FormatTTL(MinTTL), FormatTTL(MaxTTL))
	}
	return ttl, nil
}

// FormatTTL writes a duration for people, to the second, without units that are zero at its end ("1h30m", "45s").
func FormatTTL(d time.Duration) string {
	seconds := int64(d.Round(time.Second) / time.Second)
	if seconds <= 0 {
		return "0s"
	}
	text := ""
	for _, unit := range []struct {
		seconds int64
		name    string
	}{{3600, "h"}, {60, "m"}, {1, "s"}} {
		if n := seconds / unit.seconds; n > 0 {
			text += fmt.Sprint(n, unit.name)
			seconds %= unit.seconds
		}
	}
	return text
}
