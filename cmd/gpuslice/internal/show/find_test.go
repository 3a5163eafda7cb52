// SPDX-License-Identifier: Apache-2.0

package show

import (
	"strings"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
)

func TestSliceIsFoundByItsEnginesNames(t *testing.T) {
	uid := uint32(1000)
	hex := func(c string) string { return strings.Repeat(c, 64) }
	in := func(c, pod, name string) api.Slice {
		return api.Slice{ID: hex(c), Container: hex(c), Names: api.Names{Name: name, Pod: pod, Namespace: "team", Image: "cuda:" + c}}
	}
	all := []api.Slice{
		in("a", "train-0", "main"), in("b", "train-1", "main"), in("c", "train-1", "log"),
		{ID: hex("d"), Names: api.Names{Name: "web"}, PoolLabels: []string{"team/claim"}},
		{ID: hex("e"), Names: api.Names{Name: "run-1"}}, {ID: "run-1"}, {ID: "run-12"}, // a container with the name of a session
		{ID: hex("f"), Names: api.Names{Name: strings.Repeat("d", 12)}}, // with a prefix of another container's id as name
		{ID: "web-2"}, {ID: "u1000-job", UID: &uid}, {ID: "u7-job", UID: new(uint32)}, {ID: "u1000-job-2", UID: &uid},
		{ID: "lease-9f3c5e2a9b8d7614"}, {ID: "lease-9f3d000000000000"}, {ID: "lease-team"},
	}
	for given, want := range map[string]struct{ seen, ended string }{
		"log":               {hex("c"), hex("c")},
		"main":              {"", ""},
		"train-0/main":      {hex("a"), hex("a")},
		"team/train-1/main": {hex("b"), hex("b")},
		"train-0":           {hex("a"), ""}, // a pod is not its container
		"team/train-0":      {hex("a"), ""},
		"team/train-1":      {"", ""},
		"team":              {"", ""},
		"cuda:a":            {hex("a"), ""},
		"team/claim":        {hex("d"), ""},
		"job":               {"u1000-job", "u1000-job"}, // as its user named it
		"lease-9f3c":        {"lease-9f3c5e2a9b8d7614", "lease-9f3c5e2a9b8d7614"},
		"9f3d":              {"lease-9f3d000000000000", "lease-9f3d000000000000"},
		"lease-9f3":         {"", ""},
		"lease-":            {"", ""},
		"lease-te":          {"lease-team", ""},
		"web":               {hex("d"), hex("d")}, // a name precedes a prefix of a name chosen by a person
		"run-1":             {"run-1", "run-1"},   // an id precedes all others
		"dddddddddddd":      {"", ""},
		"ddddddddddddd":     {hex("d"), hex("d")},
		"":                  {"", ""},
		"nobody/at/all":     {"", ""},
	} {
		if id, err := Find(all, given, Names); id != want.seen || (err == nil) != (want.seen != "") {
			t.Errorf("to see %q: %q, %v", given, id, err)
		}
		if id, err := Find(all, given, Means); id != want.ended || (err == nil) != (want.ended != "") {
			t.Errorf("to end %q: %q, %v", given, id, err)
		}
	}
	_, err := Find(all, "main", Names)
	if want := `"main" names 2 slices (` + hex("a") + " team/train-0/main, " + hex("b") + " team/train-1/main): give more of it"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	for range 40 {
		all = append(all, in("9", "x", "main"))
	}
	if _, err := Find(all, "main", Names); err == nil || strings.Count(err.Error(), "team/") != namedAtMost || !strings.Contains(err.Error(), ", 26 more)") {
		t.Errorf("got %v", err)
	}
}

func TestNameFindsTheLastRun(t *testing.T) {
	ended := time.Unix(9, 0)
	runs := []api.Run{
		{Slice: "1", Names: api.Names{Name: "train"}, Ended: &ended}, {Slice: "2", Names: api.Names{Name: "train"}, Ended: &ended},
		{Slice: "3", Names: api.Names{Name: "web"}}, {Slice: "4", Names: api.Names{Name: "web"}, Ended: &ended},
		{Slice: "5", Names: api.Names{Name: "main", Pod: "a"}, Ended: &ended}, {Slice: "6", Names: api.Names{Name: "main", Pod: "b"}, Ended: &ended},
	}
	for given, want := range map[string]string{"train": "2", "web": "3", "main": "", "a/main": "5"} {
		if run, err := FindRun(runs, given); run.Slice != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v", given, run.Slice, err)
		}
	}
}
