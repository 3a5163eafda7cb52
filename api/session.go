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
	// DefaultSessionSocket is the socket for sessions of unprivileged users, if the operator allows any.
	DefaultSessionSocket = "/run/gpuslice/session.sock"
	// TokenName is the file with a session's token in RegisterReply.Dir. Only the session's user can read it.
	TokenName = "token"
	// NoticeName is a file in a session's RegisterReply.Dir. It has the last Event that the session's user has to see at once, as JSON.
	NoticeName = "notice"
	// TokenEnv is set in the session's processes to the path of that file.
	TokenEnv = "GPUSLICE_TOKEN_FILE"
)

const tokenBytes = 32

// Token is a session's secret, in hexadecimal. It entitles a process to join processes to the session, and to renew and release
// it. Formats and logs never print it; convert it to a string to get the value.
type Token string

const hidden = "(a token)"

func (Token) String() string       { return hidden }
func (Token) GoString() string     { return hidden }
func (Token) LogValue() slog.Value { return slog.StringValue(hidden) }

// Bytes returns the decoded token, or false if it is not valid.
func (t Token) Bytes() ([]byte, bool) {
	b, err := hex.DecodeString(string(t))
	return b, err == nil && len(b) == tokenBytes
}

// JoinRequest adds a process and its later descendants to a session. The request has to carry the session's token.
type JoinRequest struct {
	// PID is the requesting process or a descendant of it, in the enforcer's pid namespace.
	PID int `json:"pid"`
}

// Validate checks PID. Its error is an *Error with CodeBadRequest.
func (r *JoinRequest) Validate() error {
	if r.PID <= 0 {
		return Errorf(CodeBadRequest, "pid %d is not valid: give that of the process that joins the session", r.PID)
	}
	return nil
}

// UserSessionID returns the slice id of an unprivileged user's session. The id begins with the uid, so that a user cannot take
// that of another's container. If name is such an id already, it stays unchanged.
func UserSessionID(uid uint32, name string) string {
	prefix := "u" + strconv.FormatUint(uint64(uid), 10) + "-"
	if strings.HasPrefix(name, prefix) {
		return name
	}
	return prefix + name
}

type tokenKey struct{}

// WithToken returns a context that adds the token to requests.
func WithToken(ctx context.Context, t Token) context.Context {
	return context.WithValue(ctx, tokenKey{}, t)
}

// TokenOf returns the token of ctx, or "" if it has none.
func TokenOf(ctx context.Context) Token {
	t, _ := ctx.Value(tokenKey{}).(Token)
	return t
}

// FormatTokenFile returns the content of a token file: the session's id and token.
func FormatTokenFile(id string, token []byte) string {
	return id + " " + hex.EncodeToString(token) + "\n"
}

// MaxTokenFile is the maximum size of a token file in bytes.
const MaxTokenFile = 255 + 1 + 2*tokenBytes + 1

// ParseTokenFile parses the content of a token file. Its error does not reveal the content.
func ParseTokenFile(text string) (id string, t Token, err error) {
	id, rest, _ := strings.Cut(strings.TrimSuffix(text, "\n"), " ")
	t = Token(rest)
	if _, ok := t.Bytes(); !ok || CheckID(id) != nil {
		return "", "", Errorf(CodeBadRequest, "it has no session's token: use the file %s of the session's directory, which %s names in the session", TokenName, TokenEnv)
	}
	return id, t, nil
}
