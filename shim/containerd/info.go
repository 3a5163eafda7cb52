// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"time"

	"github.com/containerd/containerd/api/types"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/gpuslice/gpuslice/api"
)

// featuresType is containerd's type URL for the features of an OCI runtime (containerd 2, core/runtime/typeurl.go).
const featuresType = "types.containerd.io/opencontainers/runtime-spec/1/features/Features"

// featuresTimeout limits the features command, which normally takes milliseconds.
const featuresTimeout = 10 * time.Second

// writeInfo answers -info, by which containerd 2 queries a runtime, with the parsed options and the features of the low-level
// runtime. containerd starts no pod in a user namespace without the feature of ID-mapped mounts.
func writeInfo(ctx context.Context, find configured, stdin io.Reader, stdout io.Writer) error {
	input, err := readInput(stdin)
	if err != nil {
		return err
	}
	sent, err := anyOptions(input)
	if err != nil {
		return err
	}
	runc, err := understand(sent)
	if err != nil {
		return err
	}
	understood, err := pack(runc)
	if err != nil {
		return err
	}
	answer := &types.RuntimeInfo{
		Name:    Name,
		Version: &types.RuntimeVersion{Version: api.Version},
		Options: understood,
	}
	// Without features containerd continues as if there were none.
	if low, err := find(false); err == nil {
		if text, err := features(ctx, low.Low); err == nil {
			answer.Features = &anypb.Any{TypeUrl: featuresType, Value: text}
		}
	}
	text, err := proto.Marshal(answer)
	if err != nil {
		return err
	}
	_, err = stdout.Write(text)
	return err
}

// features returns the features of the low-level runtime as JSON, which may have unknown members.
func features(ctx context.Context, runtime string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, featuresTimeout)
	defer cancel()
	text, err := exec.CommandContext(ctx, runtime, "features").Output()
	if err != nil {
		return nil, err
	}
	if text = bytes.TrimSpace(text); !json.Valid(text) {
		return nil, errors.New("no JSON")
	}
	return text, nil
}
