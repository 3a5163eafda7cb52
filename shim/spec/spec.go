// SPDX-License-Identifier: Apache-2.0

// Package spec adds gpuslice's hooks to the text of a bundle's config.json.
//
// It edits the text and not a decoded copy of it: what this program's idea of the OCI specification does not
// know, a number of 20 digits, the order of members and the engine's own spacing survive byte for byte. It never
// removes anything.
package spec

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// HookName is the file name by which a hook of ours is known.
const HookName = "gpuslice-hook"

// The stages at which our hook is run.
//
// Prestart and not createRuntime, although the specification calls it deprecated: both are run at the same moment,
// but a runtime that does not know createRuntime ignores it without a word, and the container would
// run without a quota. Every version of every runtime knows prestart.
const (
	Prestart = "prestart"
	// CreateRuntime is only looked for: an engine's hooks.d may have our hook there already.
	CreateRuntime = "createRuntime"
	Poststop      = "poststop"
)

// ErrNotObject is returned for a text that is not one JSON object.
var ErrNotObject = errors.New("not a JSON object")

// AddHooks returns config with the two hooks added, and config itself if it has them already. Ours comes last
// at prestart, where its failure then costs nothing, and first at poststop, since runc stops at the first hook there
// that fails.
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

// has says whether a stage has a hook of ours. A list that cannot be read has none; add says what is wrong with it.
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
