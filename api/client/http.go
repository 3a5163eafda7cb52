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

// Maximum sizes of an answer in bytes, so that no program can fill the memory of an OCI hook. A slice on 16 devices takes 4 KiB;
// maxList fits thousands of slices, or all processes of one.
const (
	maxOne  = 1 << 20
	maxList = 16 << 20
)

// do sends one request and decodes the answer, of at most most bytes, into a T.
func do[T any](ctx context.Context, c *Client, method, path string, body []byte, maxBytes int64) (T, error) {
	var result T
	status, answer, err := c.exchange(ctx, method, path, body, maxBytes)
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

func refusal(status int, body []byte) error {
	var e api.Error
	if json.Unmarshal(body, &e) != nil || e.Code == "" {
		return api.Errorf(api.CodeInternal, "the answer with status %d is not the enforcer's: %.200q", status, body)
	}
	return &e
}

func (c *Client) exchange(ctx context.Context, method, path string, body []byte, maxBytes int64) (status int, answer []byte, err error) {
	what := method + " " + path
	var all bytes.Buffer
	all.Grow(8 << 10) // a list has about ten times that, and the buffer doubles
	if err := c.send(ctx, what, request(ctx, method, path, "1.0", body), &all, maxBytes); err != nil {
		return 0, nil, err
	}
	status, answer, err = parse(all.Bytes())
	if err != nil {
		return 0, nil, fmt.Errorf("%s on %s: %w", what, c.socket, err)
	}
	return status, answer, nil
}

// answer is one of several answers; body points into the common buffer.
type answer struct {
	status int
	body   []byte
}

// maxSeveral is the number of requests sent before an answer is read. They have to fit into the socket's buffers, or both sides
// would wait.
const maxSeveral = 128

// getAll sends a GET for each path, in groups over one connection, and reads the answers into all. On success there is one
// answer per path.
func (c *Client) getAll(ctx context.Context, paths []string, all *bytes.Buffer) (answers []answer, err error) {
	all.Reset()
	for some := range slices.Chunk(paths, maxSeveral) {
		var requests []byte
		for _, path := range some[:len(some)-1] {
			requests = append(requests, request(ctx, "GET", path, "1.1", nil)...)
		}
		requests = append(requests, request(ctx, "GET", some[len(some)-1], "1.0", nil)...) // then the enforcer closes the connection
		begin := all.Len()
		if err := c.send(ctx, "GET "+some[0], requests, all, maxList); err != nil {
			return nil, err
		}
		rest := all.Bytes()[begin:]
		for _, path := range some {
			var a answer
			if a.status, a.body, rest, err = next(rest); err != nil {
				// A rejected connection gets a single answer.
				if n := len(answers); n > 0 && answers[n-1].status/100 != 2 {
					return nil, refusal(answers[n-1].status, answers[n-1].body)
				}
				return nil, fmt.Errorf("GET %s on %s: %w", path, c.socket, err)
			}
			answers = append(answers, a)
		}
		if len(rest) > 0 {
			return nil, fmt.Errorf("%w: %d requests got more answers than that", errNotHTTP, len(some))
		}
	}
	return answers, nil
}

// send sends requests, and appends the answers to all until the enforcer closes the connection, at most most bytes.
func (c *Client) send(ctx context.Context, what string, requests []byte, all *bytes.Buffer, maxBytes int64) error {
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
	// An enforcer that rejects early (too many connections, too large) answers and closes. Its answer is more useful than the
	// broken pipe.
	_, writeErr := conn.Write(requests)
	n, err := all.ReadFrom(io.LimitReader(conn, maxBytes+1))
	switch {
	case ctx.Err() != nil:
		return c.unreachable(context.Cause(ctx))
	case n > maxBytes:
		return fmt.Errorf("%w: to %s it has more than %d bytes", errNotHTTP, what, maxBytes)
	case n == 0 && errors.Join(writeErr, err) != nil:
		return c.unreachable(errors.Join(writeErr, err))
	case err != nil && !errors.Is(err, syscall.ECONNRESET):
		return fmt.Errorf("read the enforcer's answer: %w", err)
	}
	return nil
}

// dial connects, and retries while the kernel's queue is full. Reads and writes fail when ctx ends.
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

// request returns the bytes of a request. It adds the token of ctx if that is valid; an invalid one could inject headers.
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

// parse parses one answer. A body shorter than announced is an error, since the enforcer died while writing it.
func parse(raw []byte) (status int, body []byte, err error) {
	status, body, rest, err := next(raw)
	if err == nil && len(rest) > 0 {
		return 0, nil, fmt.Errorf("%w: it has %d bytes of %d", io.ErrUnexpectedEOF, len(body)+len(rest), len(body))
	}
	return status, body, err
}

// next parses the first of several answers and returns the remaining bytes as rest. An answer without a length extends to the
// end.
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

func (c *Client) unreachable(err error) error {
	what := "why is in " + advice.Log("gpusliced")
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED):
		what = advice.Start("gpusliced")
		if _, never := os.Lstat(filepath.Dir(c.socket)); never == nil {
			return awayError{fmt.Errorf("%w on %s (%w): %s", api.ErrUnreachable, c.socket, cause(err), what)}
		}
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM): // the enforcer may be running
		return &DeniedError{Socket: c.socket, Err: err}
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("%w on %s: %w", api.ErrUnreachable, c.socket, err)
	}
	return fmt.Errorf("%w on %s (%w): %s", api.ErrUnreachable, c.socket, cause(err), what)
}

// awayError marks an enforcer that ran earlier, and is perhaps being replaced.
type awayError struct{ error }

func (e awayError) Unwrap() error { return e.error }

// MayReturn reports whether err means that the enforcer is not running, but ran since the host's boot, as during an upgrade. The
// request was not carried out then.
func MayReturn(err error) bool { return errors.As(err, new(awayError)) }

// cause returns err without the parts that name the socket.
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
