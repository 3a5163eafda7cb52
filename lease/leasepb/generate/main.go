// SPDX-License-Identifier: Apache-2.0

// Generate compiles lease.proto of the directory above, runs protoc's Go plugins on it, and writes its descriptor for package
// gpuslice in Python. It needs no protoc.
package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"slices"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

const (
	source = "lease.proto"
	python = "../python/gpuslice/_descriptor.py"
)

func main() {
	if err := generate(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func generate(ctx context.Context) error {
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{}),
		SourceInfoMode: protocompile.SourceInfoStandard, // keeps comments
	}
	files, err := compiler.Compile(ctx, source)
	if err != nil {
		return err
	}
	request := &pluginpb.CodeGeneratorRequest{FileToGenerate: []string{source}, Parameter: proto.String("paths=source_relative")}
	request.ProtoFile = withImports(nil, map[string]bool{}, files[0])
	input, err := proto.Marshal(request)
	if err != nil {
		return err
	}
	for _, plugin := range []string{"protoc-gen-go", "protoc-gen-go-grpc"} {
		if err := run(ctx, plugin, input); err != nil {
			return fmt.Errorf("%s: %w", plugin, err)
		}
	}
	return describe(request.ProtoFile[len(request.ProtoFile)-1])
}

// describe writes a file's descriptor without its comments, as Python's protobuf reads it.
func describe(file *descriptorpb.FileDescriptorProto) error {
	file.SourceCodeInfo = nil
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(file)
	if err != nil {
		return err
	}
	text := "# SPDX-License-Identifier: Apache-2.0\n# Generated from lease/leasepb/lease.proto by lease/leasepb/generate\n" +
		"import base64\n\nDESCRIPTOR = base64.b64decode(\n"
	for line := range slices.Chunk([]byte(base64.StdEncoding.EncodeToString(data)), 120) {
		text += fmt.Sprintf("    %q\n", line)
	}
	return os.WriteFile(python, []byte(text+")\n"), 0o644) //nolint:gosec // source code, as git has it
}

// withImports appends a file after its imports, as plugins require.
func withImports(all []*descriptorpb.FileDescriptorProto, seen map[string]bool, file protoreflect.FileDescriptor) []*descriptorpb.FileDescriptorProto {
	if seen[file.Path()] {
		return all
	}
	seen[file.Path()] = true
	imports := file.Imports()
	for i := range imports.Len() {
		all = withImports(all, seen, imports.Get(i).FileDescriptor)
	}
	return append(all, protoutil.ProtoFromFileDescriptor(file))
}

func run(ctx context.Context, plugin string, input []byte) error {
	command := exec.CommandContext(ctx, "go", "tool", plugin)
	command.Stdin, command.Stderr = bytes.NewReader(input), os.Stderr
	output, err := command.Output()
	if err != nil {
		return err
	}
	response := &pluginpb.CodeGeneratorResponse{}
	if err := proto.Unmarshal(output, response); err != nil {
		return err
	}
	if response.Error != nil {
		return fmt.Errorf("%s", response.GetError())
	}
	for _, file := range response.File {
		if err := os.WriteFile(file.GetName(), []byte(file.GetContent()), 0o644); err != nil { //nolint:gosec // source code, as git has it
			return err
		}
	}
	return nil
}
