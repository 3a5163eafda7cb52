// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

type countedService struct {
	fakeService
	served atomic.Int64
}

func (c *countedService) Info(context.Context) (api.Info, error) {
	c.served.Add(perRequest)
	return api.Info{}, nil
}

func (c *countedService) Register(context.Context, api.RegisterRequest) (api.RegisterReply, error) {
	c.served.Add(perRequest + maxBody>>10)
	return api.RegisterReply{}, nil
}

// One user's requests take a small part of a processor, and delay no others.
func TestAUsersRequestsAreServedAtABoundedRate(t *testing.T) {
	const asks = "GPUSLICE_ASKS_FAST"
	if path := os.Getenv(asks); path != "" {
		askForEver(path)
		return
	}
	s, l := &countedService{}, userLimits
	l.pace = 128
	path := serveWith(t, s, l)
	child := asNobody(t, asks+"="+path)
	child.Args = append(child.Args, "-test.run=^"+t.Name()+"$")
	in := must.Get(child.StdinPipe())(t)
	var said bytes.Buffer
	child.Stdout, child.Stderr = &said, &said
	begun := time.Now()
	must.Do(t, child.Start())
	defer func() { in.Close(); _ = child.Wait() }()
	atOnce := int64(paceBurst * l.pace)
	for mine := int64(1); ; mine++ {
		answers200(t, path)
		served := s.served.Load() - mine*perRequest
		if allowed := atOnce + int64(time.Since(begun).Seconds()*float64(l.pace)) + perRequest; served > allowed {
			t.Fatalf("%d KiB of a user's requests were served in %s, more than %d", served, time.Since(begun), allowed)
		}
		if served > atOnce+int64(l.pace) {
			return
		}
		if time.Since(begun) > await.Patience {
			t.Fatalf("%d KiB of a user's requests were served: want %d at once, and %v a second. %s", served, atOnce, l.pace, said.String())
		}
		time.Sleep(time.Millisecond)
	}
}

// askForEver sends small and large requests on all connections that a user may have, until the input ends.
func askForEver(path string) {
	large := goodRequest + strings.Repeat(" ", maxBody-len(goodRequest))
	for i := range userLimits.perUser {
		go func() {
			for {
				client := httpClient(path) // some get a connection of their own
				for range 16 {
					var answer *http.Response
					var err error
					if i%2 == 0 {
						answer, err = client.Get("http://gpuslice/v1/info")
					} else {
						answer, err = client.Post("http://gpuslice/v1/slices", "application/json", strings.NewReader(large))
					}
					if err == nil {
						_, _ = io.Copy(io.Discard, answer.Body)
						answer.Body.Close()
					}
				}
				client.CloseIdleConnections()
			}
		}()
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func TestRequestIsChargedForTheBytesRead(t *testing.T) {
	for name, c := range map[string]struct {
		body io.Reader
		want int
	}{
		"a head alone":                  {nil, perRequest},
		"a body of a byte":              {strings.NewReader("x"), perRequest + 1},
		"a KiB":                         {strings.NewReader(strings.Repeat("x", 1<<10)), perRequest + 1},
		"more":                          {strings.NewReader(strings.Repeat("x", 1<<10+1)), perRequest + 2},
		"as much as may be":             {strings.NewReader(strings.Repeat("x", maxBody)), perRequest + maxBody>>10},
		"what is refused for its size":  {strings.NewReader(strings.Repeat("x", 2*maxBody)), perRequest + maxBody>>10},
		"one that does not say how big": {io.MultiReader(strings.NewReader("x")), perRequest + maxBody>>10},
	} {
		expect.Equal(t, kibibytes(httptest.NewRequest("POST", "/v1/slices", c.body)), c.want, name)
	}
}
