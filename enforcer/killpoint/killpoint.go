// SPDX-License-Identifier: Apache-2.0

// Package killpoint lets a fault test kill the enforcer, the lease service, a broker or a client at a named point, so that a fault comes when it should
// and not when a sleep happens to end. It is compiled in always, so that what is tested is what is shipped; a
// point that is not asked for costs one comparison. It must never do anything but die.
package killpoint

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
)

// Env asks for a death: "name", or "name:n" for the n-th passing.
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

// Pass kills the process with SIGKILL if it was asked to die here.
func Pass(name string) {
	w := armed()
	if w == nil || w.name != name || w.left.Add(-1) != 0 {
		return
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // the signal is on its way; no further step may be taken
}
