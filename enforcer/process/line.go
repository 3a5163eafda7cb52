// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bytes"
	"context"
	"io"
	"os"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/gpuslice/gpuslice/enforcer/guard"
)

// Lines reads command lines. They are in the memory of the processes, so a process can make a read wait. The zero value is ready for use.
type Lines struct {
	reading atomic.Int32
	read    func(pid int) string // for tests; nil: readLine
}

const (
	maxReading = 32  // reads at a time
	maxLine    = 512 // bytes
)

// Of returns a process's command line, which it can choose; its name if there is no line before ctx ends, and "" if it has exited.
func (l *Lines) Of(ctx context.Context, pid int, start uint64) string {
	guard.MayWait("a process's files")
	p, err := Again(pid, start)
	if err != nil {
		return ""
	}
	defer p.Close()
	line := l.line(ctx, pid)
	if line == "" {
		line = Name(pid)
	}
	if !p.Alive() { // what was read may be another process's
		return ""
	}
	return line
}

func (l *Lines) line(ctx context.Context, pid int) string {
	if ctx.Err() != nil {
		return ""
	}
	if l.reading.Add(1) > maxReading {
		l.reading.Add(-1)
		return ""
	}
	read := l.read
	if read == nil {
		read = readLine
	}
	got := make(chan string, 1)
	go func() {
		defer l.reading.Add(-1)
		got <- read(pid)
	}()
	select {
	case line := <-got:
		return line
	case <-ctx.Done():
		return ""
	}
}

func readLine(pid int) string {
	file, err := os.Open("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if err != nil {
		return ""
	}
	defer file.Close()
	line, _ := io.ReadAll(io.LimitReader(file, maxLine))
	return strings.TrimSpace(string(bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
}
