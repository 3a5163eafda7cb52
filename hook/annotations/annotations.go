// SPDX-License-Identifier: Apache-2.0

// Package annotations parses a container's annotations into a request for a slice, as specified in docs/use/annotations.md.
//
// The package does no I/O, and knows neither devices nor other slices. It rejects unknown keys with the prefix "gpuslice.",
// because a misspelt quota must never mean no quota. Users write the values, so messages quote and truncate them.
package annotations

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/daemon/config"
)

// Keys of annotations, and their prefix.
const (
	Prefix = "gpuslice."
	VRAM   = "gpuslice.vram"
	Pool   = "gpuslice.pool"
	Tenant = "gpuslice.tenant"
	TTL    = "gpuslice.ttl"
	Mode   = "gpuslice.mode"

	Elastic  = "gpuslice.elastic"
	Priority = "gpuslice.priority"
)

const (
	acceptedSize = `a size such as "4G" or "4096m", or a share such as "50%"`
	acceptedName = `1 to 63 letters, digits, "_", "-" and ".", beginning with a letter or a digit`
)

// ErrMissing is returned for a container without a quota when the operator has set no default.
var ErrMissing = errors.New("no quota")

// Policy is the operator's configuration for containers without a quota.
type Policy struct {
	DefaultVRAM string // default size; "" for none
	Pass        bool   // containers without our annotations run outside gpuslice
	Record      bool   // memory is accounted, and no limit is enforced
	AllowEnv    bool   // variables may lower DefaultVRAM
}

// PolicyOf returns the policy of a configuration, for both the runtime and the hook.
func PolicyOf(c config.Runtime) Policy {
	return Policy{DefaultVRAM: c.DefaultVRAM, Pass: c.Missing == config.MissingPass, Record: c.Missing == config.MissingRecord, AllowEnv: c.AllowEnv}
}

// Request holds the values that a container requests.
type Request struct {
	Quotas []api.Quota
	Mode   api.Mode
	Pools  api.PoolNames
	Tenant string
	TTL    time.Duration

	ByGrant bool // Pools come from a Grant

	Elastic  bool
	Priority int
}

// Parse parses our annotations among all and, if the policy allows it, our variables in env. It returns nil without an error for
// a container without our annotations that the policy lets pass.
func Parse(all map[string]string, env []string, policy Policy) (*Request, error) {
	keys := ownKeys(all)
	if len(keys) == 0 && policy.DefaultVRAM == "" && policy.Pass {
		return nil, nil
	}
	r, err := read(all, keys)
	if err != nil {
		return nil, err
	}
	// The quota of the pool may be the only one; record mode needs none.
	if len(r.Quotas) > 0 || len(r.Pools) > 0 || r.Mode == api.Record {
		return r, nil
	}
	if _, said := all[Mode]; policy.Record && policy.DefaultVRAM == "" && !said {
		r.Mode = api.Record
		return r, nil
	}
	if err := policy.complete(r, all, env); err != nil {
		return nil, err
	}
	return r, nil
}

// Grant is a quota that root grants by the command line of a container's hook, as a resource claim's CDI specification does. It
// needs no annotations and no policy, and variables are not read.
type Grant struct {
	Pools  api.PoolNames
	Tenant string // "" for the tenant of the pools
}

// ParseGranted parses the annotations of a container with a grant. They can only reduce it, by a smaller quota or an earlier end.
func ParseGranted(all map[string]string, g Grant) (*Request, error) {
	r, err := read(all, ownKeys(all))
	if err != nil {
		return nil, err
	}
	refuse := func(key string) (*Request, error) {
		return nil, fmt.Errorf("annotation %s=%s is not accepted beside a resource claim, which puts the container into pool %s: leave it out (%s and %s may ask for less)",
			key, display(all[key]), g.Pools, VRAM, TTL)
	}
	switch {
	case len(r.Pools) > 0:
		return refuse(Pool)
	case r.Mode != api.Enforce:
		return refuse(Mode)
	case r.Elastic:
		return refuse(Elastic)
	case r.Tenant != "" && r.Tenant != g.Tenant:
		return refuse(Tenant)
	}
	r.Pools, r.ByGrant, r.Tenant = g.Pools, true, g.Tenant
	return r, nil
}

func read(all map[string]string, keys []string) (*Request, error) {
	r := &Request{Mode: api.Enforce}
	for _, key := range keys {
		if err := r.set(entry{key: key, name: key, value: all[key], sizes: acceptedSize}); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// ownKeys returns the keys with our prefix, sorted so that a mistake always gives the same error. It ignores case, since
// "GPUSlice.vram" is a misspelt quota.
func ownKeys(all map[string]string) []string {
	var keys []string
	for key := range all {
		if len(key) >= len(Prefix) && strings.EqualFold(key[:len(Prefix)], Prefix) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// entry is an annotation or the variable that replaces it.
type entry struct {
	key      string // key of the annotation
	name     string // as written
	value    string
	variable bool
	sizes    string // accepted quotas, for messages
}

func (e entry) String() string {
	if e.variable {
		return "variable " + display(e.name)
	}
	return "annotation " + display(e.name)
}

// refused returns the error for an invalid value. The causes are for errors.Is only.
func (e entry) refused(accepted string, cause ...error) error {
	return &refusal{fmt.Sprintf("%v=%s is not accepted: %s is", e, display(e.value), accepted), errors.Join(cause...)}
}

func (r *Request) set(e entry) (err error) {
	switch e.key {
	case VRAM:
		return r.add(e, api.AllDevices)
	case Pool:
		var pool string
		if pool, err = e.asName(); err == nil {
			r.Pools = api.PoolNames{pool}
		}
	case Tenant:
		r.Tenant, err = e.asName()
	case TTL:
		r.TTL, err = api.ParseDuration(e.value)
		if err != nil || r.TTL < api.MinTTL || r.TTL > api.MaxTTL {
			return e.refused(fmt.Sprintf(`a duration from %s to %s, such as "90s", "30m", "12h" or "7d"`,
				api.FormatTTL(api.MinTTL), api.FormatTTL(api.MaxTTL)))
		}
	case Elastic:
		r.Elastic = e.value == "true"
		if !r.Elastic && e.value != "false" {
			return e.refused(`"true" and "false"`)
		}
	case Priority:
		r.Priority, err = strconv.Atoi(e.value)
		if err != nil || r.Priority < api.MinPriority || r.Priority > api.MaxPriority {
			return e.refused(fmt.Sprintf("a number from %d to %d", api.MinPriority, api.MaxPriority))
		}
	case Mode:
		r.Mode = api.Mode(e.value)
		if r.Mode != api.Enforce && r.Mode != api.Record {
			return e.refused(`"enforce" and "record"`)
		}
	default:
		device, ok := strings.CutPrefix(e.key, VRAM+".")
		if !ok {
			return fmt.Errorf("%v is unknown: %s, %s.<GPU uuid or index>, %s, %s, %s, %s, %s and %s are accepted",
				e, VRAM, VRAM, Pool, Tenant, TTL, Mode, Elastic, Priority)
		}
		if device, ok = api.DeviceName(device); !ok {
			example := VRAM + ".0"
			if e.variable {
				example = Env + "_0"
			}
			return fmt.Errorf("%v names no device: an index such as %s, or a UUID as nvidia-smi -L shows it, is accepted", e, example)
		}
		return r.add(e, device)
	}
	return err
}

// add appends the quota of one device. Two keys can name the same device, since case is ignored in a UUID. The enforcer detects
// an index and a UUID of one device.
func (r *Request) add(e entry, device string) error {
	for _, q := range r.Quotas {
		if q.Device == device {
			return fmt.Errorf("%v=%s names device %s a second time: one quota for each device is accepted", e, display(e.value), device)
		}
	}
	q, err := quota(device, e.value)
	if err != nil && !strings.HasPrefix(e.sizes, acceptedShare) && e.value != "" && len(e.value) <= 7 && strings.Trim(e.value, "0123456789") == "" && strings.Trim(e.value, "0") != "" {
		return e.refused("a size with its unit, such as \""+e.value+"m\" or \""+e.value+"b\" for bytes,", err)
	}
	if err != nil {
		return e.refused(e.sizes, err)
	}
	r.Quotas = append(r.Quotas, q)
	return nil
}

func quota(device, value string) (api.Quota, error) {
	bytes, percent, err := api.ParseQuota(value)
	return api.Quota{Device: device, Bytes: bytes, Percent: percent}, err
}

// asName checks the name of a pool or a tenant, which becomes a label and a file name.
func (e entry) asName() (string, error) {
	ok := e.value != "" && len(e.value) <= 63
	for i := range len(e.value) {
		c := e.value[i]
		alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		ok = ok && (alnum || i > 0 && strings.IndexByte("_-.", c) >= 0)
	}
	if !ok {
		return "", e.refused(acceptedName)
	}
	return e.value, nil
}

type refusal struct {
	sentence string
	cause    error
}

func (r *refusal) Error() string { return r.sentence }
func (r *refusal) Unwrap() error { return r.cause }

// display quotes user input and truncates it to about 80 bytes, with "…" at the end. It leaves a plain key unquoted.
func display(s string) string {
	const maxQuoted = 80 // bytes of quoted text; one byte of s takes up to four
	end := 0
	for end < len(s) {
		_, size := utf8.DecodeRuneInString(s[end:])
		if len(strconv.Quote(s[:end+size])) > maxQuoted {
			return strconv.Quote(s[:end]) + "…"
		}
		end += size
	}
	if (strings.HasPrefix(s, Prefix) || strings.HasPrefix(s, envPrefix)) && strconv.Quote(s) == `"`+s+`"` {
		return s
	}
	return strconv.Quote(s)
}
