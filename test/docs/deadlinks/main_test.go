// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/test/must"
)

func TestDeadLinksAreNamed(t *testing.T) {
	site := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		must.Do(t, os.WriteFile(filepath.Join(site, name), []byte(text), 0o600))
	}
	write("other.html", `<h2 id="what-s">What's</h2>`)
	write("index.html", `<h1 id="here">Here</h1> <a href="#here">a</a> <a href="other.html#what-s">b</a> <a href="https://example.com/none">c</a>
		<a href="#gone">d</a> <a href="none.html">e</a> <a href="other.html#gone">f</a> <img src="none.png">`)
	links, dead, err := check(site)
	must.Do(t, err)
	if links != 6 || len(dead) != 4 {
		t.Fatalf("%d links, of which dead are\n%s", links, strings.Join(dead, "\n"))
	}
	for _, target := range []string{"#gone", "none.html", "other.html has no section #gone", "none.png"} {
		if !slices.ContainsFunc(dead, func(line string) bool { return strings.HasSuffix(line, target) }) {
			t.Errorf("%s is not among\n%s", target, strings.Join(dead, "\n"))
		}
	}
}
