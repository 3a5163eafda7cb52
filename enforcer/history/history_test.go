// SPDX-License-Identifier: Apache-2.0

package history

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

func open(t *testing.T, dir string) *Log {
	t.Helper()
	return Open(dir, slog.New(slog.DiscardHandler))
}

func run(slice string, began int) api.Run {
	return api.Run{
		Slice: slice, Began: time.Unix(int64(began), 0).UTC(),
		Devices: []api.RunUse{{Device: "GPU-1", Peak: uint64(began), Needed: 7}},
		Refusal: &api.Refusal{Device: "GPU-1", Requested: 5, Holders: []api.Holder{{PID: 3, Used: 1}}},
	}
}

func TestHistorySurvivesARestart(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir)
	l.Put("a", run("a", 1))
	l.Put("b", run("b", 2))
	again := run("a", 1)
	again.Devices[0].Peak = 99
	l.Put("a", again)
	l.Write()
	next := open(t, dir)
	if got, want := next.All(), []api.Run{again, run("b", 2)}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	if got, kept := next.Of("a", time.Unix(1, 0)); !kept || got.Devices[0].Peak != 99 {
		t.Errorf("%+v, %v", got, kept)
	}
	next.End(map[string]time.Time{"b": time.Unix(2, 0), "a": time.Unix(9, 0)})
	if all := next.All(); all[0].Ended == nil || all[1].Ended != nil {
		t.Errorf("%+v", all)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*.new")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestAFullHistoryDropsTheOldestRunOfTheLargestUser(t *testing.T) {
	l := open(t, "")
	for i := range 3 {
		l.Put(fmt.Sprint("container ", i), run("c", i))
	}
	for i := range 2 * maxRuns {
		l.Put("user 1", run("s", i))
	}
	all := l.All()
	must.Len(t, all, maxRuns, "kept")
	if all[0].Slice != "c" || all[2].Slice != "c" || all[len(all)-1].Began.Unix() != 2*maxRuns-1 || all[3].Began.Unix() != maxRuns+3 {
		t.Errorf("kept: %+v, then %+v", all[:3], all[3])
	}
}

func TestAHistoryThatCannotBeReadIsSetAside(t *testing.T) {
	for what, text := range map[string]string{"half": `[{"source":`, "empty": "", "another thing": `{"pools":1}`} {
		dir := t.TempDir()
		path := filepath.Join(dir, Name)
		must.Do(t, os.WriteFile(path, []byte(text), 0o600))
		l := open(t, dir)
		l.Put("a", run("a", 1))
		l.Write()
		expect.Equal(t, len(open(t, dir).All()), 1, what, "runs")
		expect.Equal(t, string(must.Get(os.ReadFile(path+".damaged"))(t)), text, what)
	}
}
