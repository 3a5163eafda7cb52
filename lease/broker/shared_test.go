// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/vmm/cuda"
)

// mapped is how many pieces of shared memory this process maps.
func mapped(t *testing.T) int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(maps), "memfd:gpuslice-lease")
}

func TestSharedMemoryThatFailsIsNotCounted(t *testing.T) {
	const bytes = 1 << 20
	s := serve(t, Config{SharedBytes: bytes, Clients: 1})
	before := mapped(t)
	greet := func() string {
		t.Helper()
		connection, err := net.Dial("unix", s.path+"-shared")
		if err != nil {
			t.Fatal(err)
		}
		defer connection.Close()
		if _, err := fmt.Fprintf(connection, "token %d\n", bytes); err != nil {
			t.Fatal(err)
		}
		answer, err := bufio.NewReader(connection).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	s.do(func() { s.device.fails["Pin"] = failing("cuMemHostRegister", cuda.OutOfMemory) })
	for range 3 { // the second would not fit if the first still counted
		if answer := greet(); !strings.HasPrefix(answer, "error ") || strings.Contains(answer, "do not fit") {
			t.Errorf("the driver pins nothing: %q", answer)
		}
	}
	if s.mutex.Lock(); s.sharedBytes != 0 {
		t.Errorf("%d bytes are counted", s.sharedBytes)
	}
	s.mutex.Unlock()
	if now := mapped(t); now != before {
		t.Errorf("%d mappings, and %d before", now, before)
	}
	s.do(func() { delete(s.device.fails, "Pin") })
	if answer := greet(); !strings.HasPrefix(answer, "ok ") {
		t.Errorf("when the driver pins again: %q", answer)
	}
}

func TestSharedMemoryThatCannotBeMadeIsNotCounted(t *testing.T) {
	s := serve(t, Config{SharedBytes: 1 << 63, Clients: 1})
	if _, err := s.sharedMemory("token 9223372036854775808"); err == nil || s.sharedBytes != 0 {
		t.Errorf("%v, and %d bytes are counted", err, s.sharedBytes)
	}
	for greeting, want := range map[string]string{"other 1": "token", "token 0": "number", "token x": "number", "token": "number"} {
		if _, err := s.sharedMemory(greeting); err == nil || !strings.Contains(err.Error(), want) || s.sharedBytes != 0 {
			t.Errorf("%q: %v, and %d bytes are counted", greeting, err, s.sharedBytes)
		}
	}
}
