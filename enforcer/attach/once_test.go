// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"io"
	"os"
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
	for range 8 { // the server may have closed the connection after the first
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
		t.Errorf("%d requests were handled, and %d got replies", asked.Load(), answers)
	}
}
