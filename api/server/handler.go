// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"path"
	"reflect"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/api"
)

// handleFunc handles a request. It returns the value to encode, or a stream.
type handleFunc func(Service, http.ResponseWriter, *http.Request) (any, error)

// route is one operation of the API. status is the status of its success.
type route struct {
	method, path string
	status       int
	query        []string // accepted query parameters
	handle       handleFunc
}

// routes are all operations, in the order of openapi.yaml.
var routes = []route{
	{"GET", "/v1/info", http.StatusOK, nil, func(s Service, _ http.ResponseWriter, r *http.Request) (any, error) {
		return s.Info(r.Context())
	}},
	{"GET", "/v1/slices", http.StatusOK, []string{"released", "commands"}, func(s Service, _ http.ResponseWriter, r *http.Request) (any, error) {
		released, err := boolean(r, "released")
		if err != nil {
			return nil, err
		}
		commands, err := boolean(r, "commands")
		if err != nil {
			return nil, err
		}
		which := s.Slices
		switch {
		case released:
			which = s.Released
		case commands:
			which = s.SlicesWithCommands
		}
		all, err := which(r.Context())
		return list(all), err
	}},
	{"POST", "/v1/slices", http.StatusCreated, nil, register},
	{"GET", "/v1/slices/{id}", http.StatusOK, nil, func(s Service, _ http.ResponseWriter, r *http.Request) (any, error) {
		id, err := sliceID(r)
		if err != nil {
			return nil, err
		}
		return s.Slice(r.Context(), id)
	}},
	{"PATCH", "/v1/slices/{id}", http.StatusOK, nil, change},
	{"DELETE", "/v1/slices/{id}", http.StatusOK, []string{"generation", "force"}, release},
	{"POST", "/v1/slices/{id}/renew", http.StatusOK, nil, renew},
	{"POST", "/v1/slices/{id}/suspend", http.StatusOK, nil, handleMove(Service.Suspend)},
	{"POST", "/v1/slices/{id}/resume", http.StatusOK, nil, handleMove(Service.Resume)},
	{"POST", "/v1/slices/{id}/join", http.StatusOK, nil, join},
	{"GET", "/v1/pools", http.StatusOK, nil, pools},
	{"GET", "/v1/pools/{name}", http.StatusOK, nil, pool},
	{"PUT", "/v1/pools/{name}", http.StatusCreated, nil, createPool},
	{"PATCH", "/v1/pools/{name}", http.StatusOK, nil, setPool},
	{"DELETE", "/v1/pools/{name}", http.StatusOK, nil, deletePool},
	{"GET", "/v1/devices", http.StatusOK, nil, func(s Service, _ http.ResponseWriter, r *http.Request) (any, error) {
		all, err := s.Devices(r.Context())
		return list(all), err
	}},
	{"GET", "/v1/history", http.StatusOK, nil, func(s Service, _ http.ResponseWriter, r *http.Request) (any, error) {
		all, err := s.History(r.Context())
		return list(all), err
	}},
	{"GET", "/v1/limits", http.StatusOK, []string{"uid", "groups"}, limitsOf},
	{"GET", "/v1/events", http.StatusOK, []string{"since", "instance", "follow"}, events},
	{"GET", "/v1/health", http.StatusOK, nil, func(s Service, _ http.ResponseWriter, r *http.Request) (any, error) {
		return s.Health(r.Context())
	}},
}

// Handler returns the handler of the control API.
func Handler(service Service, log *slog.Logger) http.Handler { return handler(routes, service, log) }

func handler(routes []route, service Service, log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	streams := make(chan struct{}, maxStreams)
	methods := make(map[string][]string)
	for _, route := range routes {
		methods[route.path] = append(methods[route.path], route.method)
		mux.HandleFunc(route.method+" "+route.path, func(w http.ResponseWriter, r *http.Request) {
			answer, err := route.answer(service, w, r)
			if err != nil {
				fail(w, r, log, err)
				return
			}
			answered, ok := answer.(*stream)
			if !ok {
				write(w, route.status, answer)
				return
			}
			select {
			case streams <- struct{}{}:
				defer func() { <-streams }()
				answered.serve(w, r, route.status)
			default:
				fail(w, r, log, api.Errorf(api.CodeBusy, "%d answers with events are being sent already: end one of them, or try again later", maxStreams))
			}
		})
	}
	// The mux's own 404 and 405 are plain text; clients expect JSON.
	for path, allowed := range methods {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Allow", strings.Join(allowed, ", "))
			fail(w, r, log, api.Errorf(api.CodeMethod, "%.20q is not possible on %.200s: %s are accepted", r.Method, r.URL.Path, strings.Join(allowed, ", ")))
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { fail(w, r, log, noPath(r)) })

	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if p := recover(); p != nil {
				log.Error("a request made the enforcer panic", "err", p, "method", r.Method, "path", r.URL.Path, "stack", string(debug.Stack()))
				fail(w, r, log, api.Errorf(api.CodeInternal, "the enforcer failed: its log says why"))
			}
		}()
		// The mux would redirect an unclean path, in HTML; here such a path does not exist. "*" has no path.
		if r.URL.Path == "" || r.URL.Path[0] != '/' || path.Clean(r.URL.Path) != r.URL.Path {
			fail(w, r, log, noPath(r))
			return
		}
		takeToken(r)
		mux.ServeHTTP(w, r)
	})
}

func (route *route) answer(service Service, w http.ResponseWriter, r *http.Request) (any, error) {
	// URL.Query ignores invalid parameters; an ignored generation would match any generation.
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, api.Errorf(api.CodeBadRequest, "the query cannot be read: %.200s", err.Error())
	}
	for name, values := range query {
		if !slices.Contains(route.query, name) || len(values) != 1 {
			return nil, api.Errorf(api.CodeBadRequest, "query parameter %.40q is not known here, or is given twice", name)
		}
	}
	return route.handle(service, w, r)
}

func register(s Service, w http.ResponseWriter, r *http.Request) (any, error) {
	var request api.RegisterRequest
	if err := decode(http.MaxBytesReader(w, r.Body, maxBody), &request); err != nil {
		return nil, err
	}
	if err := request.Validate(); err != nil {
		return nil, err
	}
	n := noteOf(r)
	n.quotas, n.ttl, n.tenant, n.pool = request.Quotas, request.TTL, request.Tenant, request.Pools.String()
	n.slice, n.container, n.names, n.mode = request.ID, request.Container, request.Names, cmp.Or(request.Mode, api.Enforce)
	if request.For != nil {
		n.remote = request.For.Remote
	}
	return s.Register(r.Context(), request)
}

func release(s Service, _ http.ResponseWriter, r *http.Request) (any, error) {
	id, err := sliceID(r)
	if err != nil {
		return nil, err
	}
	generation, err := number(r, "generation", "give a number, or 0 for any")
	if err != nil {
		return nil, err
	}
	force, err := boolean(r, "force")
	if err != nil {
		return nil, err
	}
	noteOf(r).force = force
	return s.Release(r.Context(), id, generation, force)
}

func limitsOf(s Service, _ http.ResponseWriter, r *http.Request) (any, error) {
	query := r.URL.Query()
	if len(query) == 0 {
		return s.Limits(r.Context(), nil)
	}
	uid, err := strconv.ParseUint(query.Get("uid"), 10, 32)
	if err != nil {
		return nil, api.Errorf(api.CodeBadRequest, "uid %.40q is not one: the number of a user is accepted", query.Get("uid"))
	}
	of := api.User{UID: uint32(uid)}
	for group := range strings.SplitSeq(query.Get("groups"), ",") {
		gid, err := strconv.ParseUint(group, 10, 32)
		if err == nil {
			of.Groups = append(of.Groups, uint32(gid))
		} else if query.Get("groups") != "" {
			return nil, api.Errorf(api.CodeBadRequest, "groups has %.40q: numbers with commas between them are accepted", group)
		}
	}
	return s.Limits(r.Context(), &of)
}

// number returns a numeric query parameter, or 0 if absent.
func number(r *http.Request, name, accepted string) (uint64, error) {
	query := r.URL.Query()
	if !query.Has(name) {
		return 0, nil
	}
	n, err := strconv.ParseUint(query.Get(name), 10, 64)
	if err != nil {
		return 0, api.Errorf(api.CodeBadRequest, "%s %.40q is not valid: %s", name, query.Get(name), accepted)
	}
	return n, nil
}

// boolean returns a boolean query parameter, or false if absent.
func boolean(r *http.Request, name string) (bool, error) {
	query := r.URL.Query()
	if !query.Has(name) {
		return false, nil
	}
	value, err := strconv.ParseBool(query.Get(name))
	if err != nil {
		return false, api.Errorf(api.CodeBadRequest, "%s %.40q is not known: true and false are accepted", name, query.Get(name))
	}
	return value, nil
}

func sliceID(r *http.Request) (string, error) {
	id := r.PathValue("id")
	return id, api.CheckID(id)
}

// decode decodes one JSON value and rejects unknown fields: a misspelt quota must not mean no quota.
func decode(body io.Reader, into any) error {
	d := json.NewDecoder(body)
	d.DisallowUnknownFields()
	err := d.Decode(into)
	if err == nil {
		if _, err = d.Token(); errors.Is(err, io.EOF) {
			return nil
		}
		err = errors.New("there is more after the value")
	}
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		field := "the request"
		if wrong.Field != "" {
			field = wrong.Field
		}
		return api.Errorf(api.CodeBadRequest, "%.100s was given as %.100s: %s is accepted", field, wrong.Value, inJSON(wrong.Type))
	}
	return unreadable(err)
}

func unreadable(err error) error {
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		return api.Errorf(api.CodeTooLarge, "the request is too large: up to %d bytes are accepted", large.Limit)
	}
	return api.Errorf(api.CodeBadRequest, "the request cannot be read: %.200s", strings.TrimPrefix(err.Error(), "json: "))
}

func inJSON(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		return "an array"
	case reflect.Uint64, reflect.Uint32:
		return "a whole number from 0 to " + strconv.FormatUint(1<<t.Bits()-1, 10)
	case reflect.Int, reflect.Int64:
		return "a whole number"
	}
	return "an object"
}

// list returns l, or an empty list if it is nil, since nil is null in JSON.
func list[T any](l []T) []T {
	if l == nil {
		return []T{}
	}
	return l
}

func noPath(r *http.Request) error {
	return api.Errorf(api.CodeNotFound, "there is no resource %.200q: see openapi.yaml for the paths", r.URL.Path)
}

func fail(w http.ResponseWriter, r *http.Request, log *slog.Logger, err error) {
	e := api.From(err)
	n := noteOf(r)
	n.refusal = e
	n.hidden = errors.Is(err, api.ErrForbidden) // also if e says "not found", since the slice is another user's
	level := slog.LevelDebug
	if e.Code == api.CodeInternal || e.Code == api.CodeStorage {
		level = slog.LevelError
	}
	log.Log(r.Context(), level, "request refused", "method", r.Method, "path", r.URL.Path, "code", e.Code, "err", err)
	write(w, e.Code.Status(), e)
}

func write(w http.ResponseWriter, status int, answer any) {
	b, err := json.Marshal(answer)
	if err != nil { // a type that cannot be encoded: a bug
		status, b = http.StatusInternalServerError, []byte(`{"code":"internal","message":"the answer cannot be encoded"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)+1)) // lets a client detect a truncated answer
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n')) // fails if the client has disconnected
}
