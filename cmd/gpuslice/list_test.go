// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/api/server"
)

// holds is an enforcer with these slices. It carries out requests for one of them.
type holds struct {
	server.Service
	all []api.Slice
}

func (h holds) Info(context.Context) (api.Info, error) {
	return api.Info{Version: "9", Driver: "580.1"}, nil
}

func (h holds) Slices(context.Context) ([]api.Slice, error) { return h.all, nil }

func (h holds) SlicesWithCommands(context.Context) ([]api.Slice, error) { return h.all, nil }

func (h holds) Released(context.Context) ([]api.Slice, error) { return nil, nil }

func (h holds) Slice(_ context.Context, id string) (api.Slice, error) {
	if i := slices.IndexFunc(h.all, func(s api.Slice) bool { return s.ID == id }); i >= 0 {
		return h.all[i], nil
	}
	return api.Slice{}, api.Errorf(api.CodeNotFound, "there is no slice %s", id)
}

func (h holds) Release(ctx context.Context, id string, _ uint64, _ bool) (api.Slice, error) {
	return h.Slice(ctx, id)
}

func (h holds) Change(ctx context.Context, id string, _ api.ChangeRequest) (api.Slice, error) {
	return h.Slice(ctx, id)
}

func (h holds) Suspend(ctx context.Context, id string) (api.Slice, error) { return h.Slice(ctx, id) }

func (h holds) Resume(ctx context.Context, id string) (api.Slice, error) { return h.Slice(ctx, id) }

func (h holds) History(context.Context) (runs []api.Run, err error) {
	for _, s := range h.all {
		runs = append(runs, api.Run{Slice: s.ID, Names: s.Names, Devices: []api.RunUse{{Device: cardA, Peak: 1}}})
	}
	return runs, nil
}

func (h holds) Renew(ctx context.Context, id string, _ api.RenewRequest) (api.Slice, error) {
	return h.Slice(ctx, id)
}

func TestEveryCommandAcceptsIDsAsPsShowsThem(t *testing.T) {
	one, two := "0123456789ab"+strings.Repeat("0", 52), "0123456789ff"+strings.Repeat("0", 52)
	socket := listen(t, holds{all: []api.Slice{{ID: one}, {ID: two}, {ID: "job-10"}, {ID: "job-" + strings.Repeat("n", 100)}}})
	shown := "job-nnnnnnnnnnnnnnn…nnnnnnnnnnnnnnnnnnnn"
	for _, command := range [][]string{
		{"inspect", "ID", "--json"}, {"set", "ID", "--ttl", "1h", "--json"}, {"renew", "ID", "1h", "--json"}, {"release", "ID", "--json"},
	} {
		ask := func(id string) (got, said string, code int) {
			args := slices.Clone(command)
			args[1] = id
			out, said, code := cliRun(append([]string{"--socket", socket}, args...)...)
			var s api.Slice
			if code == 0 && json.Unmarshal([]byte(out), &s) != nil {
				t.Errorf("%s %s: %s", command[0], id, out)
			}
			return s.ID, said, code
		}
		for given, want := range map[string]string{one: one, "0123456789ab": one, "0123456789f": two, "job-10": "job-10", shown: "job-" + strings.Repeat("n", 100)} {
			if got, said, code := ask(given); code != 0 || got != want {
				t.Errorf("%s %s: %q, %s", command[0], given, got, said)
			}
		}
		if _, said, code := ask("0123456789"); code != 1 || !strings.Contains(said, `"0123456789" names 2 slices (`+one+", "+two+")") || strings.Contains(said, "\n") {
			t.Errorf("%s of a prefix of two ids: %d, %s", command[0], code, said)
		}
		if _, said, code := ask("none"); code != 1 || said != "there is no slice none: `gpuslice ps` lists what there is" {
			t.Errorf("%s of none: %d, %s", command[0], code, said)
		}
	}
	// job-1 has ended: releasing it again must not release job-10.
	if _, said, code := cliRun("--socket", socket, "release", "--force", "job-1"); code != 1 || !strings.HasPrefix(said, "there is no slice job-1:") {
		t.Errorf("%d, %s", code, said)
	}
}

// Each command with an ID accepts the names that an engine gives a container. A name of two containers gives an error with both.
func TestEveryCommandThatTakesAnIDTakesTheNamesOfAContainer(t *testing.T) {
	const id, other = "0123456789ab", "fedcba987654"
	in := func(id, pod string) api.Slice {
		return api.Slice{ID: id, Names: api.Names{Name: "main", Pod: pod, Namespace: "ml", Image: "vllm:" + pod}}
	}
	now := time.Now()
	all := holds{all: []api.Slice{in(id, "llm-0"), in(other, "llm-1")}}
	events, eventsSocket := serve(t)
	for _, s := range all.all {
		events.Append(s.ID, api.Event{Kind: api.EventRegistered, Slice: s.ID, Names: s.Names, Time: now})
	}
	socket := listen(t, all)
	for _, command := range []string{
		"inspect NAME --json", "set NAME --ttl 1h --json", "renew NAME 1h --json", "suspend NAME --json", "resume NAME --json", "release NAME --json",
		"explain NAME --json", "recommend NAME -o json", "events NAME --json",
	} {
		names := []string{id, "llm-0/main", "ml/llm-0/main", "llm-0", "ml/llm-0", "vllm:llm-0"}
		socket := socket
		switch {
		case strings.HasPrefix(command, "release"):
			names = names[:3] // it requires the container itself
		case strings.HasPrefix(command, "events"):
			socket = eventsSocket
		}
		ask := func(name string) (out, said string, code int) {
			return cliRun(append([]string{"--socket", socket}, strings.Fields(strings.Replace(command, "NAME", name, 1))...)...)
		}
		for _, name := range names {
			if out, said, code := ask(name); code != 0 || !strings.Contains(out, id) || strings.Contains(out, other) {
				t.Errorf("%s of %s: %d, %s%s", command, name, code, said, out)
			}
		}
		out, said, code := ask("main")
		if strings.HasPrefix(command, "events") { // it shows both
			said, code = out, 1
		}
		if code != 1 || !strings.Contains(said, id) || !strings.Contains(said, other) {
			t.Errorf("%s of two: %d, %s", command, code, said)
		}
	}
}

func TestFlagsBehindTheArgumentCountAsThoseBeforeIt(t *testing.T) {
	socket := listen(t, holds{all: []api.Slice{{ID: "a"}}})
	for before, behind := range map[string]string{
		"inspect --json a":         "inspect a --json",
		"release --json --force a": "release a --force --json",
		"renew --json a 1h":        "renew a 1h --json",
		"set --json --ttl 1h a":    "set a --ttl 1h --json",
		"inspect --help":           "inspect a --help",
		"release -h":               "release a --force -h", // and nothing is released
		"events --help":            "events a --help",
		"pool delete --help":       "pool delete a --help",
		"install --help":           "install docker --dry-run --help",
		"pool show --help":         "pool show p --json -h",
		"set --json --ttl 1h -- a": "set --json --ttl 1h a --",
	} {
		wanted, _, one := cliRun(append([]string{"--socket", socket}, strings.Fields(before)...)...)
		if got, said, two := cliRun(append([]string{"--socket", socket}, strings.Fields(behind)...)...); one != 0 || two != 0 || got != wanted || got == "" {
			t.Errorf("%s: %d, %s%s\n%s: %d, %s", behind, two, got, said, before, one, wanted)
		}
	}
	if _, said, code := cliRun("--socket", socket, "inspect", "a", "--jsn"); code != 2 || !strings.HasSuffix(said, "--jsn: did you mean --json? (see `gpuslice inspect --help`)") {
		t.Errorf("%d, %s", code, said)
	}
}

func TestTheVersionsAreAlsoJSON(t *testing.T) {
	for socket, want := range map[string]versions{
		listen(t, holds{}):    {Version: api.Version, Enforcer: &api.Info{Version: "9", Driver: "580.1"}},
		t.TempDir() + "/none": {Version: api.Version},
	} {
		out, said, code := cliRun("--socket", socket, "version", "--json")
		var got versions
		if err := json.Unmarshal([]byte(out), &got); err != nil || code != 0 || !reflect.DeepEqual(got, want) {
			t.Errorf("%v, %d: %s%s", err, code, out, said)
		}
	}
	socket := listen(t, holds{})
	if out, _, _ := cliRun("--socket", socket, "version"); out != "gpuslice  "+api.Version+"\ngpusliced 9\ndriver    580.1\n" {
		t.Error(out)
	}
}
