// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

func run(t *testing.T, strict bool, events ...string) (string, bool) {
	t.Helper()
	var out strings.Builder
	r := report{strict: strict, silence: time.Hour, out: &out, output: map[string][]string{}}
	must.Do(t, r.read(strings.NewReader(strings.Join(events, "\n"))))
	ok := r.close()
	return out.String(), ok
}

const (
	skipRoot = `{"Action":"output","Package":"p","Test":"A","Output":"    a_test.go:3: needs root\n"}
{"Action":"skip","Package":"p","Test":"A"}`
	skipGPU = `{"Action":"output","Package":"p","Test":"B","Output":"    a_test.go:3: needs a GPU\n"}
{"Action":"skip","Package":"p","Test":"B"}`
	passOne = `{"Action":"pass","Package":"p","Test":"C"}`
)

func TestSkipForWantOfRootFailsOnlyIfStrict(t *testing.T) {
	if out, ok := run(t, false, skipRoot, passOne); !ok || !strings.HasSuffix(out, "1 passed, 0 failed, 1 skipped\n") {
		t.Errorf("ok %v, said %q", ok, out)
	}
	if out, ok := run(t, true, skipRoot, passOne); ok || !strings.HasSuffix(out, "1 passed, 1 failed, 0 skipped\n") {
		t.Errorf("strict: ok %v, said %q", ok, out)
	}
}

func TestSkipForWantOfAGPUIsAlwaysAllowed(t *testing.T) {
	out, ok := run(t, true, skipGPU, passOne)
	if !ok || !strings.Contains(out, "skip p B: needs a GPU\n") {
		t.Errorf("ok %v, said %q", ok, out)
	}
}

func TestATestThatDidNotEndIsNamedWithItsOutput(t *testing.T) {
	out, ok := run(t, false, passOne,
		`{"Action":"output","Package":"p","Test":"D","Output":"panic: test timed out\n"}`,
		`{"Action":"fail","Package":"p"}`)
	if ok || !strings.Contains(out, "FAIL p D (it did not end)\npanic: test timed out\n") {
		t.Errorf("ok %v, said %q", ok, out)
	}
}

func TestTheReasonIsRootWhateverElseWasLogged(t *testing.T) {
	const said = "=== RUN   TestA\n    helpers_test.go:3: time=1 msg=ready\n    a_test.go:3: needs root\n    helpers_test.go:3: time=2 msg=ended\n--- SKIP: TestA\n"
	expect.Equal(t, reason(said), "needs root")
}

func TestARequirementThatNoPackageMeetsMayBeMissing(t *testing.T) {
	for reason, want := range map[string]bool{
		"needs a GPU":                        true,
		"needs x86-64: the images are of it": true,
		"requires a GPU: libnvidia-ml.so.1: cannot open shared object file": true,
		"requires a crun that can run a container here: hybrid cgroups":     false,
		"needs root, to make a cgroup":                                      false,
		"needs strace: make deps":                                           false,
		"GPUSLICE_LONG is not set":                                          false,
	} {
		expect.Equal(t, unavoidable(reason), want, reason)
	}
}

func TestARunWithoutTestsFails(t *testing.T) {
	if out, ok := run(t, false); ok || !strings.HasSuffix(out, "0 passed, 1 failed, 0 skipped\n") {
		t.Errorf("ok %v, said %q", ok, out)
	}
}

func TestPackageThatDoesNotBuildIsAFailure(t *testing.T) {
	out, ok := run(t, false,
		`{"ImportPath":"p","Action":"build-output","Output":"a.go:1: syntax error\n"}`,
		`{"ImportPath":"p","Action":"build-fail"}`,
		`{"Action":"fail","Package":"p"}`)
	if ok || !strings.Contains(out, "syntax error") || !strings.HasSuffix(out, "0 passed, 1 failed, 0 skipped\n") {
		t.Errorf("ok %v, said %q", ok, out)
	}
}

func TestFailedTestIsShownWithItsOutput(t *testing.T) {
	out, ok := run(t, false,
		`{"Action":"output","Package":"p","Test":"A","Output":"got 1, want 2\n"}`,
		`{"Action":"fail","Package":"p","Test":"A"}`,
		`{"Action":"fail","Package":"p"}`)
	if ok || !strings.Contains(out, "got 1, want 2") || !strings.HasSuffix(out, "0 passed, 1 failed, 0 skipped\n") {
		t.Errorf("ok %v, said %q", ok, out)
	}
}

func TestLongSilencePrintsALine(t *testing.T) {
	in, tests := io.Pipe()
	out := make(chan string)
	r := report{silence: time.Millisecond, out: writer(out), output: map[string][]string{}}
	go r.read(in)
	expect.Contains(t, <-out, "0 passed, 0 failed so far")
	must.Get(tests.Write([]byte(passOne + "\n")))(t)
	for !strings.Contains(<-out, "1 passed, 0 failed so far; the last was p C") {
	}
	go func() {
		for range out {
		}
	}()
	tests.Close()
}

type writer chan<- string

func (w writer) Write(said []byte) (int, error) {
	w <- string(said)
	return len(said), nil
}
