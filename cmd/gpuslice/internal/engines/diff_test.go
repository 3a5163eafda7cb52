// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// apply works as patch(1), but checks all numbers and context lines.
func apply(t *testing.T, text []byte, patch string) []byte {
	t.Helper()
	old := slices.Collect(strings.Lines(string(text)))
	var made []string
	at, oldLeft, newLeft := 0, 0, 0
	lines := slices.Collect(strings.Lines(patch))
	for i, line := range lines {
		if oldLeft == 0 && newLeft == 0 {
			if strings.HasPrefix(line, "@@ ") {
				var start int
				start, oldLeft, newLeft = header(t, line)
				made = append(made, old[at:start]...)
				at = start
			}
			continue
		}
		if strings.HasPrefix(line, `\`) {
			continue
		}
		what := line[1:]
		if i+1 < len(lines) && strings.HasPrefix(lines[i+1], `\`) {
			what = strings.TrimSuffix(what, "\n")
		}
		if line[0] != '+' {
			if at >= len(old) || old[at] != what {
				t.Fatalf("line %d is not %q:\n%s", at+1, what, patch)
			}
			at++
			oldLeft--
		}
		if line[0] != '-' {
			made = append(made, what)
			newLeft--
		}
	}
	if oldLeft != 0 || newLeft != 0 {
		t.Fatalf("a hunk is too short:\n%s", patch)
	}
	return []byte(strings.Join(append(made, old[at:]...), ""))
}

// header parses "@@ -START,LINES +START,LINES @@", and returns the number of lines before the hunk.
func header(t *testing.T, line string) (before, oldLines, newLines int) {
	t.Helper()
	var place [2]string
	if _, err := fmt.Sscanf(line, "@@ -%s +%s @@", &place[0], &place[1]); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	read := func(s string) (start, lines int) {
		lines = 1
		if _, err := fmt.Sscanf(s, "%d,%d", &start, &lines); err != nil && !strings.Contains(s, ",") {
			_, err = fmt.Sscanf(s, "%d", &start)
			if err != nil {
				t.Fatalf("%q: %v", line, err)
			}
		}
		return start, lines
	}
	before, oldLines = read(place[0])
	if oldLines > 0 {
		before--
	}
	_, newLines = read(place[1])
	return before, oldLines, newLines
}

func TestDiff(t *testing.T) {
	before := "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\nk"
	after := "a\nb\nc\nD\ne\nf\ng\nh\ni\nj\nk\nl\n"
	const want = `--- /f
+++ /f
@@ -1,11 +1,12 @@
 a
 b
 c
-d
+D
 e
 f
 g
 h
 i
 j
-k
\ No newline at end of file
+k
+l
`
	if got := diff("/f", []byte(before), true, []byte(after), true); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got, want := diff("/f", nil, false, []byte("a\n"), true), "--- /dev/null\n+++ /f\n@@ -0,0 +1 @@\n+a\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := diff("/f", []byte("a\n"), true, nil, false), "--- /f\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := diff("/f", []byte("a"), true, []byte("a"), true); got != "" {
		t.Errorf("of the same: %q", got)
	}
}

func FuzzDiff(f *testing.F) {
	f.Add([]byte("a\nb\n"), []byte("b\nc"))
	f.Add([]byte("1\n2\n3\n4\n5\n6\n7\n8\n9\n"), []byte("0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n0\n"))
	f.Fuzz(func(t *testing.T, before, after []byte) {
		if got := apply(t, before, diff("/f", before, true, after, true)); !bytes.Equal(got, after) {
			t.Errorf("it makes %q of %q, want %q", got, before, after)
		}
	})
}
