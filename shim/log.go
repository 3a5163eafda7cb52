// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/hook"
)

// Report writes err to stderr and to the file that the engine named by --log. docker and containerd show its last line of level
// error.
func Report(err error, log string, stderr io.Writer) {
	sentence := hook.Sentence(err)
	fmt.Fprintln(stderr, sentence)
	if log == "" || strings.HasPrefix(log, "syslog:") || strings.HasPrefix(log, "journald:") {
		return
	}
	line, err := json.Marshal(struct {
		Level string `json:"level"`
		Msg   string `json:"msg"`
		Time  string `json:"time"`
	}{"error", sentence, time.Now().Format(time.RFC3339)})
	if err != nil {
		return
	}
	// O_NONBLOCK: it may be a FIFO without a reader. A failure cannot be reported anywhere.
	file, err := os.OpenFile(strings.TrimPrefix(log, "file:"), os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NONBLOCK, 0o644)
	if err != nil {
		return
	}
	defer file.Close()
	_, _ = file.Write(append(line, '\n'))
}
