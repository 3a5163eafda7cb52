// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"io"
	"net"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

type counting struct {
	net.Listener
	mu         sync.Mutex
	open, most int
}

type countedConn struct {
	net.Conn
	close func()
}

func (c *counting) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c.add(1)
	return &countedConn{conn, sync.OnceFunc(func() { c.add(-1) })}, nil
}

func (c *counting) add(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open += n
	c.most = max(c.most, c.open)
}

func (c *countedConn) Close() error {
	defer c.close()
	return c.Conn.Close()
}

// On a TCP address the peer's user is unknown: all peers share a few connections, and each that ends is free for the next peer.
func TestACrowdHasFewConnectionsToTheMetrics(t *testing.T) {
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	c := &counting{Listener: l}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- New(two(), quiet()).Serve(ctx, c) }()
	var served atomic.Int64
	var all sync.WaitGroup
	full := make(chan struct{}) // all connections are in use until it closes
	for range 4 * maxConnections {
		conn := must.Get(net.Dial("tcp", l.Addr().String()))(t)
		all.Go(func() {
			defer conn.Close()
			_, _ = io.WriteString(conn, "GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n")
			if n, _ := conn.Read(make([]byte, 1)); n == 1 {
				if served.Add(1) == maxConnections {
					close(full)
				}
				<-full
			}
		})
	}
	all.Wait()
	cancel()
	expect.NoError(t, <-done)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.most > maxConnections || served.Load() != 4*maxConnections {
		t.Errorf("%d connections at a time, and %d answers", c.most, served.Load())
	}
}

type asked struct {
	from  Slices
	times atomic.Int64
}

func (a *asked) Slices(ctx context.Context) ([]api.Slice, error) {
	a.times.Add(1)
	return a.from.Slices(ctx)
}

func TestScrapesHaveABoundedPace(t *testing.T) {
	a := &asked{from: two()}
	h := New(a, quiet()).Handler()
	begun := time.Now()
	var all sync.WaitGroup
	for range scrapesAtOnce + scrapesPerSecond {
		all.Go(func() {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
			n := a.times.Load() // before the time is measured, which bounds it
			if allowed := scrapesAtOnce + 1 + int64(time.Since(begun).Seconds()*scrapesPerSecond); w.Code != 200 || n > allowed {
				t.Errorf("status %d; %d scrapes in %s", w.Code, n, time.Since(begun))
			}
		})
	}
	all.Wait()
}
