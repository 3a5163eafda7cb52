// SPDX-License-Identifier: Apache-2.0

// Report summarizes the output of `go test -json` on standard input: a line per package, the full output of failed tests, and
// the skips with their reasons. Its last line is "N passed, N failed, N skipped". With -strict a skip is a failure unless no
// package or privilege could have prevented it, such as a missing GPU. It fails, too, if no test ran.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

func main() {
	strict := flag.Bool("strict", false, "a skip for want of anything but a GPU is a failure")
	flag.Parse()
	r := report{strict: *strict, silence: 5 * time.Second, out: os.Stdout, output: map[string][]string{}}
	if err := r.read(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(2)
	}
	if !r.close() {
		os.Exit(1)
	}
}

type event struct {
	Action     string
	Package    string
	ImportPath string
	Test       string
	Output     string
	Elapsed    float64
}

type skip struct{ pkg, test, reason string }

type report struct {
	strict                  bool
	out                     io.Writer
	output                  map[string][]string // of each running test or package
	passed, failed, skipped int
	wrongSkips              []skip
	rightSkips              []skip
	packageFailed           bool
	last                    string        // that ended
	silence                 time.Duration // interval of progress lines without other output
}

func (r *report) read(in io.Reader) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 16<<20)
	came := make(chan string)
	go func() {
		defer close(came)
		for lines.Scan() {
			came <- lines.Text()
		}
	}()
	begin := time.Now()
	progress := time.NewTicker(r.silence)
	defer progress.Stop()
	for {
		select {
		case line, ok := <-came:
			if !ok {
				return lines.Err()
			}
			var e event
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				// go prints its own errors in plain text.
				fmt.Fprintln(r.out, line)
				continue
			}
			r.add(e)
		case <-progress.C:
			fmt.Fprintf(r.out, "%5.0f s  %d passed, %d failed so far; the last was %s\n", time.Since(begin).Seconds(), r.passed, r.failed, cmp.Or(r.last, "none: compiling"))
		}
	}
}

func (r *report) add(e event) {
	if e.ImportPath != "" && e.Package == "" {
		e.Package = e.ImportPath
	}
	key := e.Package + " " + e.Test
	switch e.Action {
	case "output", "build-output":
		r.output[key] = append(r.output[key], e.Output)
		return
	case "pass", "fail", "skip", "build-fail":
	default:
		return
	}
	said := strings.Join(r.output[key], "")
	delete(r.output, key)

	if e.Test == "" {
		r.endPackage(e, said)
		return
	}
	r.last = e.Package + " " + e.Test
	switch e.Action {
	case "pass":
		r.passed++
	case "fail":
		r.failed++
		fmt.Fprintf(r.out, "FAIL %s %s\n%s", e.Package, e.Test, said)
	case "skip":
		r.skipped++
		s := skip{e.Package, e.Test, reason(said)}
		if unavoidable(s.reason) {
			r.rightSkips = append(r.rightSkips, s)
		} else {
			r.wrongSkips = append(r.wrongSkips, s)
		}
	}
}

func (r *report) endPackage(e event, said string) {
	switch e.Action {
	case "skip": // no test files
	case "pass":
		fmt.Fprintf(r.out, "ok   %s %.1fs\n", e.Package, e.Elapsed)
	default:
		fmt.Fprintf(r.out, "FAIL %s\n", e.Package)
		for key, output := range r.output { // of tests that did not end: the package panicked or timed out
			if pkg, test, _ := strings.Cut(key, " "); pkg == e.Package && test != "" {
				fmt.Fprintf(r.out, "FAIL %s %s (it did not end)\n%s", pkg, test, strings.Join(output, ""))
				delete(r.output, key)
			}
		}
		for line := range strings.Lines(said) {
			if line != "FAIL\n" && !strings.HasPrefix(line, "FAIL\t") {
				fmt.Fprint(r.out, line)
			}
		}
		r.packageFailed = true
	}
}

const noRoot = "needs root"

// reason returns a skipped test's reason for t.Skip: its output without the framework's own lines.
func reason(said string) string {
	var kept []string
	for line := range strings.Lines(said) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "=== ") || strings.HasPrefix(line, "--- ") {
			continue
		}
		// "file_test.go:12: the reason"
		if _, after, found := strings.Cut(line, ".go:"); found {
			if _, text, found := strings.Cut(after, ": "); found {
				line = text
			}
		}
		if line == noRoot {
			return noRoot
		}
		kept = append(kept, line)
	}
	return strings.Join(kept, " ")
}

// unavoidable reports whether this machine can never satisfy a skip's reason.
func unavoidable(reason string) bool {
	for _, begin := range []string{"requires a GPU", "needs a GPU", "requires a host without a GPU", "needs x86-64"} {
		if strings.HasPrefix(reason, begin) {
			return true
		}
	}
	return false
}

func (r *report) list(skips []skip) {
	same := make(map[skip]int)
	for _, s := range skips {
		same[skip{s.pkg, "", s.reason}]++
	}
	for _, s := range skips {
		key := skip{s.pkg, "", s.reason}
		switch n := same[key]; n {
		case 0: // printed
		case 1:
			fmt.Fprintf(r.out, "skip %s %s: %s\n", s.pkg, s.test, s.reason)
		default:
			fmt.Fprintf(r.out, "skip %s %s and %d more: %s\n", s.pkg, s.test, n-1, s.reason)
		}
		delete(same, key)
	}
}

func (r *report) close() bool {
	r.list(r.rightSkips)
	if !r.strict {
		r.list(r.wrongSkips)
	} else {
		for _, s := range r.wrongSkips {
			fmt.Fprintf(r.out, "FAIL (skipped, and need not have been) %s %s: %s\n", s.pkg, s.test, s.reason)
		}
		r.failed += len(r.wrongSkips)
		r.skipped -= len(r.wrongSkips)
	}
	if r.packageFailed && r.failed == 0 {
		r.failed++ // a package that does not build has no failed tests
	}
	if r.passed+r.failed+r.skipped == 0 {
		fmt.Fprintln(r.out, "FAIL no test ran")
		r.failed++
	}
	fmt.Fprintf(r.out, "%d passed, %d failed, %d skipped\n", r.passed, r.failed, r.skipped)
	return r.failed == 0
}
