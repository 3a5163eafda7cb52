// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"log/slog"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/attach"
	"github.com/gpuslice/gpuslice/enforcer/guard"
	"github.com/gpuslice/gpuslice/enforcer/pace"
	"github.com/gpuslice/gpuslice/enforcer/report/lines"
)

// share limits a slice's log lines, and the requests of its processes. All sessions of a user have one share, so that beginning many gains nothing.
type share struct {
	log  *slog.Logger
	pace *pace.Limiter
}

// userShares has the users' shares. They outlive the sessions: the users are few, and named in the configuration.
type userShares struct {
	mu guard.Mutex[guard.Leaf] // guards by
	by map[uint32]share
}

func (e *Enforcer) newShare() share { return share{lines.Bound(e.log), attach.NewPace()} }

func (e *Enforcer) shareOf(r *api.RegisterRequest) share {
	if !r.Session || r.UID == 0 || e.options.Unprivileged {
		return e.newShare()
	}
	e.shares.mu.Lock()
	defer e.shares.mu.Unlock()
	its, there := e.shares.by[r.UID]
	if !there {
		if e.shares.by == nil {
			e.shares.by = make(map[uint32]share)
		}
		its = e.newShare()
		e.shares.by[r.UID] = its
	}
	return its
}
