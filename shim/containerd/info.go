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

// featuresType is how containerd names the features of an OCI runtime (containerd 2, core/runtime/typeurl.go).
const featuresType = "types.containerd.io/opencontainers/runtime-spec/1/features/Features"

// featuresTimeout is much longer than a runtime takes to tell its features.
const featuresTimeout = 10 * time.Second

// writeInfo answers -info, by which containerd 2 asks what a runtime can do: the options as they were understood, and
// the features of the low-level runtime. Of these containerd needs to know whether it can map the ids of
// mounts, without which it starts no pod in a user namespace.
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
	// A low-level runtime without such a command is as good as one without features: containerd goes on.
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

// features are those of the low-level runtime in its own words, which need not be all known here.
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
