//go:build hostile

// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/api/client"
)

// userActions are those of a user limited to 2 GiB in four sessions.
func userActions(v victims) []action {
	u := newUser(v)
	return []action{
		{name: "begins and ends sessions", atLeast: 3, pause: 2 * time.Second, do: u.beginAndEnd},
		{name: "renews an own session", atLeast: 5, pause: 2 * time.Second, do: u.renews},
		{name: "asks for more than their limit", atLeast: 5, do: u.requestTooMuch},
		{name: "begins a session with a process of root's that they started", atLeast: 5, do: u.beginWithRootsProcess},
		{name: "begins a session with others' processes, for a second", atLeast: 5, do: u.beginWithOthersProcess},
		{name: "has others' processes join their session", atLeast: 5, do: u.joinOthers},
		{name: "shows wrong tokens", atLeast: 5, do: u.sendWrongTokens},
		{name: "names, ends and renews what is others'", atLeast: 5, do: u.nameOthers},
		{name: "asks for what is the operator's, and follows events", atLeast: 5, do: u.requestOperatorSettings},
		{name: "sends garbage, and asks on paths that there are not", atLeast: 5, do: u.sendGarbage},
		{name: "looks for others' directories and sockets", atLeast: 500, pause: 10 * time.Millisecond, do: u.reachOthers},
		{name: "attaches by hand to their elastic session and never counts calls, without end", atLeast: 500, do: u.floodOwnSession},
		{name: "asks for host memory for their session, without end", atLeast: 100, do: u.requestHostMemory},
		{name: "suspends a session, stops its process, and resumes it", atLeast: 1, pause: 100 * time.Millisecond, do: u.suspendAndStop},
		{name: "begins elastic sessions of the highest priority", atLeast: 5, pause: time.Second, do: u.beginWithHighestPriority},
		{name: "sends descriptors to the users' socket and to their session's", atLeast: 20, do: u.sendDescriptors},
		{name: "allocates in their session until it is refused, and is killed", atLeast: 10, do: u.allocates},
	}
}

func strangerActions(v victims) []action {
	u := newUser(v)
	return []action{
		{name: "opens more connections than allowed, and sends half a request", atLeast: 5, do: u.openTooMany},
		{name: "connects and hangs up 1,600 times, 16 at once", atLeast: 10, do: u.hangUp},
		{name: "asks 1,000 times, and reads nothing", atLeast: 5, do: u.readNothing},
		{name: "sends bodies of 8 MiB", atLeast: 5, do: u.sendMuch},
		{name: "asks for a session, without a limit", atLeast: 5, do: u.requestTooMuch},
		{name: "ends sessions with names of 255 letters", atLeast: 5, do: u.sendLongNames},
	}
}

// neighbourActions are the actions of a harmless user.
func neighbourActions(v victims) []action {
	c := client.New(v.Users)
	var lists latencies
	return []action{{name: "lists their sessions (gpuslice ps)", atLeast: 60, pause: 100 * time.Millisecond, do: func() error {
		err := lists.time(func() error { _, err := c.Slices(context.Background()); return err })
		if quick := lists.at(5); quick > allowedTime {
			return harmf("the user waits for %v or longer 19 times of 20", quick)
		}
		return err
	}, note: lists.String}}
}

// subordinateActions are those of 200 users in a user's namespace.
func subordinateActions(v victims) []action {
	u := newUser(v)
	return []action{
		{name: "asks for sessions as each of 200 users of a user namespace", atLeast: 10, do: u.asEach(u.requestTooMuch)},
		{name: "shows wrong tokens as each of them", atLeast: 10, do: u.asEach(u.sendWrongTokens)},
		{name: "opens connections as each of them", atLeast: 20, pause: 20 * time.Millisecond, do: u.asEach(u.openOne)},
	}
}

type user struct {
	victims
	turns chan struct{} // limits the user's connections
	names atomic.Uint64
	turn  atomic.Uint64 // selects among alternating requests

	// The user's long-lived session, which starts with this program.
	mu    sync.Mutex
	own   api.RegisterReply
	token api.Token
	roots int // pid of a process of root that the user started
}

func newUser(v victims) *user { return &user{victims: v, turns: make(chan struct{}, 6)} }

type request struct{ method, path, body string }

type answer struct {
	status int
	body   []byte
	refusal
}

type refusal = api.Error

// ask makes a request on the users' socket. No answer may name the operator's slices.
func (u *user) ask(method, path string, body []byte, token api.Token) (a answer, err error) {
	u.turns <- struct{}{}
	defer func() { <-u.turns }()
	r, err := http.NewRequest(method, "http://gpuslice"+path, bytes.NewReader(body))
	if err != nil {
		return a, err
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+string(token))
	}
	// Not by an http.Client: this thread's credentials must make the connection.
	conn, err := u.dial()
	if err != nil {
		return a, err
	}
	defer conn.Close()
	r.Close = true
	writeErr := r.Write(conn) // an answer may arrive before the whole request is read
	reply, err := http.ReadResponse(bufio.NewReader(conn), r)
	if err != nil {
		return a, errors.Join(writeErr, err)
	}
	defer reply.Body.Close()
	a.status = reply.StatusCode
	if a.body, err = io.ReadAll(reply.Body); err != nil {
		return a, err
	}
	if bytes.Contains(a.body, []byte(u.Secret)) {
		return a, harmf("%s %s is answered with what is another's: %s", method, path, a.body)
	}
	if a.status/100 != 2 {
		if err := json.Unmarshal(a.body, &a.refusal); err != nil {
			return a, fmt.Errorf("%s %s: status %d: %q", method, path, a.status, a.body)
		}
	}
	if strings.Contains(a.Message, "connections") { // rejected before it was read
		return a, &a.refusal
	}
	return a, nil
}

func (u *user) refused(method, path string, body []byte, token api.Token) error {
	a, err := u.ask(method, path, body, token)
	if err == nil && a.status/100 != 4 && a.Code != api.CodeBusy {
		return harmf("%s %s %.300s is answered with status %d: %.300s", method, path, body, a.status, a.body)
	}
	return err
}

func (u *user) session(pid int, bytes uint64, ttl time.Duration) []byte {
	body, err := json.Marshal(api.RegisterRequest{
		ID: fmt.Sprint("hostile-", u.names.Add(1)), PID: pid, Session: true, TTL: ttl,
		Quotas: []api.Quota{{Device: api.AllDevices, Bytes: bytes}},
	})
	if err != nil {
		panic(err)
	}
	return body
}

func (u *user) beginAndEnd() error {
	child := exec.Command("sleep", "600")
	if err := child.Start(); err != nil {
		return err
	}
	defer func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	}()
	a, err := u.ask("POST", "/v1/slices", u.session(child.Process.Pid, contextBytes, time.Hour), "")
	if err != nil || a.Code == api.CodeBusy {
		return err // busy
	}
	if a.status != http.StatusCreated {
		return &a.refusal
	}
	var reply api.RegisterReply
	if err := json.Unmarshal(a.body, &reply); err != nil {
		return err
	}
	if a, err = u.ask("DELETE", "/v1/slices/"+reply.Slice.ID+"?force=true", nil, ""); err == nil && a.status != http.StatusOK {
		err = &a.refusal
	}
	return err
}

func (u *user) ownSession() (reply api.RegisterReply, token api.Token, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.token != "" {
		return u.own, u.token, nil
	}
	a, err := u.ask("POST", "/v1/slices", asElastic(u.session(os.Getpid(), 1<<30, time.Hour)), "")
	if err != nil {
		return reply, "", err
	}
	if a.status != http.StatusCreated {
		return reply, "", &a.refusal
	}
	if err := json.Unmarshal(a.body, &reply); err != nil {
		return reply, "", err
	}
	text, err := os.ReadFile(filepath.Join(reply.Dir, api.TokenName))
	if err != nil {
		return reply, "", err
	}
	if _, token, err = api.ParseTokenFile(string(text)); err == nil {
		u.own, u.token = reply, token
	}
	return reply, token, err
}

func (u *user) renews() error {
	s, _, err := u.ownSession()
	if err != nil {
		return err
	}
	a, err := u.ask("POST", "/v1/slices/"+s.Slice.ID+"/renew", []byte(`{"ttl":3600000000000}`), "")
	if err == nil && a.status != http.StatusOK && a.Code != api.CodeBusy {
		err = &a.refusal
	}
	return err
}

func (u *user) beginWithHighestPriority() error {
	body, err := json.Marshal(api.RegisterRequest{
		ID: fmt.Sprint("hostile-", u.names.Add(1)), PID: os.Getpid(), Session: true, TTL: time.Second, Elastic: true, Priority: api.MaxPriority,
		Quotas: []api.Quota{{Device: api.AllDevices, Bytes: contextBytes}},
	})
	if err != nil {
		return err
	}
	return u.refused("POST", "/v1/slices", body, "")
}

// inSession has a program of CUDA in a session of its own, until end.
func (u *user) inSession(elastic bool) (w *worker, path string, end func(), err error) {
	cmd := exec.Command("/bin/sh", "-c", `read library && read dir && LD_PRELOAD=$library `+api.DirEnv+`=$dir exec "$0"`, filepath.Join(u.Programs, "worker"))
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, "", nil, err
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, "", nil, err
	}
	w = &worker{cmd: cmd, in: in, lines: bufio.NewReader(out)}
	end = w.kill
	defer func() {
		if err != nil {
			end()
		}
	}()
	body := u.session(cmd.Process.Pid, 256<<20, time.Minute)
	if elastic {
		body = asElastic(u.session(cmd.Process.Pid, 512<<20, time.Minute))
	}
	a, err := u.ask("POST", "/v1/slices", body, "")
	if err == nil && a.status != http.StatusCreated {
		err = &a.refusal
	}
	var s api.RegisterReply
	if err == nil {
		err = json.Unmarshal(a.body, &s)
	}
	if err != nil {
		return w, "", end, err
	}
	path = "/v1/slices/" + s.Slice.ID
	end = func() {
		_, _ = u.ask("DELETE", path+"?force=true", nil, "")
		w.kill()
	}
	w.writeLine("%s\n%s", s.Library, filepath.Join(s.Dir, "bind"))
	if said := w.readLine(); !strings.HasPrefix(said, "ready ") {
		return w, path, end, fmt.Errorf("a program of CUDA begins with %q", said)
	}
	if got := w.ask("alloc 0 %d 0", 64<<20); !strings.HasPrefix(got, "ok") {
		return w, path, end, fmt.Errorf("it allocates: %s", got)
	}
	return w, path, end, nil
}

func asElastic(body []byte) []byte {
	return bytes.Replace(body, []byte("{"), []byte(`{"elastic":true,`), 1)
}

// suspendAndStop has its own session: a suspended one would stop the other actions.
func (u *user) suspendAndStop() error {
	w, path, end, err := u.inSession(false)
	if err != nil {
		return err
	}
	defer end()
	suspended := make(chan error, 1)
	go func() {
		_, err := u.ask("POST", path+"/suspend", nil, "")
		suspended <- err
	}()
	if u.names.Add(1)%2 == 0 {
		time.Sleep(20 * time.Millisecond)
	}
	_ = w.cmd.Process.Signal(unix.SIGSTOP)
	_, err = u.ask("POST", path+"/resume", nil, "")
	return errors.Join(err, <-suspended)
}

func (u *user) sendDescriptors() error {
	s, _, err := u.ownSession()
	if err != nil {
		return err
	}
	c := &containerActor{socket: filepath.Join(s.Dir, "bind", api.AttachSocketName)}
	if err := c.sendDescriptors(); err != nil {
		return err
	}
	u.turns <- struct{}{}
	defer func() { <-u.turns }()
	return floodWithDescriptors(u.Users)
}

// floodWithDescriptors sends one descriptor with each of 64 parts of a request that never ends.
func floodWithDescriptors(path string) error {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetWriteDeadline(time.Now().Add(time.Second))
	for range 64 {
		if _, _, err = conn.WriteMsgUnix([]byte("x"), unix.UnixRights(0), nil); err != nil {
			break
		}
	}
	for _, expected := range []error{unix.EPERM, unix.EPIPE, unix.ECONNRESET} {
		err = ignoring(err, expected)
	}
	return err
}

func (u *user) requestTooMuch() error {
	return u.refused("POST", "/v1/slices", u.session(os.Getpid(), 3<<30, 0), "")
}

// rootsProcess returns a process of root that the user started, as sudo does.
func (u *user) rootsProcess() (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.roots == 0 {
		cmd := exec.Command(filepath.Join(u.Programs, "sudo"))
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			return 0, err
		}
		if said, err := bufio.NewReader(out).ReadString('\n'); said != "root\n" {
			return 0, fmt.Errorf("the set-user-ID program says %q: %w", said, err)
		}
		u.roots = cmd.Process.Pid
		go func() {
			_ = cmd.Wait()
			u.mu.Lock()
			defer u.mu.Unlock()
			u.roots = -1
		}()
	}
	if u.roots < 0 {
		return 0, harmf("the process of root's was ended")
	}
	return u.roots, nil
}

func (u *user) beginWithRootsProcess() error {
	pid, err := u.rootsProcess()
	if err != nil {
		return err
	}
	if err := unix.Kill(pid, 0); err != unix.EPERM {
		return fmt.Errorf("the user's own kill of root's process: %v", err)
	}
	return u.refused("POST", "/v1/slices", u.session(pid, contextBytes, time.Second), "")
}

func (u *user) other() int {
	pids := append([]int{1}, u.PIDs...)
	return pids[int(u.names.Add(1))%len(pids)]
}

func (u *user) beginWithOthersProcess() error {
	return u.refused("POST", "/v1/slices", u.session(u.other(), contextBytes, time.Second), "")
}

func (u *user) joinOthers() error {
	s, token, err := u.ownSession()
	if err != nil {
		return err
	}
	pid := u.other()
	if u.names.Load()%2 == 0 {
		if pid, err = u.rootsProcess(); err != nil {
			return err
		}
	}
	return u.refused("POST", "/v1/slices/"+s.Slice.ID+"/join", fmt.Appendf(nil, `{"pid":%d}`, pid), token)
}

func (u *user) sendWrongTokens() error {
	b := make([]byte, 32)
	_, _ = rand.Read(b)
	return u.refused("POST", "/v1/slices/"+u.ID+"/renew", []byte(`{"ttl":1000000000}`), api.Token(hex.EncodeToString(b)))
}

// nameOthers: requests about others reveal nothing, not even their existence.
func (u *user) nameOthers() error {
	requests := []request{
		{"GET", "/v1/slices/" + u.ID, ""},
		{"DELETE", "/v1/slices/" + u.ID + "?force=true", ""},
		{"POST", "/v1/slices/" + u.ID + "/renew", `{"ttl":1000000000}`},
	}
	if n := int(u.turn.Add(1)) % (1 + len(requests)); n < len(requests) {
		return u.refused(requests[n].method, requests[n].path, []byte(requests[n].body), "")
	}
	a, err := u.ask("GET", "/v1/slices", nil, "")
	if err == nil && bytes.Contains(a.body, []byte(u.ID)) {
		err = harmf("the user is shown another's data: %s", a.body)
	}
	return err
}

func (u *user) requestOperatorSettings() error {
	if conn, err := net.Dial("unix", u.Control); err == nil {
		conn.Close()
		return harmf("the user connected to the control socket")
	}
	requests := []request{
		{"GET", "/v1/events?follow=true", ""},
		{"GET", "/v1/health", ""},
		{"GET", "/v1/devices", ""},
		{"GET", "/v1/limits?uid=0", ""},
		{"PATCH", "/v1/slices/" + u.ID, `{"quotas":[{"device":"*","bytes":1}]}`},
		{"PUT", "/v1/pools/hostile", `{"quotas":[{"device":"*","bytes":1}]}`},
		{"DELETE", "/v1/pools/hostile", ""},
	}
	r := requests[int(u.turn.Add(1))%len(requests)]
	return u.refused(r.method, r.path, []byte(r.body), "")
}
