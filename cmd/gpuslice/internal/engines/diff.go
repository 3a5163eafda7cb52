// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"fmt"
	"slices"
	"strings"
)

const around = 3

// diff returns a patch(1) from before to after, or "" if they are equal.
func diff(file string, before []byte, existed bool, after []byte, exists bool) string {
	if existed == exists && string(before) == string(after) {
		return ""
	}
	from, to := file, file
	if !existed {
		from = "/dev/null"
	}
	if !exists {
		to = "/dev/null"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "--- %s\n+++ %s\n", from, to)
	lines := compare(slices.Collect(strings.Lines(string(before))), slices.Collect(strings.Lines(string(after))))
	for _, h := range hunks(lines) {
		var oldLines, newLines int
		for _, l := range lines[h[0]:h[1]] {
			if l.sign != '+' {
				oldLines++
			}
			if l.sign != '-' {
				newLines++
			}
		}
		fmt.Fprintf(&b, "@@ -%s +%s @@\n", place(lines[:h[0]], '+', oldLines), place(lines[:h[0]], '-', newLines))
		for _, l := range lines[h[0]:h[1]] {
			b.WriteByte(l.sign)
			b.WriteString(l.text)
			if !strings.HasSuffix(l.text, "\n") {
				b.WriteString("\n\\ No newline at end of file\n")
			}
		}
	}
	return b.String()
}

type diffLine struct {
	sign byte // ' ', '-' or '+'
	text string
}

// place formats a hunk's start and length in one of the two texts as diff -u does. before are the lines before the hunk; those
// with the sign other are not in that text.
func place(before []diffLine, other byte, lines int) string {
	at := 0
	for _, l := range before {
		if l.sign != other {
			at++
		}
	}
	if lines > 0 {
		at++
	}
	if lines == 1 {
		return fmt.Sprint(at)
	}
	return fmt.Sprintf("%d,%d", at, lines)
}

// compare returns the lines of both texts in one sequence, by their longest common subsequence between the common start and end.
// If its table would be too large, all of these lines count as changed.
func compare(a, b []string) []diffLine {
	start := 0
	for start < len(a) && start < len(b) && a[start] == b[start] {
		start++
	}
	end := 0
	for end < len(a)-start && end < len(b)-start && a[len(a)-1-end] == b[len(b)-1-end] {
		end++
	}
	var lines []diffLine
	for _, l := range a[:start] {
		lines = append(lines, diffLine{' ', l})
	}
	lines = append(lines, compareMiddle(a[start:len(a)-end], b[start:len(b)-end])...)
	for _, l := range a[len(a)-end:] {
		lines = append(lines, diffLine{' ', l})
	}
	return lines
}

func compareMiddle(a, b []string) []diffLine {
	const largest = 4 << 20 // entries of the table
	width := len(b) + 1
	var common []int32 // common[i*width+j] is the length of the longest common subsequence of a[i:] and b[j:]
	if len(a) > 0 && len(b) > 0 && len(a) < largest/width {
		common = make([]int32, (len(a)+1)*width)
		for i := len(a) - 1; i >= 0; i-- {
			for j := len(b) - 1; j >= 0; j-- {
				if a[i] == b[j] {
					common[i*width+j] = common[(i+1)*width+j+1] + 1
				} else {
					common[i*width+j] = max(common[(i+1)*width+j], common[i*width+j+1])
				}
			}
		}
	}
	var lines []diffLine
	i, j := 0, 0
	for common != nil && i < len(a) && j < len(b) {
		switch {
		case a[i] == b[j]:
			lines = append(lines, diffLine{' ', a[i]})
			i++
			j++
		case common[(i+1)*width+j] >= common[i*width+j+1]:
			lines = append(lines, diffLine{'-', a[i]})
			i++
		default:
			lines = append(lines, diffLine{'+', b[j]})
			j++
		}
	}
	for _, l := range a[i:] {
		lines = append(lines, diffLine{'-', l})
	}
	for _, l := range b[j:] {
		lines = append(lines, diffLine{'+', l})
	}
	return lines
}

// hunks returns the ranges of lines to show, as pairs of start and end.
func hunks(lines []diffLine) [][2]int {
	var all [][2]int
	for i, l := range lines {
		if l.sign == ' ' {
			continue
		}
		start, end := max(0, i-around), min(len(lines), i+around+1)
		if n := len(all); n > 0 && start <= all[n-1][1] {
			all[n-1][1] = end
		} else {
			all = append(all, [2]int{start, end})
		}
	}
	return all
}
