// SPDX-License-Identifier: Apache-2.0

package hook_test

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/must"
)

// enforcer is a fake of the enforcer's API for hooks. It creates slice directories as the real one, and records requests.
type enforcer struct {
	dir     string // parent of all its directories
	config  string // path of the configuration file
	library string

	mu         sync.Mutex
	generation uint64
	slices     map[string]api.RegisterReply
	registered []api.RegisterRequest
	released   []string
}

func startEnforcer(t testing.TB) *enforcer {
	t.Helper()
	e := newEnforcer(t)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/slices", e.register)
	mux.HandleFunc("DELETE /v1/slices/{id}", e.release)
	e.serve(t, mux)
	return e
}

// newEnforcer creates the directory and the configuration, without a socket.
func newEnforcer(t testing.TB) *enforcer {
	t.Helper()
	dir := t.TempDir()
	e := &enforcer{
		dir: dir, config: filepath.Join(dir, "config.toml"), library: filepath.Join(dir, "libgpuslice.so.1"),
		slices: make(map[string]api.RegisterReply),
	}
	write(t, e.library, "an interceptor")
	write(t, e.config, e.configText())
	mkdir(t, filepath.Join(dir, "run", "slices"))
	return e
}

func (e *enforcer) socket() string { return filepath.Join(e.dir, "run", "s") }

func (e *enforcer) configText() string {
	return "[enforcer]\nsocket = " + strconv.Quote(e.socket()) + "\nrun_dir = " + strconv.Quote(filepath.Dir(e.socket())) + "\n"
}

func (e *enforcer) serve(t testing.TB, h http.Handler) {
	t.Helper()
	l := must.Get(net.Listen("unix", e.socket()))(t)
	server := &http.Server{Handler: h}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
}

func (e *enforcer) register(w http.ResponseWriter, r *http.Request) {
	var q api.RegisterRequest
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		answer(w, 400, api.Errorf(api.CodeBadRequest, "%v", err))
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.registered = append(e.registered, q)
	if _, ok := e.slices[q.ID]; ok {
		answer(w, 409, api.ErrExists)
		return
	}
	for _, quota := range q.Quotas {
		if quota.Bytes > 80<<30 {
			answer(w, 409, api.Errorf(api.CodeQuotaExceeded, "device GPU-1 has 80GiB, less than the requested %s", api.FormatSize(quota.Bytes)))
			return
		}
	}
	e.generation++
	reply := api.RegisterReply{
		Slice:   api.Slice{ID: q.ID, Generation: e.generation, State: api.Active, Mode: q.Mode, PID: q.PID},
		Dir:     filepath.Join(e.dir, "run", "slices", strconv.FormatUint(e.generation, 10)),
		Library: e.library,
	}
	bind := filepath.Join(reply.Dir, "bind")
	for _, err := range []error{
		os.MkdirAll(bind, 0o755),
		os.WriteFile(filepath.Join(bind, api.LibraryName), nil, 0o644),
		os.WriteFile(filepath.Join(bind, "marker"), []byte(q.ID), 0o644),
	} {
		if err != nil {
			answer(w, 500, api.Errorf(api.CodeInternal, "%v", err))
			return
		}
	}
	e.slices[q.ID] = reply
	answer(w, 200, reply)
}

func (e *enforcer) release(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	id := r.PathValue("id")
	reply, ok := e.slices[id]
	generation, _ := strconv.ParseUint(r.FormValue("generation"), 10, 64)
	if !ok || generation != 0 && generation != reply.Slice.Generation {
		answer(w, 404, api.ErrNotFound)
		return
	}
	os.RemoveAll(reply.Dir)
	delete(e.slices, id)
	e.released = append(e.released, id)
	reply.Slice.State = api.Released
	answer(w, 200, reply.Slice)
}

func (e *enforcer) active() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.slices)
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(body)
}
