// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/BurntSushi/toml"
	"github.com/containerd/containerd/api/types/runc/options"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/containerd/runtime/linux/runctypes"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/gpuslice/gpuslice/api"
	gpuslice "github.com/gpuslice/gpuslice/shim"
)

const (
	// Accepted types of options, compared without the part up to the last "/".
	runcType    = "containerd.runc.v1.Options"
	generalType = "runtimeoptions.v1.Options"
	createType  = "containerd.linux.runc.CreateOptions"

	// maxOptions limits a TOML text, in bytes.
	maxOptions = 64 << 10
)

// understand returns runc's options for the options that a caller sent:
//
//   - nothing (ctr, nerdctl, docker run --runtime io.containerd.gpuslice.v1): the defaults;
//   - containerd.runc.v1.Options: unchanged. Unknown fields of a newer containerd have no effect, as in runc's shim;
//   - runtimeoptions.v1.Options, which CRI and dockerd send to other runtimes than runc's: runc's options in TOML, from
//     the file ConfigPath or else from ConfigBody. An unknown key is an error, since an operator wrote it (containerd
//     adds none). dockerd, and CRI in containerd 1.6, pass on ConfigPath only; see impliesSystemd;
//   - containerd.linux.runc.CreateOptions, which clients of containerd 1.x send to other runtimes than runc's for a
//     container in a user namespace (ctr run --uidmap), to set the owner of its pipes.
//
// BinaryName may name gpuslice-runtime, as runc's shim requires, and is cleared then. Another program is an error: it would be
// ignored or run the container without a quota. gpuslice's own configuration names the low-level runtime.
func understand(sent *anypb.Any) (*options.Options, error) {
	runc, err := decode(sent)
	if err != nil {
		return nil, err
	}
	if named := runc.BinaryName; named != "" && named != gpuslice.RuntimeName &&
		(!filepath.IsAbs(named) || filepath.Base(named) != gpuslice.RuntimeName) {
		return nil, fmt.Errorf("the runtime's options name BinaryName %.256q, but %s prepares containers for a quota: leave BinaryName out, and name the low-level runtime by runtimes in the [runtime] section of gpuslice's configuration (%s)",
			named, Name, api.DefaultConfig)
	}
	runc.BinaryName = ""
	return runc, nil
}

func pack(runc *options.Options) (*anypb.Any, error) {
	value, err := proto.Marshal(runc)
	if err != nil {
		return nil, fmt.Errorf("the runtime's options: %w", err)
	}
	return &anypb.Any{TypeUrl: runcType, Value: value}, nil
}

func decode(sent *anypb.Any) (*options.Options, error) {
	runc := new(options.Options)
	if sent.GetTypeUrl() == "" && len(sent.GetValue()) == 0 {
		return runc, nil
	}
	switch name := typeName(sent.GetTypeUrl()); name {
	case runcType:
		if err := proto.Unmarshal(sent.Value, runc); err != nil {
			return nil, fmt.Errorf("the runtime's options are no %s: %w", name, err)
		}
		return runc, nil
	case generalType:
		general := new(runtimeoptions.Options)
		if err := proto.Unmarshal(sent.Value, general); err != nil {
			return nil, fmt.Errorf("the runtime's options are no %s: %w", name, err)
		}
		return decodeGeneral(general)
	case createType:
		create := new(runctypes.CreateOptions)
		if err := proto.Unmarshal(sent.Value, create); err != nil {
			return nil, fmt.Errorf("the runtime's options are no %s: %w", name, err)
		}
		return &options.Options{
			NoPivotRoot: create.NoPivotRoot, NoNewKeyring: create.NoNewKeyring, ShimCgroup: create.ShimCgroup,
			IoUid: create.IoUid, IoGid: create.IoGid, CriuImagePath: create.CriuImagePath, CriuWorkPath: create.CriuWorkPath,
		}, nil
	}
	return nil, fmt.Errorf("the runtime's options are of the type %.256q, which is not supported: give no options, those of runc (%s), or runc's in TOML (%s)",
		sent.GetTypeUrl(), runcType, generalType)
}

func typeName(url string) string { return url[strings.LastIndexByte(url, '/')+1:] }

func decodeGeneral(general *runtimeoptions.Options) (*options.Options, error) {
	if err := checkType(general.TypeUrl); err != nil {
		return nil, err
	}
	if general.ConfigPath == "" {
		return parse(general.ConfigBody, "the runtime's options")
	}
	text, err := readFile(general.ConfigPath)
	if err != nil {
		return nil, fmt.Errorf("the runtime's options name ConfigPath: %w", err)
	}
	return parse(text, fmt.Sprintf("the runtime's options in %.256q", general.ConfigPath))
}

// checkType checks TypeUrl, the type of the text. runc's options have no type of their own in TOML.
func checkType(url string) error {
	if name := typeName(url); name != "" && name != runcType {
		return fmt.Errorf("the runtime's options name TypeUrl %.256q, which is not supported: leave it out", url)
	}
	return nil
}

// parse parses runc's options in TOML. where names the source in errors.
func parse(text []byte, where string) (*options.Options, error) {
	if len(text) > maxOptions {
		return nil, fmt.Errorf("%s are larger than %s", where, api.FormatSize(maxOptions))
	}
	all := struct {
		*options.Options
		CriuPath   string // in containerd 1.x's default configuration; since 1.1 runc finds criu in PATH
		TypeURL    string // of runtimeoptions: containerd sends the whole section
		ConfigPath string // likewise, and empty: otherwise the file would be read
	}{Options: new(options.Options)}
	known, err := toml.Decode(string(text), &all)
	if err != nil {
		why := strings.ReplaceAll(strings.TrimPrefix(err.Error(), "toml: "), "\n", " ") // it may quote the text
		return nil, fmt.Errorf("%s: %s", where, why)
	}
	if unknown := known.Undecoded(); len(unknown) > 0 {
		return nil, fmt.Errorf("%s have no key %.256q: they are runc's, %s", where, unknown[0].String(), keys())
	}
	seen := make(map[string]bool)
	for _, key := range known.Keys() { // containerd ignores case, so the value of a duplicate is ambiguous
		folded := strings.ToLower(key.String())
		if seen[folded] {
			return nil, fmt.Errorf("%s have the key %.256q twice", where, key.String())
		}
		seen[folded] = true
	}
	if all.ConfigPath != "" {
		return nil, fmt.Errorf("%s name another file, ConfigPath %.256q", where, all.ConfigPath)
	}
	return all.Options, checkType(all.TypeURL)
}

func keys() string {
	var names []string
	fields := new(options.Options).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		var name strings.Builder
		for word := range strings.SplitSeq(string(fields.Get(i).Name()), "_") {
			name.WriteString(strings.ToUpper(word[:1]) + word[1:])
		}
		names = append(names, name.String())
	}
	return strings.Join(names, ", ")
}

// readFile reads a file named by a client of containerd, that is by root.
func readFile(path string) ([]byte, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("%.256q is not absolute", path)
	}
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a FIFO may have no writer
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &os.PathError{Op: "read", Path: path, Err: errors.New("not a regular file")}
	}
	return io.ReadAll(io.LimitReader(file, maxOptions+1))
}

// startOptions returns the options from containerd's input to `start`: nothing, the options (1.x to 2.2), or BootstrapParams with
// the options as an extension (since 2.3). It ignores extensions of unknown types; Create checks the container's options again.
func startOptions(input []byte, id, namespace string) (*anypb.Any, error) {
	params, err := parseBootstrap(input)
	if err != nil || params.id != id || params.namespace != namespace {
		return anyOptions(input)
	}
	for _, extension := range params.extensions {
		sent, err := anyOptions(extension)
		if err != nil {
			return nil, err
		}
		switch typeName(sent.TypeUrl) {
		case runcType, generalType:
			return sent, nil
		}
	}
	return nil, nil
}

func anyOptions(input []byte) (*anypb.Any, error) {
	sent := new(anypb.Any)
	if err := proto.Unmarshal(input, sent); err != nil {
		return nil, fmt.Errorf("the runtime's options from containerd cannot be read: %w", err)
	}
	return sent, nil
}
