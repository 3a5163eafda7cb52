// SPDX-License-Identifier: Apache-2.0

// Package killpoint lets a fault test kill the enforcer, the lease service, a broker or a client at a named point in the code, independent
// of timing. It is compiled into release builds, so tests run the code that ships. A point that is not armed costs one comparison. The
// package must never do anything but kill its process.
package killpoint

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
)

// Env is the environment variable that arms a point: "name", or "name:n" for the n-th pass.
const Env = "GPUSLICE_KILLPOINT"

type wanted struct {
	name string
	left atomic.Int64
}

var armed = sync.OnceValue(func() *wanted {
	value := os.Getenv(Env)
	if value == "" {
		return nil
	}
	w := &wanted{name: value}
	w.left.Store(1)
	if name, count, ok := strings.Cut(value, ":"); ok {
		if n, err := strconv.ParseInt(count, 10, 64); err == nil {
			w.name = name
			w.left.Store(n)
		}
	}
	return w
})

// Pass kills the process with SIGKILL if the point is armed.
func Pass(name string) {
	w := armed()
	if w == nil || w.name != name || w.left.Add(-1) != 0 {
		return
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // take no further step until the signal arrives
}
