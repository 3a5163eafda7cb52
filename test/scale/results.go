// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"text/tabwriter"
)

type timing struct {
	PerSecond float64 `json:"per_second"`
	P50       float64 `json:"p50_ms"`
	P99       float64 `json:"p99_ms"`
}

type results struct {
	Slices  int `json:"slices"`
	Clients int `json:"clients"`
	Active  int `json:"active"`

	One         timing  `json:"one"`
	Many        timing  `json:"many"`
	ReleaseOne  timing  `json:"release_one"`
	ReleaseMany timing  `json:"release_many"`
	CPU         float64 `json:"cpu_ms"`          // of the enforcer, per registration
	Restart     float64 `json:"restart_seconds"` // with all slices, until the first answer

	BytesPerSlice       float64 `json:"bytes_per_slice"`
	DescriptorsPerSlice float64 `json:"descriptors_per_slice"`

	// Fractions of a core.
	IdleNone   float64 `json:"idle_none"`
	IdleActive float64 `json:"idle_active"`
	IdleAll    float64 `json:"idle_all"`
}

func (r *results) print(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', tabwriter.AlignRight)
	row := func(cells ...any) {
		for _, cell := range cells {
			fmt.Fprintf(t, "%v\t", cell)
		}
		fmt.Fprintln(t)
	}
	row("", "per second", "p50 ms", "p99 ms")
	many := fmt.Sprintf("%d at a time, %d slices", r.Clients, r.Slices)
	for _, line := range []struct {
		name string
		timing
	}{{"registers, one at a time", r.One}, {"registers, " + many, r.Many}, {"releases, one at a time", r.ReleaseOne}, {"releases, " + many, r.ReleaseMany}} {
		row(line.name, fmt.Sprintf("%.0f", line.PerSecond), fmt.Sprintf("%.2f", line.P50), fmt.Sprintf("%.2f", line.P99))
	}
	_ = t.Flush()
	fmt.Fprintf(w, "\nthe enforcer's CPU time for each of many registrations: %.2f ms\n", r.CPU)
	fmt.Fprintf(w, "a slice: %.1f KiB of memory, %.2f descriptors\n", r.BytesPerSlice/1024, r.DescriptorsPerSlice)
	fmt.Fprintf(w, "a restart after a kill with %d slices: %.1f s until it answers; none was lost\n", r.Slices, r.Restart)
	fmt.Fprintf(w, "idle: %.2f %% of a core without slices, %.2f %% with %d slices of an attached process each, %.2f %% with %d slices of none\n",
		100*r.IdleNone, 100*r.IdleActive, r.Active, 100*r.IdleAll, r.Slices)
}
