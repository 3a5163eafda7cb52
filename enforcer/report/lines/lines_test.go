// SPDX-License-Identifier: Apache-2.0

package lines

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/test/must"
)

func TestEachMessageHasFewLinesInTheLog(t *testing.T) {
	var out bytes.Buffer
	log := Bound(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})).With("slice", "s"))
	at := time.Now()
	say := func(level slog.Level, message string, times int) {
		for i := range times {
			r := slog.NewRecord(at, level, message, 0)
			r.AddAttrs(slog.Int("pid", i))
			must.Do(t, log.With("of", "it").Handler().Handle(context.Background(), r))
		}
	}
	lines := func(message string) int { return strings.Count(out.String(), `msg="`+message) }
	say(slog.LevelWarn, "no place", 10000)
	say(slog.LevelError, "a fault", 2)
	say(slog.LevelDebug, "a detail", 100)
	if w, e, d := lines("no place"), lines("a fault"), lines("a detail"); w != 5 || e != 2 || d != 100 {
		t.Errorf("%d warnings, %d errors, %d details", w, e, d)
	}
	out.Reset()
	at = at.Add(interval)
	say(slog.LevelWarn, "no place", 3)
	if got := out.String(); lines("no place") != 1 || !strings.Contains(got, "suppressed=9995") || !strings.Contains(got, "slice=s") || !strings.Contains(got, "pid=0") {
		t.Errorf("%s", got)
	}
	out.Reset()
	at = at.Add(time.Hour)
	say(slog.LevelWarn, "no place", 1)
	say(slog.LevelWarn, "no place", 1)
	if strings.Count(out.String(), "suppressed=2") != 1 || lines("no place") != 2 {
		t.Errorf("%s", out.String())
	}
}
