// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"encoding/hex"
	"log/slog"
	"strconv"
	"strings"
)

const (
	// DefaultSessionSocket is where users without privileges ask for sessions, if the operator lets any.
	DefaultSessionSocket = "/run/gpuslice/session.sock"
	// TokenName is the file with a session's token in its directory (RegisterReply.Dir), for the session's user alone.
	TokenName = "token"
	// TokenEnv names that file for the session's processes.
	TokenEnv = "GPUSLICE_TOKEN_FILE"
)

// tokenBytes is how many random bytes a token is of.
const tokenBytes = 32

// Token is a session's secret, in hexadecimal: a process that shows it may join a process to the session, renew and release it. It is
// printed by no format and no log; what has to have it converts it to a string.
type Token string

const hidden = "(a token)"

func (Token) String() string       { return hidden }
func (Token) GoString() string     { return hidden }
func (Token) LogValue() slog.Value { return slog.StringValue(hidden) }

// Bytes is what the token is of; false if it is none.
func (t Token) Bytes() ([]byte, bool) {
	b, err := hex.DecodeString(string(t))
	return b, err == nil && len(b) == tokenBytes
}

// JoinRequest asks for a process to be of a session from now on, with all that descend from it. Whoever asks shows the
// session's token with it.
type JoinRequest struct {
	// PID is that of the asking process, or of a descendant, in the enforcer's pid namespace.
	PID int `json:"pid"`
}

// Validate says what is wrong with a request that could be wrong on any host. Its error is an *Error with CodeBadRequest.
func (r *JoinRequest) Validate() error {
	if r.PID <= 0 {
		return Errorf(CodeBadRequest, "pid %d is not one: that of the process that joins the session is needed", r.PID)
	}
	return nil
}

// UserSessionID is the id of a session that a user without privileges begins by a name: it begins with the user's number, so that
// nobody takes the id of a container that somebody is about to start. An id that it made stays as it is.
func UserSessionID(uid uint32, name string) string {
	prefix := "u" + strconv.FormatUint(uint64(uid), 10) + "-"
	if strings.HasPrefix(name, prefix) {
		return name
	}
	return prefix + name
}

type tokenKey struct{}

// WithToken makes a context for questions with which a token is shown.
func WithToken(ctx context.Context, t Token) context.Context {
	return context.WithValue(ctx, tokenKey{}, t)
}

// TokenOf is the token that is shown with a question; "" if none is.
func TokenOf(ctx context.Context) Token {
	t, _ := ctx.Value(tokenKey{}).(Token)
	return t
}

// FormatTokenFile is what the file of that name has: the session's id and its token.
func FormatTokenFile(id string, token []byte) string {
	return id + " " + hex.EncodeToString(token) + "\n"
}

// MaxTokenFile is how long it can be.
const MaxTokenFile = 255 + 1 + 2*tokenBytes + 1

// ParseTokenFile reads it. Its error does not say what was there instead.
func ParseTokenFile(text string) (id string, t Token, err error) {
	id, rest, _ := strings.Cut(strings.TrimSuffix(text, "\n"), " ")
	t = Token(rest)
	if _, ok := t.Bytes(); !ok || CheckID(id) != nil {
		return "", "", Errorf(CodeBadRequest, "it has no session's token: the file %s in a session's directory has one, which %s names in the session", TokenName, TokenEnv)
	}
	return id, t, nil
}
