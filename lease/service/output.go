// SPDX-License-Identifier: Apache-2.0

package service

import (
	"bufio"
	"errors"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/enforcer/report/lines"
)

const (
	// lineBytes is the maximum of bytes logged per line.
	lineBytes = 512
	// lastBytes is the maximum kept of the latest output.
	lastBytes = 4 << 10
	// pipeBytes is the capacity of a pipe (pipe(7)).
	pipeBytes = 64 << 10
)

// output is what a broker and its clients' kernels print. It is untrusted: the service logs a bounded part of it, as a quoted
// value.
type output struct {
	file *os.File
	done chan struct{} // closed at the end of the output

	mu   sync.Mutex // guards last
	last []byte
}

// newOutput returns the file for a broker's output. It is read until no process has it open, or words is called.
func newOutput(id string, log *slog.Logger) (*output, *os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	o := &output{file: r, done: make(chan struct{})}
	go func() {
		defer close(o.done)
		defer r.Close()
		log := lines.Bound(log).With("lease", id)
		o.read(bufio.NewReaderSize(r, lastBytes), log)
		o.read(bufio.NewReaderSize(io.LimitReader(written{r}, pipeBytes), lastBytes), log)
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

// written reads what a pipe has, and then reports its end.
type written struct{ *os.File }

// Read implements io.Reader.
func (w written) Read(into []byte) (n int, err error) {
	raw, err := w.SyscallConn()
	if err != nil {
		return 0, err
	}
	if failed := raw.Control(func(fd uintptr) { n, err = unix.Read(int(fd), into) }); failed != nil {
		return 0, failed
	}
	if err != nil || n <= 0 { // EAGAIN: another process has it open
		return 0, io.EOF
	}
	return n, nil
}

// text returns the latest output of a broker that has ended, whether or not another process has the output open.
func (o *output) text() string {
	_ = o.file.SetReadDeadline(time.Now()) // it may be closed
	<-o.done
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.TrimSpace(string(o.last))
}
