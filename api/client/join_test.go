// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/api"
)

func TestATokenIsShownWithEachQuestion(t *testing.T) {
	token := api.Token(strings.Repeat("ab", 32))
	s := &service{}
	c := enforcer(t, s)
	if _, err := c.Join(api.WithToken(context.Background(), token), "s1", api.JoinRequest{PID: 7}); err != nil || s.token != token || s.joined != 7 {
		t.Errorf("%v, %q, %d", err, string(s.token), s.joined)
	}
	// Invalid tokens are not sent: they could inject headers.
	for _, wrong := range []api.Token{"", "x\r\nX-Evil: 1", token + "\r\n", token[:10]} {
		s.token = ""
		if _, err := c.Join(api.WithToken(context.Background(), wrong), "s1", api.JoinRequest{PID: 7}); err != nil || s.token != "" {
			t.Errorf("%q: %v, %q", string(wrong), err, string(s.token))
		}
		if sent := request(api.WithToken(context.Background(), wrong), "GET", "/", "1.0", nil); bytes.Contains(sent, []byte("Authorization")) {
			t.Errorf("%q", sent)
		}
	}
}
