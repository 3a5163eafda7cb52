// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// MinTTL and MaxTTL bound a time to live. MaxTTL is small enough to be added to any clock without overflow.
const (
	MinTTL = time.Second
	MaxTTL = 100 * 365 * 24 * time.Hour
)

// ChangeRequest changes an active slice. Fields that are not set keep their values.
type ChangeRequest struct {
	// Quotas replace the slice's quotas on the same devices, or on AllDevices. On a device without its own quota they add one.
	Quotas []Quota `json:"quotas,omitempty"`
	// Drop removes the slice's own quotas on these devices, where the quota on AllDevices then applies.
	Drop []string `json:"drop,omitempty"`
	// TTL is the time to live from now, in nanoseconds; 0 is unlimited.
	TTL *time.Duration `json:"ttl,omitempty"`
}

// Validate checks what does not depend on the host. Its error is an *Error with CodeBadRequest.
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

// RenewRequest sets a slice's time to live, counted from now.
type RenewRequest struct {
	TTL *time.Duration `json:"ttl"` // in nanoseconds; 0 is unlimited, nil is an error
}

// Validate returns an *Error with CodeBadRequest if TTL is missing or out of range.
func (r *RenewRequest) Validate() error {
	if r.TTL == nil {
		return Errorf(CodeBadRequest, "the request has no ttl: give a duration in nanoseconds, or 0 for no end")
	}
	return checkTTL(*r.TTL)
}

func checkTTL(ttl time.Duration) error {
	if ttl != 0 && (ttl < MinTTL || ttl > MaxTTL) {
		return Errorf(CodeBadRequest, "ttl %s is not accepted: %s up to %s is, and 0 for no end", ttl, MinTTL, FormatTTL(MaxTTL))
	}
	return nil
}

// ParseDuration parses a duration as time.ParseDuration does, and days of 24 hours, too: "7d", "1d12h".
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

// ParseTTL parses a time to live: a duration from MinTTL to MaxTTL, or "never" or "0", for which it returns 0.
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

// FormatTTL formats a duration, rounded to seconds, without trailing zero units ("1h30m", "45s").
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
