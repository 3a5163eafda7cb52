// SPDX-License-Identifier: Apache-2.0

package service

import (
	"bufio"
	"os/exec"
	"syscall"
	"testing"

	"github.com/gpuslice/gpuslice/enforcer/process"
)

func TestABrokerThatIgnoresSIGTERMIsKilled(t *testing.T) {
	deaths, err := process.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	defer deaths.Close()
	s := &Service{deaths: deaths}
	broker := exec.Command("sh", "-c", "trap '' TERM; echo ready; read -r end")
	input, err := broker.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := broker.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := broker.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(output).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	handle, err := process.Open(broker.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() {
		_ = broker.Wait()
		close(exited)
	}()
	s.stop(&lease{process: handle, exited: exited})
	_ = input.Close() // a broker that was not killed exits
	<-exited
	if status := broker.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != syscall.SIGKILL {
		t.Errorf("it ended by %v, want SIGKILL", status.Signal())
	}
}
