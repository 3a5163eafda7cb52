// SPDX-License-Identifier: Apache-2.0

// Package lines limits the rate of log messages that untrusted parties can cause.
package lines

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/pace"
)

// Each message has a burst of atOnce lines, and then one line per interval.
const (
	atOnce   = 5
	interval = 10 * time.Second
)

// Bound returns log with a rate limit for each message. The attribute "suppressed" counts the lines dropped since the last one. Lines of
// slog.LevelDebug are not limited.
func Bound(log *slog.Logger) *slog.Logger {
	return slog.New(&limited{log.Handler(), &lines{byMessage: make(map[string]*line)}})
}

type limited struct {
	slog.Handler
	lines *lines
}

// lines has the limiter of each message. Messages are few, since only attributes vary.
type lines struct {
	mu        sync.Mutex
	byMessage map[string]*line
}

type line struct {
	limit      *pace.Limiter
	suppressed int
}

func (h *limited) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &limited{h.Handler.WithAttrs(attrs), h.lines}
}

func (h *limited) WithGroup(name string) slog.Handler {
	return &limited{h.Handler.WithGroup(name), h.lines}
}

func (h *limited) Handle(ctx context.Context, r slog.Record) error {
	if r.Level > slog.LevelDebug {
		suppressed, may := h.lines.take(r.Message, r.Time)
		if !may {
			return nil
		}
		if suppressed > 0 {
			r = r.Clone()
			r.AddAttrs(slog.Int("suppressed", suppressed))
		}
	}
	return h.Handler.Handle(ctx, r)
}

func (l *lines) take(message string, at time.Time) (suppressed int, may bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := l.byMessage[message]
	if of == nil {
		of = &line{limit: pace.Every(interval, atOnce)}
		l.byMessage[message] = of
	}
	if !of.limit.Allow(at) {
		of.suppressed++
		return 0, false
	}
	suppressed, of.suppressed = of.suppressed, 0
	return suppressed, true
}
