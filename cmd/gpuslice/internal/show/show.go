// SPDX-License-Identifier: Apache-2.0

// Package show prints slices, pools, devices and events for people (tables) and for programs (JSON). The JSON is that of the
// control API, so it is as stable as the API. It must never ask anybody for more: what it prints is what it was given.
package show

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/api"
)

// Short is how many characters of a container's id are shown, as docker does.
const Short = 12

// widest is how many characters of a name that a person gave are shown: both its ends, as it may be told from others by either.
const widest = 40

const gap = "…"

// JSON prints v, indented.
func JSON(out io.Writer, v any) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}

// Slices prints a row for each device of each slice. Long ids are shortened unless whole.
func Slices(out io.Writer, all []api.Slice, whole bool) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	expires := column(all, func(s api.Slice) bool { return s.Expires != nil })
	tenant := column(all, func(s api.Slice) bool { return s.Tenant != "" })
	fmt.Fprintln(w, "SLICE\tCONTAINER\t"+tenant("TENANT")+"DEVICE\tUSED\tOVERHEAD\tLIMIT\tPROCESSES\t"+expires("EXPIRES")+"STATE")
	for _, s := range all {
		name, container, whose := s.ID, cmp.Or(s.Container, "-"), cmp.Or(s.Tenant, "-")
		if !whole {
			name, container, whose = shortID(name), shortID(container), shortID(whose)
		}
		row := func(device, used, overhead, limit, note string) {
			fmt.Fprintf(w, "%s\t%s\t%s%s\t%s\t%s\t%s\t%d\t%s%s\n",
				name, container, tenant(whose), device, used, overhead, limit, s.ProcessCount, expires(remaining(s)), state(s)+note)
		}
		if len(s.Devices) == 0 {
			row("-", "-", "-", "-", "") // no process has looked at a device yet
		}
		for _, d := range s.Devices {
			note := ""
			if s.Mode != api.Record && d.Used+d.Overhead > d.Limit {
				note = ", over" // its limit was lowered, or a process took what it was not given
			}
			row(numbered(d.Device, d.Index, whole), api.FormatSize(d.Used), api.FormatSize(d.Overhead), limitOf(s, d), note)
		}
	}
	return w.Flush()
}

// column returns what a cell of a column is in a row: nothing, unless a slice has something to say there.
func column(all []api.Slice, says func(api.Slice) bool) func(text string) string {
	for _, s := range all {
		if says(s) {
			return func(text string) string { return text + "\t" }
		}
	}
	return func(string) string { return "" }
}

// remaining is in what time a slice expires.
func remaining(s api.Slice) string {
	switch {
	case s.Expires == nil:
		return "never"
	case s.Remaining <= 0:
		return "now"
	default:
		return "in " + api.FormatTTL(max(s.Remaining, time.Second))
	}
}

func state(s api.Slice) string {
	text := string(s.State)
	if s.Mode == api.Record {
		text += ", record"
	}
	if len(s.Pools) > 0 {
		text += ", pool " + s.Pools.String()
	}
	return text
}

// device is the UUID's first part with its kind (GPU-1b2c3d4e): an index would
// be CUDA's for some and NVML's for others.
func device(d api.DeviceUse, whole bool) string {
	if whole {
		return d.Device
	}
	parts := strings.SplitN(d.Device, "-", 3)
	if len(parts) < 3 {
		return d.Device
	}
	return parts[0] + "-" + parts[1]
}

// Device is a UUID as it is shown.
func Device(uuid string) string { return device(api.DeviceUse{Device: uuid}, false) }

// numbered is the same with the index before it (0:GPU-1b2c3d4e), by which devices whose UUIDs begin alike are told apart; that
// of NVML, as of --device and of `gpuslice devices`.
func numbered(uuid string, index int, whole bool) string {
	text := device(api.DeviceUse{Device: uuid}, whole)
	if whole || index < 0 { // a MIG device has none
		return text
	}
	return strconv.Itoa(index) + ":" + text
}

// shortID shortens what engines generate (64 hexadecimal digits), and names that people gave only if they are very long.
func shortID(id string) string {
	switch {
	case generated(id):
		return id[:Short]
	case len(id) > widest:
		return id[:widest/2-1] + gap + id[len(id)-widest/2:]
	}
	return id
}

// ShortID is an id as it is shown.
func ShortID(id string) string { return shortID(id) }

// generated says whether an engine made the id.
func generated(id string) bool {
	return len(id) == 64 && strings.Trim(id, "0123456789abcdef") == ""
}

// Names says whether what a person gave names an id: by its beginning, or as shortID shows it.
func Names(given, id string) bool {
	return strings.HasPrefix(id, given) || Shortened(given) && shortID(id) == given
}

// Means is Names for who wants to end what he names: a name that a person gave is meant as it is shown, and not by its beginning, since
// job-1, which has ended, must not mean job-10.
func Means(given, id string) bool {
	return Names(given, id) && (generated(id) || shortID(id) == given)
}

// Shortened says whether a table shows less than the id, so that this cannot be one.
func Shortened(id string) bool { return strings.Contains(id, gap) }

// Find returns the slice that id names: wholly, or as names (Names or Means) has it if that is one slice's only.
func Find(slices []api.Slice, id string, names func(given, id string) bool) (string, error) {
	var found []string
	for _, s := range slices {
		if s.ID == id {
			return id, nil
		}
		if names(id, s.ID) || names(id, s.Container) {
			found = append(found, s.ID)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return "", api.Errorf(api.CodeNotFound, "no slice %s: `gpuslice ps` lists them", strconv.Quote(id))
	}
	return "", fmt.Errorf("%s names %d slices (%s): give more of it", strconv.Quote(id), len(found), strings.Join(found, ", "))
}
