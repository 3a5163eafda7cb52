// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"fmt"
	"slices"

	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/engines/conf"
)

// layers are the files that an engine reads besides our drop-in, each on top of the previous ones.
type layers []struct {
	file    string
	decoded map[string]any
}

// layers decodes the files that beside lists, without our entries.
func (v *view) layers(beside func(t tree, dropIn string) ([]string, error), dropIn string) (layers, error) {
	files, err := beside(v.tree(), dropIn)
	if err != nil {
		return nil, err
	}
	all := make(layers, len(files))
	for i, file := range files {
		_, decoded, err := v.open(file, formatTOML)
		if err != nil {
			return nil, err
		}
		all[i].file, all[i].decoded = file, decoded
	}
	return all, nil
}

// last returns the value of key in the last file that has it, and that file, or "".
func (l layers) last(key ...string) (value any, file string) {
	for _, layer := range slices.Backward(l) {
		if value, there := conf.Lookup(layer.decoded, key...); there {
			return value, layer.file
		}
	}
	return nil, ""
}

// dropIn plans an entry at key in our own file, unless an entry of another file is kept. serves is as for judge.
func (v *view) dropIn(p *plan, e engine, file string, others layers, key []string, entry any, serves func(existing any) string) error {
	if existing, where := others.last(key...); where != "" {
		kept, err := v.checkExisting(where, existing, serves)
		if err != nil {
			return err
		}
		if kept != "" {
			p.notes = append(p.notes, kept)
			return nil
		}
	}
	ours, _, err := v.open(file, formatTOML)
	if err != nil {
		return err
	}
	if len(ours.text) == 0 {
		ours.text = fmt.Appendf(nil, "# Written by gpuslice install %s, which also takes it back: gpuslice uninstall %[1]s\n", e.name())
	}
	if err := v.put(&ours, key, entry, serves); err != nil {
		return err
	}
	p.edits = append(p.edits, ours)
	p.notes = append(p.notes, v.missing(v.Runtime)...)
	return nil
}

// lastNames returns the file that makes our runtime the value of key, if it is the last file besides the drop-in with that key.
// It skips unreadable files.
func lastNames(t tree, beside func(t tree, dropIn string) ([]string, error), dropIn string, key ...string) string {
	var all layers
	files, _ := beside(t, dropIn)
	for _, file := range files {
		text, _, err := t.read(file)
		if err != nil {
			continue
		}
		if decoded, err := conf.TOML.Decode(text); err == nil {
			all = append(all, layers{{file, decoded}}...)
		}
	}
	if value, file := all.last(key...); value == name {
		return key[len(key)-1] + " in " + file
	}
	return ""
}
