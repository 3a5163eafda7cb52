// SPDX-License-Identifier: Apache-2.0

package annotations

import (
	"fmt"
	"strings"

	"github.com/gpuslice/gpuslice/enforcer/api"
)

// Env is a variable of the container that stands in for the annotation VRAM, for engines that have none to give (Docker below
// API 1.43). Whether the image sets it or its user does cannot be told, so it only ever asks for less than the operator's default.
const Env = "GPUSLICE_VRAM"

// quota is that of a container without an annotation for it.
func (p Policy) quota(env []string) (api.Quota, error) {
	value, set := lookup(env)
	if p.DefaultVRAM == "" {
		if set {
			return api.Quota{}, fmt.Errorf("%w (the variable %s is read only if the operator sets allow_env and default_vram in the configuration)", ErrMissing, Env)
		}
		return api.Quota{}, ErrMissing
	}
	most, err := quota(api.AllDevices, p.DefaultVRAM)
	if err != nil {
		return api.Quota{}, fmt.Errorf("default_vram in the configuration: %w", err)
	}
	if !p.AllowEnv || !set {
		return most, nil
	}
	asked, err := quota(api.AllDevices, value)
	refused := func(why string) (api.Quota, error) {
		sentence := fmt.Sprintf("variable %s=%s is not accepted: %s", Env, shown(value), fmt.Sprintf(why, shown(p.DefaultVRAM)))
		return api.Quota{}, &refusal{sentence, err}
	}
	switch {
	case err != nil && most.Percent > 0:
		return refused(`a share such as "50%%", up to default_vram = %s in the configuration, is`)
	case err != nil:
		return refused(`a size such as "4G" or "4096m", up to default_vram = %s in the configuration, is`)
	case (asked.Percent > 0) != (most.Percent > 0):
		return refused(`default_vram = %s in the configuration is the most that it can ask for, and a size and a share cannot be compared`)
	case asked.Bytes > most.Bytes || asked.Percent > most.Percent:
		return refused(`default_vram = %s in the configuration is the most that it can ask for (the annotation ` + VRAM + ` can ask for more)`)
	}
	return asked, nil
}

// lookup finds the variable; of several entries the last counts, as for runc.
func lookup(env []string) (value string, set bool) {
	for _, entry := range env {
		if v, ok := strings.CutPrefix(entry, Env+"="); ok {
			value, set = v, true
		}
	}
	return value, set
}
