// SPDX-License-Identifier: Apache-2.0

// Package annotations turns a container's annotations into what its slice asks for.
//
// It owns the user's contract (docs/use/annotations.md) and nothing else: it does no I/O, and knows neither
// devices nor other slices. Whatever begins with "gpuslice." and is not understood is refused, because
// a misspelt quota must never mean no quota. Values come from whoever may start a container, so they are
// quoted and cut short wherever they are shown.
package annotations

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gpuslice/gpuslice/enforcer/api"
	"github.com/gpuslice/gpuslice/enforcer/config"
)

// The annotations of the contract.
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

// ErrMissing says that a container names no quota and the operator has set none for such containers.
var ErrMissing = errors.New(`no quota: add the annotation ` + VRAM + `, such as ` + VRAM + `=4G`)

// Policy is what the operator decided for containers that name no quota.
type Policy struct {
	DefaultVRAM string // a size for them; "" is none
	Pass        bool   // without any annotation of ours they run outside gpuslice
	Record      bool   // what they hold is counted, and nothing is refused to them
	AllowEnv    bool   // the variable Env may ask for less than DefaultVRAM
}

// PolicyOf is the policy of a configuration: the runtime's and the hook's must be one.
func PolicyOf(c config.Runtime) Policy {
	return Policy{DefaultVRAM: c.DefaultVRAM, Pass: c.Missing == config.MissingPass, Record: c.Missing == config.MissingRecord, AllowEnv: c.AllowEnv}
}

// Request is what a container asks for.
type Request struct {
	Quotas []api.Quota
	Mode   api.Mode
	Pools  api.PoolNames
	Tenant string
	TTL    time.Duration

	Elastic  bool
	Priority int
}

// Parse reads the annotations of ours among all, and the variable Env in the environment of the container's process, if the
// policy has it so. A nil Request without an error means that the container is none of our business: it has no
// annotation of ours, and the policy lets it pass.
func Parse(all map[string]string, env []string, policy Policy) (*Request, error) {
	keys := ours(all)
	if len(keys) == 0 && policy.DefaultVRAM == "" && policy.Pass {
		return nil, nil
	}
	r, err := read(all, keys)
	if err != nil {
		return nil, err
	}
	// The pool's quota may be all that counts; who only records needs none.
	if len(r.Quotas) > 0 || len(r.Pools) > 0 || r.Mode == api.Record {
		return r, nil
	}
	if _, said := all[Mode]; policy.Record && policy.DefaultVRAM == "" && !said {
		r.Mode = api.Record
		return r, nil
	}
	q, err := policy.quota(env)
	if err != nil {
		return nil, err
	}
	r.Quotas = []api.Quota{q}
	return r, nil
}

// Grant is what root has given a container by the command line of its hook, as the CDI specification of a resource claim does. It is a
// quota: neither annotations nor the operator's policy are needed, and no variable is read.
type Grant struct {
	Pools  api.PoolNames
	Tenant string // "" is that of the pools
}

// ParseGranted reads the annotations of a container that has a grant. They may ask for less, which holds beside it: a quota of the
// container's own, or an earlier end.
func ParseGranted(all map[string]string, g Grant) (*Request, error) {
	r, err := read(all, ours(all))
	if err != nil {
		return nil, err
	}
	refuse := func(key string) (*Request, error) {
		return nil, fmt.Errorf("annotation %s=%s is not accepted beside a resource claim, which puts the container into pool %s: leave it out (%s and %s may ask for less)",
			key, shown(all[key]), g.Pools, VRAM, TTL)
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
	r.Pools, r.Tenant = g.Pools, g.Tenant
	return r, nil
}

func read(all map[string]string, keys []string) (*Request, error) {
	r := &Request{Mode: api.Enforce}
	for _, key := range keys {
		if err := r.set(key, all[key]); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// ours are the keys that claim to be gpuslice's, in a fixed order so that the same mistake always gives
// the same sentence. Letter case is ignored here, and only here: "GPUSlice.vram" is a misspelt quota.
func ours(all map[string]string) []string {
	var keys []string
	for key := range all {
		if len(key) >= len(Prefix) && strings.EqualFold(key[:len(Prefix)], Prefix) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

func (r *Request) set(key, value string) (err error) {
	switch key {
	case VRAM:
		return r.add(key, api.AllDevices, value)
	case Pool:
		var pool string
		if pool, err = name(key, value); err == nil {
			r.Pools = api.PoolNames{pool}
		}
	case Tenant:
		r.Tenant, err = name(key, value)
	case TTL:
		r.TTL, err = api.ParseDuration(value)
		if err != nil || r.TTL < api.MinTTL || r.TTL > api.MaxTTL {
			return refused(key, value, fmt.Sprintf(`a duration from %s to %s, such as "90s", "30m", "12h" or "7d"`,
				api.FormatTTL(api.MinTTL), api.FormatTTL(api.MaxTTL)))
		}
	case Elastic:
		r.Elastic = value == "true"
		if !r.Elastic && value != "false" {
			return refused(key, value, `"true" and "false"`)
		}
	case Priority:
		r.Priority, err = strconv.Atoi(value)
		if err != nil || r.Priority < api.MinPriority || r.Priority > api.MaxPriority {
			return refused(key, value, fmt.Sprintf("a number from %d to %d", api.MinPriority, api.MaxPriority))
		}
	case Mode:
		r.Mode = api.Mode(value)
		if r.Mode != api.Enforce && r.Mode != api.Record {
			return refused(key, value, `"enforce" and "record"`)
		}
	default:
		device, ok := strings.CutPrefix(key, VRAM+".")
		if !ok {
			return fmt.Errorf("annotation %s is unknown: %s, %s.<GPU uuid or index>, %s, %s, %s, %s, %s and %s are accepted",
				shown(key), VRAM, VRAM, Pool, Tenant, TTL, Mode, Elastic, Priority)
		}
		if device, ok = api.DeviceName(device); !ok {
			return fmt.Errorf("annotation %s names no device: an index such as %s.0, or a UUID as nvidia-smi -L shows it, is accepted",
				shown(key), VRAM)
		}
		return r.add(key, device, value)
	}
	return err
}

// add appends the quota of one device. Two annotations can name one device, since the letters of a UUID may be
// written large or small; an index and a UUID that are one device are found by the enforcer, which knows them.
func (r *Request) add(key, device, value string) error {
	for _, q := range r.Quotas {
		if q.Device == device {
			return fmt.Errorf("annotation %s=%s names device %s a second time: one quota for each device is accepted",
				shown(key), shown(value), device)
		}
	}
	q, err := quota(device, value)
	if err != nil && value != "" && len(value) <= 7 && strings.Trim(value, "0123456789") == "" && strings.Trim(value, "0") != "" {
		return refused(key, value, "a size with its unit, such as \""+value+"m\" or \""+value+"b\" for bytes,", err)
	}
	if err != nil {
		return refused(key, value, acceptedSize, err)
	}
	r.Quotas = append(r.Quotas, q)
	return nil
}

func quota(device, value string) (api.Quota, error) {
	bytes, percent, err := api.ParseQuota(value)
	return api.Quota{Device: device, Bytes: bytes, Percent: percent}, err
}

// name reads a pool's or a tenant's name. They become labels and file names, so little is accepted.
func name(key, value string) (string, error) {
	ok := value != "" && len(value) <= 63
	for i := range len(value) {
		c := value[i]
		alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		ok = ok && (alnum || i > 0 && strings.IndexByte("_-.", c) >= 0)
	}
	if !ok {
		return "", refused(key, value, acceptedName)
	}
	return value, nil
}

// refused is the sentence for a bad value. A cause is added only for errors.Is: its text, about a size
// without its annotation, would say the same again.
func refused(key, value, accepted string, cause ...error) error {
	return &refusal{fmt.Sprintf("annotation %s=%s is not accepted: %s is", shown(key), shown(value), accepted), errors.Join(cause...)}
}

type refusal struct {
	sentence string
	cause    error
}

func (r *refusal) Error() string { return r.sentence }
func (r *refusal) Unwrap() error { return r.cause }

// shown quotes what a user wrote, in about 80 bytes and without control characters; what is cut off ends in "…".
// A plain key stays as it was written.
func shown(s string) string {
	const most = 80 // of the quoted text: a byte of s takes up to four there
	end := 0
	for end < len(s) {
		_, size := utf8.DecodeRuneInString(s[end:])
		if len(strconv.Quote(s[:end+size])) > most {
			return strconv.Quote(s[:end]) + "…"
		}
		end += size
	}
	if strings.HasPrefix(s, Prefix) && strconv.Quote(s) == `"`+s+`"` {
		return s
	}
	return strconv.Quote(s)
}
