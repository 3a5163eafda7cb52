// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"os/exec"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

func TestCommandLineBelongsToTheRequestedProcess(t *testing.T) {
	cmd := exec.Command("sleep", "1000", "0"+strings.Repeat("0", 2*maxLine))
	must.Do(t, cmd.Start())
	defer end(cmd)
	h := mustOpen(t, cmd.Process.Pid)
	defer h.Close()
	var l Lines
	line := l.Of(context.Background(), h.PID, h.Start)
	expect.True(t, strings.HasPrefix(line, "sleep 1000 000"), line)
	expect.Equal(t, len(line), maxLine)
	expect.Equal(t, l.Of(context.Background(), h.PID, h.Start+1), "", "another process of that number")
	end(cmd)
	expect.Equal(t, l.Of(context.Background(), h.PID, h.Start), "", "it has exited")
}

func TestAProcessWhoseCommandLineHangsIsShownByItsName(t *testing.T) {
	cmd := sleeper(t)
	defer end(cmd)
	h := mustOpen(t, cmd.Process.Pid)
	defer h.Close()
	hangs, reads := make(chan struct{}), make(chan struct{}, 2*maxReading)
	l := Lines{read: func(int) string {
		reads <- struct{}{}
		<-hangs
		return "a line"
	}}
	for range 2 * maxReading {
		ctx, stop := context.WithCancel(context.Background())
		go func() {
			<-reads
			stop()
		}()
		name := l.Of(ctx, h.PID, h.Start)
		expect.Equal(t, name, Name(h.PID))
		if l.reading.Load() == maxReading {
			break
		}
	}
	expect.Equal(t, l.Of(context.Background(), h.PID, h.Start), Name(h.PID), "beyond the bound nothing is read")
	expect.Equal(t, l.reading.Load(), int32(maxReading))
	close(hangs)
}
