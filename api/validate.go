// SPDX-License-Identifier: Apache-2.0

package api

import (
	"net/netip"
	"slices"
	"strings"
)

// MaxQuotas bounds the quotas of one request; a host has fewer devices.
const MaxQuotas = 64

// Validate checks what does not depend on the host; the enforcer checks devices and the process. Its error is an *Error with
// CodeBadRequest.
func (r *RegisterRequest) Validate() error {
	if err := CheckID(r.ID); err != nil {
		return err
	}
	if r.Tenant != "" {
		if err := CheckTenant(r.Tenant); err != nil {
			return err
		}
	}
	if err := r.Pools.validate(); err != nil {
		return err
	}
	if len(r.Pools) > 0 && r.Mode == Record {
		return Errorf(CodeBadRequest, "a slice that only records cannot be in pool %s, because it could use up the other members' quota: leave one of them out", r.Pools)
	}
	if r.Elastic && len(r.Pools) > 0 {
		return Errorf(CodeBadRequest, "a slice in pool %s is elastic if the pool is: leave elastic out", r.Pools)
	}
	if err := r.CheckElastic(); err != nil {
		return err
	}
	if err := checkTTL(r.TTL); err != nil {
		return err
	}
	switch {
	case r.Mode != "" && r.Mode != Enforce && r.Mode != Record:
		return Errorf(CodeBadRequest, "mode %.64q is not known: %q and %q are accepted", string(r.Mode), Enforce, Record)
	case r.PID <= 0:
		return Errorf(CodeBadRequest, "pid %d is not valid: give the container's init, or the session's first process", r.PID)
	case r.For != nil && (r.Session || r.Container != ""):
		return Errorf(CodeBadRequest, "slice %s is for uid %d: its processes are those of its cgroup, neither a session's nor a container's", r.ID, r.For.UID)
	case r.For != nil && r.For.Remote != "" && !isRemote(r.For.Remote):
		return Errorf(CodeBadRequest, "remote %.64q is not an address and a port", r.For.Remote)
	case r.Session && r.Container != "":
		return Errorf(CodeBadRequest, "a slice is of a session or of container %.64q, not of both", r.Container)
	case len(r.Container) > 255 || strings.ContainsFunc(r.Container, func(c rune) bool { return c < ' ' || c == 0x7f }):
		return Errorf(CodeBadRequest, "container %.64q is not an id", r.Container)
	}
	if err := validateVisible(r.Visible); err != nil {
		return err
	}
	if err := r.checkNames(); err != nil {
		return err
	}
	if (len(r.Pools) > 0 || r.Mode == Record) && len(r.Quotas) == 0 {
		return nil
	}
	return validateQuotas(r.Quotas)
}

func checkPriority(elastic bool, priority int) error {
	switch {
	case priority < MinPriority || priority > MaxPriority:
		return Errorf(CodeBadRequest, "priority %d is not accepted: %d to %d are", priority, MinPriority, MaxPriority)
	case !elastic && priority != 0:
		return Errorf(CodeBadRequest, "priority %d is given for a slice or pool that is not elastic: it sets the order of eviction of elastic ones only", priority)
	}
	return nil
}

// CheckElastic returns an *Error with CodeBadRequest if the slice cannot be elastic.
func (r *RegisterRequest) CheckElastic() error {
	if err := checkPriority(r.Elastic, r.Priority); err != nil {
		return err
	}
	switch {
	case r.Elastic && r.Mode == Record:
		return Errorf(CodeBadRequest, "a slice that only records cannot be elastic: no other slice depends on its memory")
	case r.Elastic && r.For != nil:
		return Errorf(CodeBadRequest, "a lease cannot be elastic: its broker holds what was leased")
	}
	return nil
}

func isRemote(address string) bool {
	at, err := netip.ParseAddrPort(address)
	return err == nil && len(at.Addr().Zone()) <= 16
}

func (n PoolNames) validate() error {
	if len(n) > MaxPoolsOfSlice {
		return Errorf(CodeBadRequest, "there are %d pools: up to %d are accepted", len(n), MaxPoolsOfSlice)
	}
	for i, name := range n {
		if err := CheckPoolName(name); err != nil {
			return err
		}
		if slices.Contains(n[:i], name) {
			return Errorf(CodeBadRequest, "pool %s is named twice: name it once", name)
		}
	}
	return nil
}

func validateVisible(names []string) error {
	if len(names) > MaxVisible {
		return Errorf(CodeBadRequest, "there are %d visible devices: up to %d are accepted", len(names), MaxVisible)
	}
	for _, name := range names {
		_, device := DeviceName(name)
		if _, minor := ParseMinor(name); !device && !minor {
			return Errorf(CodeBadRequest, "visible device %.80q: a UUID, an index or %q is accepted", name, minorPrefix+"N")
		}
	}
	return nil
}

func validateQuotas(quotas []Quota) error {
	if len(quotas) == 0 || len(quotas) > MaxQuotas {
		return Errorf(CodeBadRequest, "there are %d quotas: 1 to %d are accepted", len(quotas), MaxQuotas)
	}
	seen := make(map[string]bool, len(quotas))
	for _, q := range quotas {
		switch {
		case q.Device == "" || len(q.Device) > 64:
			return Errorf(CodeBadRequest, "quota on device %.80q: a UUID, an index or %q is accepted", q.Device, AllDevices)
		case seen[q.Device]:
			return Errorf(CodeBadRequest, "device %s has two quotas: one is accepted", q.Device)
		case (q.Bytes == 0) == (q.Percent == 0):
			return Errorf(CodeBadRequest, "the quota on device %s has %d bytes and %d percent: exactly one of them is accepted", q.Device, q.Bytes, q.Percent)
		case q.Bytes > MaxSize:
			return Errorf(CodeBadRequest, "the quota on device %s is too large: up to %d bytes are accepted", q.Device, uint64(MaxSize))
		case q.Percent > 100:
			return Errorf(CodeBadRequest, "the quota on device %s is %d percent: 1 to 100 are accepted", q.Device, q.Percent)
		}
		seen[q.Device] = true
	}
	return nil
}

// Status returns the HTTP status of the code.
func (c Code) Status() int {
	switch c {
	case CodeBadRequest, CodeNoDevice:
		return 400
	case CodeForbidden:
		return 403
	case CodeNotFound:
		return 404
	case CodeMethod:
		return 405
	case CodeExists, CodeRunning, CodeExpired, CodeQuotaExceeded:
		return 409
	case CodeTooLarge:
		return 413
	case CodeBusy:
		return 503
	}
	return 500
}

// Codes returns all codes.
func Codes() []Code {
	return []Code{
		CodeBadRequest, CodeNotFound, CodeMethod, CodeExists, CodeRunning, CodeQuotaExceeded, CodeTooLarge, CodeNoDevice, CodeExpired, CodeForbidden, CodeBusy, CodeStorage, CodeInternal,
	}
}
