// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/daemon/audit"
	"github.com/gpuslice/gpuslice/enforcer/process"
)

// auditFacts collects facts about a request for its audit record. Handlers set the request's values after validation, which bounds
// their size.
type auditFacts struct {
	share       audit.Share
	slice, pool string
	tenant      string
	container   string
	names       api.Names
	remote      string
	quotas      []api.Quota
	ttl         time.Duration
	mode        api.Mode
	force       bool
	refusal     *api.Error
	hidden      bool // the slice exists, but belongs to another user
}

type noteKey struct{}

// noteOf returns the note of a request. If the request is not recorded, it returns an unused one.
func noteOf(r *http.Request) *auditFacts { return noteIn(r.Context()) }

func noteIn(ctx context.Context) *auditFacts {
	if n, ok := ctx.Value(noteKey{}).(*auditFacts); ok {
		return n
	}
	return &auditFacts{}
}

// AuditWith calls put for each request for a change, when its result is known. It must be called before Serve. put must not
// block.
func (s *Server) AuditWith(put func(audit.Entry)) {
	s.http.Handler = audited(s.http.Handler, s.share, put)
}

func audited(next http.Handler, share audit.Share, put func(audit.Entry)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			next.ServeHTTP(w, r)
			return
		}
		n := &auditFacts{share: share}
		r = r.WithContext(context.WithValue(r.Context(), noteKey{}, n))
		next.ServeHTTP(w, r)
		// The mux has stored the route in r. Without a route nothing was changed.
		if method, _, ok := strings.Cut(r.Pattern, " "); !ok || method != r.Method {
			return
		}
		put(n.entry(r))
	})
}

func (n *auditFacts) entry(r *http.Request) audit.Entry {
	e := audit.Entry{
		Event:     api.Event{Kind: audit.KindRequest, Slice: n.slice, Container: n.container, Names: n.names, Tenant: n.tenant, Pool: n.pool, TTL: n.ttl},
		Operation: r.Pattern, Result: audit.OK, Quotas: n.quotas, Mode: n.mode, Force: n.force, Remote: n.remote, Share: n.share,
	}
	// A name from the path is recorded if it is valid; otherwise the error message has it, shortened.
	if id := r.PathValue("id"); e.Slice == "" && api.CheckID(id) == nil {
		e.Slice = id
	}
	if name := r.PathValue("name"); e.Pool == "" && api.CheckPoolName(name) == nil {
		e.Pool = name
	}
	if p, known := PeerOf(r.Context()); known {
		// The process waits for the answer, which is sent after this, so the pid has not been reused.
		e.PID, e.UID, e.Command = p.PID, &p.UID, process.Name(p.PID)
	}
	if n.refusal != nil {
		e.Result, e.Code, e.Message = audit.Refused, n.refusal.Code, n.refusal.Message
		if e.Code == api.CodeNotFound && !n.hidden && e.Operation == "DELETE /v1/slices/{id}" {
			e.Result = audit.Gone // a runtime releases a container's slice at its end, even if that has ended already
		}
		if e.Device, e.Requested = n.refusal.Device, n.refusal.Requested; e.Requested > 0 {
			e.Bytes, e.Limit, e.Used = e.Requested, &n.refusal.Limit, &n.refusal.Current
		}
	}
	return e
}
