// SPDX-License-Identifier: Apache-2.0

package show

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/api"
)

// Names are resolved here, and not by the enforcer. Users choose them, so every change of a slice uses its unique id.

// Named has the names that a person can use for a slice.
type Named struct {
	ID, Container string
	api.Names
	Labels []string // of its pools
	UID    *uint32  // of the user whose session it is
}

// SliceNamed returns the names of a slice.
func SliceNamed(s api.Slice) Named {
	return Named{s.ID, s.Container, s.Names, s.PoolLabels, s.UID}
}

// RunNamed returns the names of a run.
func RunNamed(r api.Run) Named {
	return Named{ID: r.Slice, Container: r.Container, Names: r.Names, UID: r.UID}
}

// Meaning is the quality of a match between a slice and a given name. Only the best matches count; lower is better.
type Meaning int

const (
	byID        Meaning = iota // exact
	byName                     // or a prefix of a random id, an id as tables show it, or a session's name as its user gave it
	byBeginning                // of an id chosen by a person
	NotMeant
)

// Names matches slices for display. It also accepts pods, namespaces, images, labels of pools, and prefixes.
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

// Means matches slices for changes. It needs the container's name or id, and accepts no prefix of an id chosen by a person:
// job-1, which has ended, must not match job-10.
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
	case n.Name != "" && slices.Contains(of, given), n.UID != nil && api.UserSessionID(*n.UID, given) == n.ID:
		return byName
	}
	for _, id := range []string{n.ID, n.Container} {
		if shortID(id) == given || beginsRandom(given, id) {
			return byName
		}
	}
	return NotMeant
}

// beginsRandom reports whether given is a prefix of an id made by an engine or of a lease's, which may lack "lease-".
func beginsRandom(given, id string) bool {
	const prefix, digits = "lease-", 16
	if number := strings.TrimPrefix(id, prefix); len(number) == digits && len(id) == len(prefix)+digits && isHex(number) {
		given = strings.TrimPrefix(given, prefix)
		return given != "" && strings.HasPrefix(number, given)
	}
	return generated(id) && strings.HasPrefix(id, given)
}

// begins reports whether given is a prefix of id, or its form in tables.
func begins(given, id string) bool {
	return strings.HasPrefix(id, given) || strings.Contains(given, gap) && shortID(id) == given
}

// bestMatches returns the indices of the best matches of given by means (Names or Means).
func bestMatches(all []Named, given string, means func(string, Named) Meaning) (at []int) {
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

// Find returns the id of the matching slice. It is an error if there is none, or more than one.
func Find(all []api.Slice, given string, means func(string, Named) Meaning) (string, error) {
	of := make([]Named, len(all))
	for i, s := range all {
		of[i] = SliceNamed(s)
	}
	found := bestMatches(of, given, means)
	switch len(found) {
	case 1:
		return of[found[0]].ID, nil
	case 0:
		return "", api.Errorf(api.CodeNotFound, "no slice %s: `gpuslice ps` lists them", strconv.Quote(given))
	}
	return "", ambiguous(of, found, given)
}

// FindRun returns the last run of the matching slice. It prefers running slices to ended ones, and of several with the same name
// the last.
func FindRun(runs []api.Run, given string) (api.Run, error) {
	of := make([]Named, len(runs))
	for i, r := range runs {
		of[i] = RunNamed(r)
	}
	found := bestMatches(of, given, Names)
	running := slices.DeleteFunc(slices.Clone(found), func(i int) bool { return runs[i].Ended != nil })
	if len(running) > 0 {
		found = running
	}
	last := make(map[string]int) // later entries overwrite earlier ones
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
