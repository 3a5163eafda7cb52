// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestAWrongCommandLineIsSaidOnceAsOne(t *testing.T) {
	for _, word := range []string{"start", "--no-such"} {
		var said bytes.Buffer
		err := run(t.Context(), []string{word}, io.Discard, &said)
		if !errors.Is(err, errUsage) || strings.Count(said.String(), strings.TrimLeft(word, "-")) != 1 {
			t.Errorf("%s: %v, %q", word, err, said.String())
		}
	}
}
