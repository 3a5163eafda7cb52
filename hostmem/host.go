// SPDX-License-Identifier: Apache-2.0

package hostmem

import (
	"context"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"
)

// Meminfo returns the kernel's estimate of the bytes available without swapping, and the host's total.
func Meminfo() (available, total uint64, known bool) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, 0, false
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "MemTotal:" && f[0] != "MemAvailable:" {
			continue
		}
		kib, err := strconv.ParseUint(f[1], 10, 54)
		if err != nil {
			return 0, 0, false
		}
		if f[0] == "MemAvailable:" { // follows MemTotal
			return kib << 10, total, true
		}
		total = kib << 10
	}
	return 0, 0, false
}

// keepPace is the time between checks that the holder is alive.
const keepPace = 10 * time.Second

// Keep keeps a holder running until ctx ends: a Keeper's PID starts one if there is none.
func Keep(ctx context.Context, k interface{ PID() (int, error) }, log *slog.Logger) {
	ticker := time.NewTicker(keepPace)
	defer ticker.Stop()
	for said := ""; ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now := ""
		if _, err := k.PID(); err != nil {
			now = err.Error()
		}
		if now != said && now != "" {
			log.Error("processes that move their own memory get no host memory", "err", now)
		}
		said = now
	}
}
