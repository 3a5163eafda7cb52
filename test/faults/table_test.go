//go:build faults

// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpuslice/gpuslice/test/doctable"
)

type table struct {
	mu         sync.Mutex
	tried      map[string]map[string]int // by fault and outcome
	operations map[string]int
	rounds     int
	steps      int
	deaths     int // of processes in storms
	slowest    time.Duration
}

var results = table{tried: map[string]map[string]int{}, operations: map[string]int{}}

func (r *table) add(fault, outcome string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tried[fault] == nil {
		r.tried[fault] = map[string]int{}
	}
	r.tried[fault][outcome]++
}

func (r *table) operation(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.operations[name]++
}

func (r *table) killed(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.deaths += n
}

func (r *table) addRound(steps int, slowest time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rounds++
	r.steps += steps
	r.slowest = max(r.slowest, slowest)
}

// finish prints the table, and updates the document if one is named. A document needs every fault, so a partial run cannot
// replace its table.
func (r *table) finish(document string) error {
	text, never := r.markdown()
	fmt.Print(text)
	if len(never) > 0 { // a short run cannot try all
		fmt.Printf("Never tried in this run, %d: %s.\n", len(never), strings.Join(never, "; "))
	} else {
		fmt.Println("Every fault was tried.")
	}
	if document == "" {
		return nil
	}
	if len(never) > 0 {
		return errors.New("not every fault was tried, so the table is not written")
	}
	return doctable.Write(document, text)
}

func (r *table) markdown() (text string, never []string) {
	var b strings.Builder
	fmt.Fprint(&b, "| fault | tried | outcome |\n|---|---|---|\n")
	for _, f := range faults() {
		outcomes := r.tried[f.name]
		total, done := 0, 0
		var words []string
		for _, outcome := range slices.Sorted(maps.Keys(outcomes)) {
			n := outcomes[outcome]
			total += n
			if outcome == "" || outcome == "not passed" {
				continue
			}
			done += n
			words = append(words, outcome)
		}
		if n := outcomes["not passed"]; n > 0 {
			words = append(words, fmt.Sprintf("not passed by what was done: %d", n))
		}
		if done == 0 {
			never = append(never, f.name)
		}
		fmt.Fprintf(&b, "| %s | %d | %s |\n", f.name, done, strings.Join(words, "; "))
	}
	killed := 0
	for _, n := range r.operations {
		killed += n
	}
	fmt.Fprintf(&b, "\n%d rounds with %d operations, of which each was followed by a comparison with the model; %d processes were killed while they "+
		"allocated. The slowest answer of the enforcer took %v, not counting the time for which the machine stood still: up to %v at once.\n", r.rounds, killed, r.deaths,
		r.slowest.Round(time.Millisecond), machine.Longest().Round(time.Millisecond))
	return b.String(), never
}
