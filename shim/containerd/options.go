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
	// The types of options that are understood. Types are compared without what stands before the last "/".
	runcType    = "containerd.runc.v1.Options"
	generalType = "runtimeoptions.v1.Options"
	createType  = "containerd.linux.runc.CreateOptions"

	// maxOptions is the size in bytes of a TOML text. containerd's is a part of its configuration.
	maxOptions = 64 << 10
)

// understand returns runc's options for what a caller sent:
//
//   - nothing (ctr, nerdctl, docker run --runtime io.containerd.gpuslice.v1): the defaults;
//   - containerd.runc.v1.Options: themselves. Fields that are not known here, of a newer containerd, mean
//     nothing, as to runc's own shim of that age;
//   - runtimeoptions.v1.Options, which CRI and dockerd send to every runtime but runc's: runc's options in TOML, as they
//     stand in an engine's configuration, in the file ConfigPath or else in ConfigBody. A key that is not known is refused: an
//     operator wrote it (containerd adds none), and expects something of it. dockerd, and CRI in containerd 1.6, pass
//     only ConfigPath on and lose all else in silence; see impliesSystemd;
//   - containerd.linux.runc.CreateOptions, which clients of containerd 1.x send to every runtime but runc's for a container in a
//     user namespace (ctr run --uidmap), to say whose its pipes are: the shim of containerd 1.1 took these.
//
// BinaryName may name gpuslice-runtime, for which runc's shim would need it, and is left out then. Another program is refused:
// it would either be ignored, or run the container without a quota. The low-level runtime is named in gpuslice's own
// configuration.
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

// pack makes of options what a caller sends.
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
	return nil, fmt.Errorf("the runtime's options are of the type %.256q, which is not understood: give it none, those of runc (%s), or runc's in TOML (%s)",
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

// checkType judges TypeUrl, which says what is in the text. Runc's options have no name of their own there.
func checkType(url string) error {
	if name := typeName(url); name != "" && name != runcType {
		return fmt.Errorf("the runtime's options name TypeUrl %.256q, which is not understood: leave it out", url)
	}
	return nil
}

// parse reads runc's options in TOML. where is for errors.
func parse(text []byte, where string) (*options.Options, error) {
	if len(text) > maxOptions {
		return nil, fmt.Errorf("%s are larger than %s", where, api.FormatSize(maxOptions))
	}
	all := struct {
		*options.Options
		CriuPath   string // of containerd 1.x, in each default configuration; runc looks for criu in PATH since 1.1
		TypeURL    string // of runtimeoptions: containerd makes the body of all that stands in the section
		ConfigPath string // likewise, and empty: else it would be what is read
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
	for _, key := range known.Keys() { // in any case, as containerd reads them: which of two would it be?
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

// keys are those of runc's options, for a sentence.
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

// readFile reads the file that a client of containerd named: whoever may do that is root.
func readFile(path string) ([]byte, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("%.256q is not absolute", path)
	}
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // nobody may write into a FIFO
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

// startOptions finds the options in what containerd writes to `start`: nothing, the options (1.x to 2.2), or
// since 2.3 BootstrapParams, of which they are one extension among others. Those of no known type mean nothing here:
// they need not be options, and those that a container is created with are judged again then.
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

// anyOptions reads the options themselves.
func anyOptions(input []byte) (*anypb.Any, error) {
	sent := new(anypb.Any)
	if err := proto.Unmarshal(input, sent); err != nil {
		return nil, fmt.Errorf("what containerd sends for the runtime's options cannot be read: %w", err)
	}
	return sent, nil
}
