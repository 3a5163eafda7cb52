// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

func TestATokenIsNotPrinted(t *testing.T) {
	secret := strings.Repeat("5a", 32)
	token := Token(secret)
	var log bytes.Buffer
	for _, l := range []*slog.Logger{slog.New(slog.NewTextHandler(&log, nil)), slog.New(slog.NewJSONHandler(&log, nil))} {
		l.Info("shown", "token", token, "in", []any{token})
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		fmt.Fprintf(&log, verb, token)
		fmt.Fprintf(&log, verb, struct{ T Token }{token})
	}
	// The JSON of a structure contains the token: programs need it in the request.
	text := strings.ReplaceAll(log.String(), `"in":["`+secret+`"]`, "")
	expect.True(t, !strings.Contains(text, secret), "it is in", text)
	expect.Equal(t, string(must.Get(json.Marshal(token))(t)), `"`+secret+`"`)
}

func TestATokensFileIsReadAsItWasWritten(t *testing.T) {
	secret := bytes.Repeat([]byte{0xa5}, 32)
	text := FormatTokenFile("u1-run", secret)
	id, token, err := ParseTokenFile(text)
	if b, ok := token.Bytes(); err != nil || id != "u1-run" || !ok || !bytes.Equal(b, secret) || len(text) > MaxTokenFile {
		t.Errorf("%q, %v", id, err)
	}
	for _, wrong := range []string{"", "\n", "u1-run", "u1-run ", text + "x", "a/b " + string(token), " " + string(token), "u1-run " + string(token[1:]), "u1-run " + string(token) + "00"} {
		if _, _, err := ParseTokenFile(wrong); err == nil || strings.Contains(err.Error(), string(token[1:])) {
			t.Errorf("%q: %v", wrong, err)
		}
	}
}

func TestAUsersSessionHasAnIDThatBeginsWithTheUser(t *testing.T) {
	for _, c := range []struct {
		uid        uint32
		name, want string
	}{
		{5001, "train", "u5001-train"},
		{5001, "u5001-train", "u5001-train"},
		{5001, "u500-train", "u5001-u500-train"}, // of another user
		{0, "run-1", "u0-run-1"},
		{1<<32 - 1, "a", "u4294967295-a"},
	} {
		expect.Equal(t, UserSessionID(c.uid, c.name), c.want, c.uid, c.name)
	}
}
