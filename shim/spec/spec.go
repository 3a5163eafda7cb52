// SPDX-License-Identifier: Apache-2.0

// Package spec adds gpuslice's hooks to the text of a bundle's config.json.
//
// It edits the text instead of a decoded copy, so unknown members, large numbers, the order of members and the spacing stay byte
// for byte. It never removes anything.
package spec

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// HookName is the file name of gpuslice's hook.
const HookName = "gpuslice-hook"

// Stages of the hook.
//
// It runs at prestart although the specification deprecates it. createRuntime runs at the same moment, but a runtime that does
// not know it ignores it silently, and the container would run without a quota.
const (
	Prestart = "prestart"
	// CreateRuntime is only searched: an engine's hooks.d may have added the hook there.
	CreateRuntime = "createRuntime"
	Poststop      = "poststop"
)

// ErrNotObject is returned for a text that is not a JSON object.
var ErrNotObject = errors.New("not a JSON object")

// AddHooks returns config with both hooks added, or unchanged if it has them already. The hook comes last at prestart, after
// hooks that may fail, and first at poststop, where runc stops at the first failed hook.
func AddHooks(config []byte, prestart, poststop specs.Hook) ([]byte, error) {
	if !json.Valid(config) {
		var v any
		return nil, fmt.Errorf("not JSON: %w", json.Unmarshal(config, &v))
	}
	at, found, err := find(config, "hooks")
	if err != nil {
		return nil, err
	}
	hooks := []byte("{}")
	if found && string(config[at.start:at.end]) != "null" {
		hooks = config[at.start:at.end]
	}
	edited := hooks
	if !has(hooks, Prestart) && !has(hooks, CreateRuntime) {
		if edited, err = add(edited, Prestart, prestart, false); err != nil {
			return nil, err
		}
	}
	if !has(hooks, Poststop) {
		if edited, err = add(edited, Poststop, poststop, true); err != nil {
			return nil, err
		}
	}
	if len(edited) == len(hooks) {
		return config, nil
	}
	return set(config, "hooks", edited)
}

// has reports whether a stage contains the hook. It returns false for an invalid list; add returns the error.
func has(hooks []byte, stage string) bool {
	at, found, err := find(hooks, stage)
	if err != nil || !found {
		return false
	}
	var list []specs.Hook
	if json.Unmarshal(hooks[at.start:at.end], &list) != nil {
		return false
	}
	return slices.ContainsFunc(list, func(h specs.Hook) bool {
		return filepath.Base(h.Path) == HookName && slices.Contains(h.Args, stage)
	})
}

func add(hooks []byte, stage string, h specs.Hook, first bool) ([]byte, error) {
	element, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("hook %s: %w", h.Path, err)
	}
	at, _, err := find(hooks, stage)
	if err != nil {
		return nil, fmt.Errorf("hooks: %w", err)
	}
	list, err := insert(hooks[at.start:at.end], element, first)
	if err != nil {
		return nil, fmt.Errorf("hooks.%s: %w", stage, err)
	}
	if err := json.Unmarshal(list, new([]specs.Hook)); err != nil {
		return nil, fmt.Errorf("hooks.%s: not a list of hooks: %w", stage, err)
	}
	return set(hooks, stage, list)
}
