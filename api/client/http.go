// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/advice"
)

// What is read of an answer, at most: a process that answers in the enforcer's place must not fill the memory of an OCI
// hook. A slice on 16 devices is shown in 4 KiB, so one fits many times, and a list holds some thousands, or all
// processes that a slice can have.
const (
	maxOne  = 1 << 20
	maxList = 16 << 20
)

// do sends one request and decodes the answer, of most bytes at most, into a T.
func do[T any](ctx context.Context, c *Client, method, path string, body []byte, most int64) (T, error) {
	var result T
	status, answer, err := c.exchange(ctx, method, path, body, most)
	if err != nil {
		return result, err
	}
	if status/100 != 2 {
		return result, refusal(status, answer)
	}
	if err := json.Unmarshal(answer, &result); err != nil {
		return result, fmt.Errorf("the enforcer's answer to %s %s: %w", method, path, err)
	}
	return result, nil
}

// refusal turns an error's body back into the error.
func refusal(status int, body []byte) error {
	var e api.Error
	if json.Unmarshal(body, &e) != nil || e.Code == "" {
		return api.Errorf(api.CodeInternal, "the answer with status %d is not the enforcer's: %.200q", status, body)
	}
	return &e
}

func (c *Client) exchange(ctx context.Context, method, path string, body []byte, most int64) (status int, answer []byte, err error) {
	what := method + " " + path
	var all bytes.Buffer
	all.Grow(8 << 10) // a list is some ten times that, and the buffer doubles
	if err := c.send(ctx, what, request(ctx, method, path, "1.0", body), &all, most); err != nil {
		return 0, nil, err
	}
	status, answer, err = parse(all.Bytes())
	if err != nil {
		return 0, nil, fmt.Errorf("%s on %s: %w", what, c.socket, err)
	}
	return status, answer, nil
}

// answer is one of several: its body is in the buffer that was read into.
type answer struct {
	status int
	body   []byte
}

// maxSeveral is how many questions are sent before an answer is read: they must find room in the kernel, or both sides would wait.
const maxSeveral = 128

// several asks for all of the paths, over one connection for many of them, and reads into all. Each path has an answer then.
func (c *Client) several(ctx context.Context, paths []string, all *bytes.Buffer) (answers []answer, err error) {
	all.Reset()
	for some := range slices.Chunk(paths, maxSeveral) {
		var requests []byte
		for _, path := range some[:len(some)-1] {
			requests = append(requests, request(ctx, "GET", path, "1.1", nil)...)
		}
		requests = append(requests, request(ctx, "GET", some[len(some)-1], "1.0", nil)...) // whereupon the enforcer hangs up
		begin := all.Len()
		if err := c.send(ctx, "GET "+some[0], requests, all, maxList); err != nil {
			return nil, err
		}
		rest := all.Bytes()[begin:]
		for _, path := range some {
			var a answer
			if a.status, a.body, rest, err = next(rest); err != nil {
				// Who refuses the connection answers once.
				if n := len(answers); n > 0 && answers[n-1].status/100 != 2 {
					return nil, refusal(answers[n-1].status, answers[n-1].body)
				}
				return nil, fmt.Errorf("GET %s on %s: %w", path, c.socket, err)
			}
			answers = append(answers, a)
		}
		if len(rest) > 0 {
			return nil, fmt.Errorf("%w: to %d questions there is more than was asked", errNotHTTP, len(some))
		}
	}
	return answers, nil
}

// send sends what is asked, and appends to all what is answered until the enforcer hangs up, of most bytes at most.
func (c *Client) send(ctx context.Context, what string, requests []byte, all *bytes.Buffer, most int64) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, DefaultTimeout)
		defer cancel()
	}
	conn, hangUp, err := c.dial(ctx)
	if err != nil {
		return err
	}
	defer hangUp()
	// An enforcer that refuses early (too many connections, too large) answers and closes: its answer is
	// worth more than the broken pipe.
	_, writeErr := conn.Write(requests)
	n, err := all.ReadFrom(io.LimitReader(conn, most+1))
	switch {
	case ctx.Err() != nil:
		return c.unreachable(context.Cause(ctx))
	case n > most:
		return fmt.Errorf("%w: to %s it has more than %d bytes", errNotHTTP, what, most)
	case n == 0 && errors.Join(writeErr, err) != nil:
		return c.unreachable(errors.Join(writeErr, err))
	case err != nil && !errors.Is(err, syscall.ECONNRESET):
		return fmt.Errorf("read the enforcer's answer: %w", err)
	}
	return nil
}

// dial connects, as soon as there is room for it in the kernel's queue: others may have filled it. When ctx ends, what is being written or
// read ends too.
func (c *Client) dial(ctx context.Context) (conn net.Conn, hangUp func(), err error) {
	var dialer net.Dialer
	conn, err = dialer.DialContext(ctx, "unix", c.socket)
	for ; errors.Is(err, syscall.EAGAIN) && ctx.Err() == nil; conn, err = dialer.DialContext(ctx, "unix", c.socket) {
		time.Sleep(2 * time.Millisecond)
	}
	if err != nil {
		return nil, nil, c.unreachable(err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	return conn, func() {
		stop()
		conn.Close()
	}, nil
}

// request is what is sent. A token goes along that ctx has; what is none could be more than one header.
func request(ctx context.Context, method, path, version string, body []byte) []byte {
	var r bytes.Buffer
	fmt.Fprintf(&r, "%s %s HTTP/%s\r\nHost: gpuslice\r\nUser-Agent: gpuslice/%s\r\n", method, path, version, api.Version)
	if body != nil {
		fmt.Fprintf(&r, "Content-Type: application/json\r\nContent-Length: %d\r\n", len(body))
	}
	if token := api.TokenOf(ctx); token != "" {
		if _, ok := token.Bytes(); ok {
			r.WriteString("Authorization: Bearer " + string(token) + "\r\n")
		}
	}
	r.WriteString("\r\n")
	r.Write(body)
	return r.Bytes()
}

var errNotHTTP = errors.New("the answer is not the enforcer's")

// parse takes an answer apart. A body that is shorter than announced is an error: the enforcer died in the middle.
func parse(raw []byte) (status int, body []byte, err error) {
	status, body, rest, err := next(raw)
	if err == nil && len(rest) > 0 {
		return 0, nil, fmt.Errorf("%w: it has %d bytes of %d", io.ErrUnexpectedEOF, len(body)+len(rest), len(body))
	}
	return status, body, err
}

// next is parse for the first one of several; rest are the others. One that does not say how long it is has no others after it.
func next(raw []byte) (status int, body, rest []byte, err error) {
	head, body, found := bytes.Cut(raw, []byte("\r\n\r\n"))
	first, headers, _ := strings.Cut(string(head), "\r\n")
	parts := strings.SplitN(first, " ", 3)
	if !found || len(parts) < 2 || !strings.HasPrefix(parts[0], "HTTP/1.") {
		return 0, nil, nil, fmt.Errorf("%w: %.80q", errNotHTTP, raw)
	}
	if status, err = strconv.Atoi(parts[1]); err != nil || status < 200 || status > 599 {
		return 0, nil, nil, fmt.Errorf("%w: %.80q", errNotHTTP, first)
	}
	for line := range strings.SplitSeq(headers, "\r\n") {
		name, value, _ := strings.Cut(line, ":")
		if !strings.EqualFold(name, "Content-Length") {
			continue
		}
		want, err := strconv.Atoi(strings.TrimSpace(value))
		if err != nil || want < 0 || want > len(body) {
			return 0, nil, nil, fmt.Errorf("%w: it has %d bytes of %s", io.ErrUnexpectedEOF, len(body), strings.TrimSpace(value))
		}
		return status, body[:want], body[want:], nil
	}
	return status, body, nil, nil
}

// unreachable says what to do when nobody answers.
func (c *Client) unreachable(err error) error {
	what := "why is in " + advice.Log("gpusliced")
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED):
		what = advice.Start("gpusliced")
		if _, never := os.Lstat(filepath.Dir(c.socket)); never == nil {
			return awayError{fmt.Errorf("%w on %s (%w): %s", api.ErrUnreachable, c.socket, cause(err), what)}
		}
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM): // it may well answer others
		return &DeniedError{Socket: c.socket, Err: err}
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("%w on %s: %w", api.ErrUnreachable, c.socket, err)
	}
	return fmt.Errorf("%w on %s (%w): %s", api.ErrUnreachable, c.socket, cause(err), what)
}

// awayError is of an enforcer that is not there, and was: it may be being replaced.
type awayError struct{ error }

func (e awayError) Unwrap() error { return e.error }

// MayReturn says of an error that nothing was carried out, since the enforcer is not there; but it was, since the host's boot, and may
// be being replaced.
func MayReturn(err error) bool { return errors.As(err, new(awayError)) }

// cause is what err says beyond that a socket, which the sentence names already, could not be used.
func cause(err error) error {
	var call *net.OpError
	if errors.As(err, &call) {
		err = call.Err
	}
	var system *os.SyscallError
	if errors.As(err, &system) {
		err = system.Err
	}
	return err
}
