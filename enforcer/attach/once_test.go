// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/ledger"
	"github.com/gpuslice/gpuslice/enforcer/process"
	"github.com/gpuslice/gpuslice/test/await"
)

func TestAConnectionHasOneQuestionAndOneAnswer(t *testing.T) {
	var asked atomic.Int64
	conn := dial(t, serve(t, func(peer *process.Handle, _ bool, r ledger.Request) (ledger.Reply, []*os.File, bool) {
		asked.Add(1)
		return echo(peer, true, r)
	}))
	defer conn.Close()
	question := ledger.Request{Op: ledger.OpTruth}.Encode()
	for range 8 { // all but the first may find it closed already
		_, _ = conn.Write(question)
	}
	_ = conn.SetReadDeadline(time.Now().Add(await.Patience))
	answers := 0
	for {
		n, err := conn.Read(make([]byte, 128))
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("it stays open")
		}
		if err != nil && !errors.Is(err, io.EOF) || n == 0 {
			break
		}
		answers++
	}
	if answers > 1 || asked.Load() != 1 {
		t.Errorf("%d questions were taken, and %d answered", asked.Load(), answers)
	}
}

// What an operator is told about this socket is what holds: docs/operate/bounds.md has a table of it.
func TestTheLimitsAreTheDocumentedOnes(t *testing.T) {
	document, err := os.ReadFile("../../docs/operate/bounds.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range [][2]string{
		{"| connections at a time |", "64, and 128 in the kernel's queue |"},
		{"| until the head of a request is there |", "1 s for all of it |"},
		{"| for the answer to be taken |", " 1 s |"},
		{"| size of a head and of a body |", "64 bytes |"},
		{"| requests a second |", "100, after a burst of 2,048 |"},
	} {
		_, rest, found := strings.Cut(string(document), "\n"+row[0])
		line, _, _ := strings.Cut(rest, "\n")
		if !found || !strings.HasSuffix(line, row[1]) {
			t.Errorf("docs/operate/bounds.md: the row %q does not end with %q: %q", row[0], row[1], line)
		}
	}
	if InFlight != 64 || backlog != 128 || Patience != time.Second || ledger.MessageSize != 64 || Rate != 100 || Burst != 2048 {
		t.Error("and this is no longer so")
	}
}
