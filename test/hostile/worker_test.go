//go:build hostile

// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"bufio"
	"fmt"
	"io"
	"os/exec"
	"strings"
)

// worker is a CUDA program that follows commands (../faults/programs/worker.c).
type worker struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Reader
}

func newWorker(cmd *exec.Cmd) (*worker, error) {
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	w := &worker{cmd: cmd, in: in, lines: bufio.NewReader(out)}
	if said := w.readLine(); !strings.HasPrefix(said, "ready ") {
		w.kill()
		return nil, fmt.Errorf("a program of CUDA begins with %q", said)
	}
	return w, nil
}

func (w *worker) readLine() string {
	line, err := w.lines.ReadString('\n')
	if err != nil {
		return "gone"
	}
	return strings.TrimSpace(line)
}

func (w *worker) writeLine(format string, args ...any) {
	fmt.Fprintf(w.in, format+"\n", args...) // a worker that is gone gives no answer
}

func (w *worker) ask(format string, args ...any) string {
	w.writeLine(format, args...)
	return w.readLine()
}

func (w *worker) kill() {
	_ = w.cmd.Process.Kill()
	_ = w.cmd.Wait()
}
