// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuslice/gpuslice/api"
)

const maxState = 4 << 20 // the state repeats the annotations, and some engines put whole manifests there

// ReadState reads and checks the state on a hook's standard input. Its status is not used: crun reports "created" where runc
// reports "creating". For the annotations see [ReadBundle].
func ReadState(r io.Reader) (specs.State, error) {
	var s specs.State
	text, err := io.ReadAll(io.LimitReader(r, maxState+1))
	if err == nil {
		err = decode(text, maxState, &s)
	}
	if err != nil {
		return s, fmt.Errorf("the container's state on standard input: %w", err)
	}
	if err := api.CheckID(s.ID); err != nil {
		return s, fmt.Errorf("the container's id: %w", err)
	}
	if !filepath.IsAbs(s.Bundle) {
		return s, fmt.Errorf("the bundle %.256q of container %s: an absolute path is accepted", s.Bundle, s.ID)
	}
	return s, nil
}

// decode decodes one JSON value of at most limit bytes.
func decode(text []byte, limit int, into any) error {
	if len(text) > limit {
		return fmt.Errorf("it is longer than %d MiB", limit>>20)
	}
	err := json.Unmarshal(text, into)
	var bad *json.UnmarshalTypeError
	if errors.As(err, &bad) {
		return fmt.Errorf("%s is a JSON %s, which does not belong there", bad.Field, bad.Value)
	}
	if err != nil {
		return fmt.Errorf("not JSON: %w", err)
	}
	return nil
}
