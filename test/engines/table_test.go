//go:build engines

// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/gpuslice/gpuslice/test/doctable"
)

type table struct {
	mu      sync.Mutex
	cells   map[string]string // "engine case": ok, FAILED or –
	reasons []string          // one per dash
}

var results = table{cells: map[string]string{}}

func (r *table) add(engine, name string, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cells[engine+" "+name] = "ok"; !ok {
		r.cells[engine+" "+name] = "FAILED"
	}
}

func (r *table) dash(engine, name, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cells[engine+" "+name] = "–"
	r.reasons = append(r.reasons, name+": "+why)
}

// why returns the reason why an engine lacks a case; "" if it has it.
func (r row) why(e engine, c testcase) string {
	if why := r.lacks[c.name]; why != "" {
		return r.name + " " + why
	}
	if c.needs != nil {
		return c.needs(e)
	}
	return ""
}

// finish prints the table, or writes it to the file in GPUSLICE_TABLE, and updates the document if one is named. A document
// needs every cell, so a partial run cannot replace its table.
func (r *table) finish(document string) error {
	text, whole := r.markdown()
	if file := os.Getenv("GPUSLICE_TABLE"); file == "" {
		fmt.Print(text)
	} else if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return err
	}
	if document == "" {
		return nil
	}
	if !whole {
		return errors.New("not every case was tried, so the table is not written")
	}
	return doctable.Write(document, text)
}

func (r *table) markdown() (text string, whole bool) {
	var b strings.Builder
	whole = true
	fmt.Fprint(&b, "| case |")
	for _, row := range rows {
		fmt.Fprintf(&b, " %s |", row.name)
	}
	fmt.Fprintf(&b, "\n|---|%s\n", strings.Repeat("---|", len(rows)))
	for _, c := range cases {
		fmt.Fprintf(&b, "| %s |", c.title)
		for _, row := range rows {
			cell := r.cells[row.name+" "+c.name]
			whole = whole && cell != ""
			fmt.Fprintf(&b, " %s |", cell)
		}
		fmt.Fprintln(&b)
	}
	fmt.Fprintf(&b, "\nEngines: %s.\n", strings.Join(versions(), "; "))
	seen := map[string]bool{}
	for _, c := range cases { // in the table's order
		for _, why := range r.reasons {
			if strings.HasPrefix(why, c.name+": ") && !seen[why] {
				seen[why] = true
				fmt.Fprintf(&b, "\n- –, %s: %s", c.title, strings.TrimPrefix(why, c.name+": "))
			}
		}
	}
	fmt.Fprintln(&b)
	return b.String(), whole
}

func versions() []string {
	text, err := os.ReadFile(filepath.Join(tools, "VERSIONS"))
	if err != nil {
		return []string{"unknown"}
	}
	known := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, version, _ := strings.Cut(strings.TrimSpace(line), " ")
		known[name] = version
	}
	var all []string
	for _, r := range rows {
		var parts []string
		for _, name := range r.version {
			parts = append(parts, name+" "+known[name])
		}
		all = append(all, r.name+": "+strings.Join(parts, ", "))
	}
	return all
}
