// SPDX-License-Identifier: Apache-2.0

package service

import (
	"bufio"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/report/lines"
)

const (
	// lineBytes are logged of a line.
	lineBytes = 512
	// lastBytes are kept of what a broker wrote last.
	lastBytes = 4 << 10
	// lastTimeout is how long a broker that has ended is waited for to have been read.
	lastTimeout = time.Second
)

// output is a broker's standard output and error: its log, the driver's messages, and the printf of clients' kernels. Clients can forge it:
// the service logs some of it, as a quoted value.
type output struct {
	done chan struct{} // closed once all of it was read

	mu   sync.Mutex // guards last
	last []byte
}

// newOutput returns where a broker shall write. It is read until no process has that open any more.
func newOutput(id string, log *slog.Logger) (*output, *os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	o := &output{done: make(chan struct{})}
	go func() {
		defer close(o.done)
		defer r.Close()
		o.read(bufio.NewReaderSize(r, lastBytes), lines.Bound(log).With("lease", id))
	}()
	return o, w, nil
}

func (o *output) read(from *bufio.Reader, log *slog.Logger) {
	for begun := true; ; {
		piece, err := from.ReadSlice('\n')
		o.keep(piece)
		if line := strings.TrimRight(string(piece[:min(len(piece), lineBytes)]), "\n"); begun && line != "" {
			log.Info("a broker wrote", "line", line)
		}
		if begun = err == nil; err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

func (o *output) keep(piece []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last = append(o.last, piece...)
	o.last = append(o.last[:0], o.last[max(0, len(o.last)-lastBytes):]...)
}

// words are a broker's last, once that has ended.
func (o *output) words() string {
	select {
	case <-o.done:
	case <-time.After(lastTimeout): // somebody else has its output open
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.TrimSpace(string(o.last))
}
