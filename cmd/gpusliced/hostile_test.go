// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/metrics"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/daemon/audit"
	"github.com/gpuslice/gpuslice/test/await"
)

const (
	asks  = "GPUSLICE_TEST_ASKS"       // path of the users' socket: run as one of its users
	times = "GPUSLICE_TEST_TIMES"      // number of requests
	with  = "GPUSLICE_TEST_BODY_BYTES" // their size
)

// Users that exist on each host. The latter has a limit.
const stranger, limited = 65534, 8

// flood sends requests that are rejected to the users' socket, as fast as it can, until their number is answered.
func flood(socket string) {
	var n, size int
	_, _ = fmt.Sscan(os.Getenv(times), &n)
	_, _ = fmt.Sscan(os.Getenv(with), &size)
	const quota = `{},`
	body := `{"id":"x","pid":1,"session":true,"quotas":[` + strings.Repeat(quota, size/len(quota)) + `{"percent":1}]}`
	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
		MaxConnsPerHost: 6, MaxIdleConnsPerHost: 6,
	}}
	var answered atomic.Int64
	var all sync.WaitGroup
	for range 6 {
		all.Go(func() {
			for i := 0; answered.Load() < int64(n); i++ {
				method, target, sent := "POST", "/v1/slices", body
				if size == 0 && i%2 == 0 {
					method, target, sent = "DELETE", "/v1/slices/"+strings.Repeat("x", 200), ""
				}
				request, err := http.NewRequest(method, "http://gpuslice"+target, strings.NewReader(sent))
				if err != nil {
					panic(err)
				}
				answer, err := client.Do(request)
				if err != nil { // the server may close the connection, as it does with each beyond the user's pace
					continue
				}
				_, _ = io.Copy(io.Discard, answer.Body)
				answer.Body.Close()
				if answer.StatusCode/100 == 4 {
					answered.Add(1)
				}
			}
		})
	}
	all.Wait()
	fmt.Println(answered.Load(), "refused")
}

// usersProgram returns a copy of this program that every user can run.
func usersProgram(t *testing.T) string {
	t.Helper()
	program, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	dir := short(t)
	copied := filepath.Join(dir, "user")
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(copied, program, 0o755)); err != nil {
		t.Fatal(err)
	}
	return copied
}

// floodAs runs flood as another user, and returns the number of rejected requests.
func floodAs(t *testing.T, program string, uid uint32, socket string, n, size int) (refused int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "-test.run=^"+t.Name()+"$")
	cmd.Env = []string{asks + "=" + socket, fmt.Sprint(times, "=", n), fmt.Sprint(with, "=", size)}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	cmd.Stderr = t.Output() // net/http logs rejections that come before a request
	out, err := cmd.Output()
	if _, scanned := fmt.Sscan(string(out), &refused); err != nil || scanned != nil || refused < n {
		t.Errorf("uid %d: %v: %s", uid, err, out)
	}
	return refused
}

// crowded is a daemon with a users' socket and a small audit log.
func crowded(t *testing.T) *daemon {
	t.Helper()
	d := newDaemon(t, fmt.Sprintf("[enforcer]\nnvml = \"off\"\ngroup = \"no-such-group\"\n"+
		"[audit]\nfile = \"DIR/audit.jsonl\"\nmax_size = \"64KiB\"\nkeep = 1\n"+
		"[sessions]\nsocket = \"DIR/session.sock\"\n[[sessions.limits]]\nuser = \"%d\"\nmax_vram = \"1G\"\n", limited))
	if err := os.Chmod(d.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *daemon) entries() (all []audit.Entry) {
	d.t.Helper()
	names, err := filepath.Glob(d.path("audit.jsonl.*"))
	if err != nil {
		d.t.Fatal(err)
	}
	for _, name := range append(names, d.path("audit.jsonl")) {
		text, err := os.ReadFile(name)
		if err != nil {
			d.t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			var e audit.Entry
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				d.t.Fatalf("%v: %s", err, line)
			}
			all = append(all, e)
		}
	}
	return all
}

func TestAUsersEntriesDoNotRotateOthersAway(t *testing.T) {
	if socket := os.Getenv(asks); socket != "" {
		flood(socket)
		return
	}
	d := crowded(t)
	stop := d.begin()
	if _, err := d.client().Release(context.Background(), "of-root", 0, true); !errors.Is(err, api.ErrNotFound) {
		t.Fatal(err)
	}
	refused := map[uint32]int{}
	program := usersProgram(t)
	var all sync.WaitGroup
	var mu sync.Mutex
	for uid, n := range map[uint32]int{stranger: 400, 1: 200, 2: 200, 3: 200, 4: 200, 5: 200, limited: 400} {
		all.Go(func() {
			n := floodAs(t, program, uid, d.path("session.sock"), n, 0)
			mu.Lock()
			defer mu.Unlock()
			refused[uid] = n
		})
	}
	all.Wait()
	stop()
	root, recorded, nameless := false, map[uint32]int{}, 0
	for _, e := range d.entries() {
		n := max(1, int(e.Count))
		switch {
		case e.Slice == "of-root":
			root = e.UID != nil && *e.UID == 0 && e.Force
		case e.UID == nil:
			nameless += n
		case e.Result == audit.OK || e.Count == 0 && (e.Operation == "" || e.Code == "" || e.Message == "" || e.PID == 0):
			t.Errorf("%+v", e)
		default:
			recorded[*e.UID] += n
		}
	}
	if !root {
		t.Error("what root asked for is not in the audit log any more")
	}
	// A request is recorded even if its answer did not reach the user. Strangers beyond the listed ones are counted without their
	// uid.
	missing := -nameless
	for uid, n := range refused {
		if recorded[uid] > 0 && recorded[uid] < n || uid == limited && recorded[uid] == 0 {
			t.Errorf("%d requests of uid %d were refused: recorded are %d", n, uid, recorded[uid])
		}
		missing += n - recorded[uid]
	}
	if missing > 0 {
		t.Errorf("%v were refused, recorded are %v and %d of others: %d are missing", refused, recorded, nameless, missing)
	}
}

func TestUsersRequestsDoNotInflateTheEnforcer(t *testing.T) {
	if socket := os.Getenv(asks); socket != "" {
		flood(socket)
		return
	}
	program := usersProgram(t)
	runtime.GC() // frees the copy of the program
	d := crowded(t)
	stop := d.begin()
	ctx, cancel := context.WithCancel(context.Background())
	peak := make(chan uint64)
	go func() {
		var highest uint64
		sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		for ctx.Err() == nil {
			metrics.Read(sample)
			highest = max(highest, sample[0].Value.Uint64())
			time.Sleep(5 * time.Millisecond)
		}
		peak <- highest
	}()
	var all sync.WaitGroup
	for _, uid := range []uint32{stranger, limited} {
		all.Go(func() { floodAs(t, program, uid, d.path("session.sock"), 80, 60<<10) })
	}
	all.Wait()
	cancel()
	highest := <-peak
	stop()
	t.Logf("heap: up to %d MiB", highest>>20)
	if highest > 64<<20 {
		t.Errorf("the enforcer's heap had %d MiB", highest>>20)
	}
}
