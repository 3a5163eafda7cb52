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
	// lineBytes is the maximum of bytes logged per line.
	lineBytes = 512
	// lastBytes is the maximum kept of the latest output.
	lastBytes = 4 << 10
	// lastTimeout limits how long words waits for the rest of an ended broker's output.
	lastTimeout = time.Second
)

// output is what a broker and its clients' kernels print. It is untrusted: the service logs a bounded part of it, as a quoted
// value.
type output struct {
	done chan struct{} // closed at the end of the output

	mu   sync.Mutex // guards last
	last []byte
}

// newOutput returns the file for a broker's output. It is read until no process has it open.
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

// words returns the latest output of a broker that has ended.
func (o *output) words() string {
	select {
	case <-o.done:
	case <-time.After(lastTimeout): // another process has the output open
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.TrimSpace(string(o.last))
}
