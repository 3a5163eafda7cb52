// SPDX-License-Identifier: Apache-2.0

package show

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/api"
)

// What a person types for a slice is resolved here, and not by the enforcer: names come from strangers, so whatever changes a slice is asked
// for by an id, which no two have.

// Named is what a person can mean a slice by.
type Named struct {
	ID, Container string
	api.Names
	Labels []string // of its pools
}

// SliceNamed is what a slice can be meant by.
func SliceNamed(s api.Slice) Named {
	return Named{s.ID, s.Container, s.Names, s.PoolLabels}
}

// RunNamed is what a run can be meant by.
func RunNamed(r api.Run) Named {
	return Named{ID: r.Slice, Container: r.Container, Names: r.Names}
}

// Meaning is how well a slice fits what a person gave; the least one that any slice has counts.
type Meaning int

const (
	byID        Meaning = iota // wholly
	byName                     // or by the beginning of an id that an engine made, or by an id as it is shown
	byBeginning                // of an id that a person gave
	NotMeant
)

// Names is for who wants to see what he names.
func Names(given string, n Named) Meaning {
	m := Means(given, n)
	if m < NotMeant || given == "" {
		return m
	}
	of := []string{n.Pod, n.Namespace, n.Image}
	if n.Pod != "" && n.Namespace != "" {
		of = append(of, n.Namespace+"/"+n.Pod)
	}
	switch {
	case slices.Contains(append(of, n.Labels...), given):
		return byName
	case begins(given, n.ID), begins(given, n.Container):
		return byBeginning
	}
	return NotMeant
}

// Means is for who wants to end what he names: the container has to be named, and what a person gave is meant as it is shown, and not by its
// beginning, since job-1, which has ended, must not mean job-10.
func Means(given string, n Named) Meaning {
	if given == "" {
		return NotMeant
	}
	of := []string{n.Name, n.Path()}
	if n.Pod != "" && n.Name != "" {
		of = append(of, n.Pod+"/"+n.Name)
	}
	switch {
	case given == n.ID, given == n.Container:
		return byID
	case n.Name != "" && slices.Contains(of, given):
		return byName
	}
	for _, id := range []string{n.ID, n.Container} {
		if shortID(id) == given || generated(id) && strings.HasPrefix(id, given) {
			return byName
		}
	}
	return NotMeant
}

// begins says whether what a person gave is the beginning of an id, or what it is shown as.
func begins(given, id string) bool {
	return strings.HasPrefix(id, given) || strings.Contains(given, gap) && shortID(id) == given
}

// best are the places of those that what was given means, by means (Names or Means).
func best(all []Named, given string, means func(string, Named) Meaning) (at []int) {
	least := NotMeant
	for i, n := range all {
		m := means(given, n)
		if m < least {
			least, at = m, nil
		}
		if m == least && m < NotMeant {
			at = append(at, i)
		}
	}
	return at
}

// Find returns the id of the slice that is meant, if it is one slice.
func Find(all []api.Slice, given string, means func(string, Named) Meaning) (string, error) {
	of := make([]Named, len(all))
	for i, s := range all {
		of[i] = SliceNamed(s)
	}
	found := best(of, given, means)
	switch len(found) {
	case 1:
		return of[found[0]].ID, nil
	case 0:
		return "", api.Errorf(api.CodeNotFound, "no slice %s: `gpuslice ps` lists them", strconv.Quote(given))
	}
	return "", ambiguous(of, found, given)
}

// FindRun is the last life of the slice that is meant. What runs goes before what has ended, and of what had the same name the last.
func FindRun(runs []api.Run, given string) (api.Run, error) {
	of := make([]Named, len(runs))
	for i, r := range runs {
		of[i] = RunNamed(r)
	}
	found := best(of, given, Names)
	running := slices.DeleteFunc(slices.Clone(found), func(i int) bool { return runs[i].Ended != nil })
	if len(running) > 0 {
		found = running
	}
	last := make(map[string]int) // the last is the latest
	var paths []string
	for _, i := range found {
		path := of[i].ID
		if runs[i].Ended != nil && of[i].Name != "" {
			path = of[i].Path()
		}
		if _, known := last[path]; !known {
			paths = append(paths, path)
		}
		last[path] = i
	}
	found = nil
	for _, path := range paths {
		found = append(found, last[path])
	}
	switch len(found) {
	case 1:
		return runs[found[0]], nil
	case 0:
		return api.Run{}, api.Errorf(api.CodeNotFound, "no slice %s that runs, or that is known of those that ran: `gpuslice recommend` lists them", strconv.Quote(given))
	}
	return api.Run{}, ambiguous(of, found, given)
}

// namedAtMost is how many slices an error names.
const namedAtMost = 16

func ambiguous(all []Named, found []int, given string) error {
	var parts []string
	for _, i := range found[:min(len(found), namedAtMost)] {
		part := all[i].ID
		if path := all[i].Path(); path != "" {
			part += " " + Plain(path)
		}
		parts = append(parts, part)
	}
	if more := len(found) - len(parts); more > 0 {
		parts = append(parts, fmt.Sprintf("%d more", more))
	}
	return fmt.Errorf("%s names %d slices (%s): give more of it", strconv.Quote(given), len(found), strings.Join(parts, ", "))
}
