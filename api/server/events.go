// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"encoding/json"
	"net/http"
	"time"

	"github.com/gpuslice/gpuslice/api"
)

const eventsType = "application/x-ndjson"

// stream is an answer of events, one per line. It holds one batch at a time and writes from its own goroutine, so a slow reader
// costs one batch of memory, and delays no other.
type stream struct {
	service  Service
	follow   bool
	batch    []api.Event
	instance string
	since    uint64
}

func events(s Service, w http.ResponseWriter, r *http.Request) (any, error) {
	since, err := number(r, "since", "give the number of an event, or 0 for all")
	if err != nil {
		return nil, err
	}
	follow, err := boolean(r, "follow")
	if err != nil {
		return nil, err
	}
	if follow { // a follower sends nothing more; its disconnect is seen without a deadline
		if err := endReadDeadline(w, r); err != nil {
			return nil, err
		}
	}
	instance := r.URL.Query().Get("instance")
	// Read the first batch before the head is written, as an error can still be reported.
	batch, err := s.Events(r.Context(), instance, since, false)
	return &stream{service: s, follow: follow, batch: batch, instance: instance, since: since}, err
}

func (s *stream) serve(w http.ResponseWriter, r *http.Request, status int) {
	control := http.NewResponseController(w)
	w.Header().Set("Content-Type", eventsType)
	w.WriteHeader(status)
	for {
		if s.follow { // for each batch when following, else for the whole answer
			_ = control.SetWriteDeadline(time.Now().Add(timeout(r)))
		}
		if s.send(w) != nil || control.Flush() != nil {
			return // disconnected, or too slow
		}
		if !s.follow && len(s.batch) == 0 {
			return
		}
		var err error
		if s.batch, err = s.service.Events(r.Context(), s.instance, s.since, s.follow); err != nil {
			return // the head is sent: ending the answer is the only way to report an error
		}
	}
}

func timeout(r *http.Request) time.Duration {
	if s, ok := r.Context().Value(http.ServerContextKey).(*http.Server); ok {
		return s.WriteTimeout
	}
	return controlLimits.write
}

func (s *stream) send(w http.ResponseWriter) error {
	var lines bytes.Buffer
	encoder := json.NewEncoder(&lines)
	for _, e := range s.batch {
		if err := encoder.Encode(e); err != nil {
			return err
		}
		s.instance, s.since = e.Instance, e.Seq
	}
	_, err := w.Write(lines.Bytes())
	return err
}
