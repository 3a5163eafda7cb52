// SPDX-License-Identifier: Apache-2.0

package annotations

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/api"
)

// Variables replace annotations where the engine passes none (Docker before API 1.43). Images set variables too, and config.json
// does not tell them apart, so a variable may only lower the operator's default.
const (
	envPrefix = "GPUSLICE_"
	Env       = "GPUSLICE_VRAM"
)

const (
	acceptedShare = `a share such as "50%"`
	// acceptedBytes replaces acceptedSize if the default is a size, since a share cannot be compared with it.
	acceptedBytes = `a size such as "4G" or "4096m"`
)

// byVariable lists the annotations with a variable: GPUSLICE_TTL replaces gpuslice.ttl. Those of a single device are omitted.
var byVariable = []string{VRAM, Pool, Tenant, TTL, Mode, Elastic, Priority}

// complete applies the operator's default, lowered by the variables, to a request without a quota. An annotation takes precedence
// over its variable.
func (p Policy) complete(r *Request, annotated map[string]string, env []string) error {
	variables := ourVariables(env)
	if p.DefaultVRAM == "" {
		err := fmt.Errorf("%w: add the annotation %s, such as %s=4G", ErrMissing, VRAM, VRAM)
		if _, set := variables[Env]; set {
			err = fmt.Errorf("%w (the variable %s is read only if the operator sets allow_env and default_vram in the configuration)", err, Env)
		}
		return err
	}
	maxQuota, err := quota(api.AllDevices, p.DefaultVRAM)
	if err != nil {
		return fmt.Errorf("default_vram in the configuration: %w", err)
	}
	if p.AllowEnv {
		for _, name := range slices.Sorted(maps.Keys(variables)) {
			e, err := p.variable(name, variables[name], maxQuota)
			if err != nil {
				return err
			}
			if _, given := annotated[e.key]; given {
				continue
			}
			if err := p.applyVariable(r, e, maxQuota); err != nil {
				return err
			}
		}
	}
	if !slices.ContainsFunc(r.Quotas, func(q api.Quota) bool { return q.Device == api.AllDevices }) {
		r.Quotas = append(r.Quotas, maxQuota)
	}
	return nil
}

// ourVariables returns the variables that replace annotations, and all that begin with GPUSLICE_VRAM in any case: a misspelt one is rejected, not ignored.
// Others may share the prefix, such as those of
// a Kubernetes service named gpuslice. The last of several entries counts, as in runc.
func ourVariables(env []string) map[string]string {
	found := map[string]string{}
	for _, line := range env {
		name, value, set := strings.Cut(line, "=")
		quota := len(name) >= len(Env) && strings.EqualFold(name[:len(Env)], Env)
		if set && (quota || slices.ContainsFunc(byVariable, func(key string) bool { return name == variableOf(key) })) {
			found[name] = value
		}
	}
	return found
}

func variableOf(key string) string {
	return envPrefix + strings.ToUpper(strings.TrimPrefix(key, Prefix))
}

func (p Policy) variable(name, value string, most api.Quota) (entry, error) {
	e := entry{name: name, value: value, variable: true, sizes: acceptedBytes}
	if most.Percent > 0 {
		e.sizes = acceptedShare
	}
	e.sizes += fmt.Sprintf(", up to default_vram = %s in the configuration,", display(p.DefaultVRAM))
	device, ofOne := strings.CutPrefix(name, Env+"_")
	i := slices.IndexFunc(byVariable, func(key string) bool { return name == variableOf(key) })
	switch {
	case ofOne:
		e.key = VRAM + "." + device
	case i >= 0:
		e.key = byVariable[i]
	default:
		return e, fmt.Errorf("%v is unknown: %s and %s_<GPU uuid or index> are accepted", e, Env, Env)
	}
	return e, nil
}

// applyVariable applies a variable unless it asks for more than the container has without it.
func (p Policy) applyVariable(r *Request, e entry, most api.Quota) error {
	more := func(why string) error {
		return fmt.Errorf("%v=%s is not accepted: %s, since an image can set a variable", e, display(e.value), why)
	}
	if e.key == Pool || e.key == Tenant {
		return more("no variable can name a pool or a tenant")
	}
	if err := r.set(e); err != nil {
		return err
	}
	switch {
	case e.key == Mode && r.Mode != api.Enforce:
		return more(`only "enforce" is`)
	case e.key == Elastic && r.Elastic:
		return more(`only "false" is`)
	case e.key == Priority && r.Priority > 0:
		return more(fmt.Sprintf("only a number from %d to 0 is", api.MinPriority))
	case strings.HasPrefix(e.key, VRAM):
		return p.checkBound(r.Quotas[len(r.Quotas)-1], e, most) // set has just appended it
	}
	return nil
}

// checkBound rejects a quota by variable that exceeds the default.
func (p Policy) checkBound(asked api.Quota, e entry, most api.Quota) error {
	reason := ""
	switch {
	case (asked.Percent > 0) != (most.Percent > 0):
		reason = ", and a size and a share cannot be compared"
	case asked.Bytes <= most.Bytes && asked.Percent <= most.Percent:
		return nil
	}
	return fmt.Errorf("%v=%s is not accepted: default_vram = %s in the configuration is the most that it can ask for%s",
		e, display(e.value), display(p.DefaultVRAM), reason)
}
