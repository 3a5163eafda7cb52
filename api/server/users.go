// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/daemon/audit"
	"github.com/gpuslice/gpuslice/enforcer/session"
)

// UserService serves the users' socket, which is open to all. The context has the calling process (PeerOf, GroupsOf), and the service decides what
// it may do.
type UserService interface {
	// May decides before the request's body is read. It returns an error if the caller may not change that session, or, without an id, begin
	// one. limited reports whether the caller has a limit.
	May(ctx context.Context, id string) (limited bool, err error)
	Info(ctx context.Context) (api.Info, error)
	Register(ctx context.Context, r api.RegisterRequest) (api.RegisterReply, error)
	Join(ctx context.Context, id string, r api.JoinRequest) (api.RegisterReply, error)
	Release(ctx context.Context, id string, generation uint64, force bool) (api.Slice, error)
	Renew(ctx context.Context, id string, r api.RenewRequest) (api.Slice, error)
	Suspend(ctx context.Context, id string) (api.Slice, error)
	Resume(ctx context.Context, id string) (api.Slice, error)
	Slices(ctx context.Context) ([]api.Slice, error)
	SlicesWithCommands(ctx context.Context) ([]api.Slice, error)
	Released(ctx context.Context) ([]api.Slice, error)
	Slice(ctx context.Context, id string) (api.Slice, error)
	History(ctx context.Context) ([]api.Run, error)
	Limits(ctx context.Context, of *api.User) (api.UserLimits, error) // of is nil
}

// userRoutes are the routes of the users' socket. Other requests reach no service.
var userRoutes = []string{
	"GET /v1/info",
	"GET /v1/slices",
	"POST /v1/slices",
	"GET /v1/slices/{id}",
	"DELETE /v1/slices/{id}",
	"POST /v1/slices/{id}/renew",
	"POST /v1/slices/{id}/suspend",
	"POST /v1/slices/{id}/resume",
	"POST /v1/slices/{id}/join",
	"GET /v1/history",
	"GET /v1/limits",
}

// UserHandler is the users' API without a socket.
func UserHandler(service UserService, log *slog.Logger) http.Handler {
	theirs, users := slices.Clone(routes), &session.HostUsers{}
	for i, r := range theirs {
		switch {
		case !slices.Contains(userRoutes, r.method+" "+r.path):
			theirs[i].handle = operators
		case r.method != http.MethodGet:
			theirs[i].handle = authorized(service, r.handle)
		}
		theirs[i].handle = ofHost(users, theirs[i].handle)
	}
	return handler(theirs, forUsers{users: service}, log)
}

// userPatience is how long a request waits for the host's user database.
const userPatience = 2 * time.Second

// ofHost refuses a uid that belongs to no user of the host. It reads only the request's head.
func ofHost(users *session.HostUsers, handle handleFunc) handleFunc {
	return func(s Service, w http.ResponseWriter, r *http.Request) (any, error) {
		if p, known := PeerOf(r.Context()); known && !privileged(p.UID) {
			ctx, cancel := context.WithTimeout(r.Context(), userPatience)
			defer cancel()
			if _, err := users.Of(ctx, p.UID); err != nil {
				w.Header().Set("Connection", "close") // else net/http reads the body before it answers
				return nil, err
			}
		}
		return handle(s, w, r)
	}
}

// authorized refuses requests that the caller may not make, after reading only the request's head.
func authorized(users UserService, handle handleFunc) handleFunc {
	return func(s Service, w http.ResponseWriter, r *http.Request) (any, error) {
		id := r.PathValue("id")
		if id != "" {
			if err := api.CheckID(id); err != nil {
				return nil, err
			}
		}
		limited, err := users.May(r.Context(), id)
		if limited || err == nil {
			noteOf(r).share = audit.ShareUser
		}
		if err != nil {
			w.Header().Set("Connection", "close") // else net/http reads the body before it answers
			return nil, err
		}
		return handle(s, w, r)
	}
}

// NewForUsers returns a Server of the users' socket.
func NewForUsers(service UserService, log *slog.Logger) *Server {
	s := newServer(UserHandler(service, log), userLimits, log)
	s.share = audit.ShareStranger
	return s
}

// operators refuses a request that is for the operator alone.
func operators(_ Service, w http.ResponseWriter, _ *http.Request) (any, error) {
	w.Header().Set("Connection", "close")
	return nil, api.Errorf(api.CodeForbidden, "users may begin, list, inspect, join, renew, suspend, resume and release their own sessions here: "+
		"the rest is the operator's, on the control socket")
}

// forUsers is the Service of the users' socket.
type forUsers struct {
	Service // nil: no route here leads to its other methods
	users   UserService
}

func (f forUsers) Info(ctx context.Context) (api.Info, error) { return f.users.Info(ctx) }
func (f forUsers) Register(ctx context.Context, r api.RegisterRequest) (api.RegisterReply, error) {
	// The service would do this, too. Here, refused requests are recorded with the same id as granted ones.
	if p, known := PeerOf(ctx); known {
		if id := api.UserSessionID(p.UID, r.ID); api.CheckID(id) == nil { // otherwise the service refuses it, with the reason
			r.ID, noteIn(ctx).slice = id, id
		}
	}
	return f.users.Register(ctx, r)
}
func (f forUsers) Join(ctx context.Context, id string, r api.JoinRequest) (api.RegisterReply, error) {
	return f.users.Join(ctx, id, r)
}
func (f forUsers) Release(ctx context.Context, id string, generation uint64, force bool) (api.Slice, error) {
	return f.users.Release(ctx, id, generation, force)
}
func (f forUsers) Renew(ctx context.Context, id string, r api.RenewRequest) (api.Slice, error) {
	return f.users.Renew(ctx, id, r)
}
func (f forUsers) Suspend(ctx context.Context, id string) (api.Slice, error) {
	return f.users.Suspend(ctx, id)
}
func (f forUsers) Resume(ctx context.Context, id string) (api.Slice, error) {
	return f.users.Resume(ctx, id)
}
func (f forUsers) Slices(ctx context.Context) ([]api.Slice, error) { return f.users.Slices(ctx) }
func (f forUsers) SlicesWithCommands(ctx context.Context) ([]api.Slice, error) {
	return f.users.SlicesWithCommands(ctx)
}
func (f forUsers) Released(ctx context.Context) ([]api.Slice, error) {
	return f.users.Released(ctx)
}
func (f forUsers) Slice(ctx context.Context, id string) (api.Slice, error) {
	return f.users.Slice(ctx, id)
}
func (f forUsers) History(ctx context.Context) ([]api.Run, error) { return f.users.History(ctx) }
func (f forUsers) Limits(ctx context.Context, of *api.User) (api.UserLimits, error) {
	if of != nil {
		return api.UserLimits{}, api.Errorf(api.CodeForbidden, "a user is shown no other user's limits: root asks for these, on the control socket")
	}
	return f.users.Limits(ctx, nil)
}

func join(s Service, w http.ResponseWriter, r *http.Request) (any, error) {
	id, err := sliceID(r)
	if err != nil {
		return nil, err
	}
	var request api.JoinRequest
	if err := decode(http.MaxBytesReader(w, r.Body, maxBody), &request); err != nil {
		return nil, err
	}
	if err := request.Validate(); err != nil {
		return nil, err
	}
	return s.Join(r.Context(), id, request)
}

// bearer comes before the token in a header. Headers appear in no log, no list of processes, and no path.
const bearer = "Bearer "

// takeToken puts the request's token into its context.
func takeToken(r *http.Request) {
	values := r.Header.Values("Authorization")
	if len(values) != 1 {
		return
	}
	// Changes r in place, since others read its matched route.
	if token, ok := strings.CutPrefix(values[0], bearer); ok {
		*r = *r.WithContext(api.WithToken(r.Context(), api.Token(token)))
	}
}
