// SPDX-License-Identifier: Apache-2.0

package server

import (
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// A peer without credentials must not count as root.
func TestARequestOfAnUnknownPeerIsPaced(t *testing.T) {
	served := 0
	handler := paced(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ }), perRequest)
	begun := time.Now()
	for range paceBurst + 1 {
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/v1/info", http.NoBody))
	}
	if took := time.Since(begun); served != paceBurst+1 || took < 100*time.Millisecond {
		t.Errorf("%d requests in %v: the last one did not wait", served, took)
	}
}

func TestAConnectionThatEndedCountsNoMore(t *testing.T) {
	l := limit(nil, limits{connections: connections{all: 4, others: 2, perUser: 1}}).(*limited)
	conn, other := net.Pipe()
	defer conn.Close()
	defer other.Close()
	for range l.connections.others + 1 {
		leave, _, refusal := l.enter(conn)
		if refusal != nil {
			t.Fatal(refusal)
		}
		if _, _, refusal := l.enter(conn); refusal == nil {
			t.Fatal("the user has one too many")
		}
		leave()
	}
	if l.others != 0 || len(l.by) != 0 {
		t.Errorf("%d count, of %v", l.others, l.by)
	}
}
