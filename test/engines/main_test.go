//go:build engines

// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var tools string

// tableFile is the document for the table, written only if every case of every engine ran.
var tableFile = flag.String("table", "", "write the table of results to this `file`")

func TestMain(m *testing.M) {
	flag.Parse()
	out, err := exec.Command("./build.sh").Output()
	if err != nil {
		fmt.Fprintf(os.Stderr, "engines: build.sh: %v\n%s", err, out)
		os.Exit(1)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	tools = lines[len(lines)-1]
	status := m.Run()
	removeImages()
	if err := results.finish(*tableFile); err != nil {
		fmt.Fprintln(os.Stderr, "engines:", err)
		status = 1
	}
	os.Exit(status)
}

func tool(t testing.TB, parts ...string) string {
	t.Helper()
	path := filepath.Join(append([]string{tools}, parts...)...)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("test/engines/build.sh made no %s: %v", filepath.Join(parts...), err)
	}
	return path
}

func TestEngines(t *testing.T) {
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, r)
			for _, c := range cases {
				if why := r.why(s.engine, c); why != "" {
					results.dash(r.name, c.name, why)
					continue
				}
				t.Run(c.name, func(t *testing.T) {
					s.of(t)
					defer func() { results.add(r.name, c.name, !t.Failed()) }()
					before := s.look()
					defer func() { s.clean(before) }()
					c.run(s)
				})
			}
		})
	}
}
