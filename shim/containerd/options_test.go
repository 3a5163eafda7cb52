// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/api/types/runc/options"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/containerd/runtime/linux/runctypes"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	gpuslice "github.com/gpuslice/gpuslice/shim"
)

// send encodes options as a caller does. prefix precedes the type.
func send(t testing.TB, prefix string, m proto.Message) *anypb.Any {
	t.Helper()
	value, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return &anypb.Any{TypeUrl: prefix + string(m.ProtoReflect().Descriptor().FullName()), Value: value}
}

func body(text string) *runtimeoptions.Options {
	return &runtimeoptions.Options{ConfigBody: []byte(text)}
}

// containerd's ConfigBody for a section of its default configuration.
const (
	bodyOf16 = `BinaryName = ""
CriuImagePath = ""
CriuPath = ""
CriuWorkPath = ""
IoGid = 0
IoUid = 0
NoNewKeyring = false
NoPivotRoot = false
Root = ""
ShimCgroup = ""
SystemdCgroup = true
`
	bodyOf24 = `BinaryName = ''
CriuImagePath = ''
CriuWorkPath = ''
IoGid = 7
IoUid = 4294967295
NoNewKeyring = true
NoPivotRoot = true
Root = '/run/runc'
ShimCgroup = '/shims'
SystemdCgroup = true
`
)

func TestOptionsOfEachCallerReachTheRuntime(t *testing.T) {
	file := filepath.Join(t.TempDir(), "options.toml")
	if err := os.WriteFile(file, []byte("SystemdCgroup = true\nRoot = '/from/file'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	all := &options.Options{NoPivotRoot: true, NoNewKeyring: true, ShimCgroup: "/shims", IoUid: 4294967295, IoGid: 7, Root: "/run/runc", SystemdCgroup: true}
	for name, c := range map[string]struct {
		sent *anypb.Any
		want *options.Options
	}{
		"none":                      {nil, &options.Options{}},
		"an empty message":          {&anypb.Any{}, &options.Options{}},
		"runc's":                    {send(t, "", all), all},
		"runc's, empty":             {send(t, "", &options.Options{}), &options.Options{}},
		"with a prefix":             {send(t, "type.googleapis.com/", all), all},
		"our own name":              {send(t, "", &options.Options{BinaryName: gpuslice.RuntimeName}), &options.Options{}},
		"our own path":              {send(t, "", &options.Options{BinaryName: "/else/where/" + gpuslice.RuntimeName}), &options.Options{}},
		"of dockerd without a path": {send(t, "", &runtimeoptions.Options{}), &options.Options{}},
		"a body of containerd 1.6":  {send(t, "", body(bodyOf16)), &options.Options{SystemdCgroup: true}},
		"a body of containerd 2.4":  {send(t, "types.containerd.io/", body(bodyOf24)), all},
		"a body with its type":      {send(t, "", body("TypeUrl = \""+runcType+"\"\nConfigPath = \"\"\nIoUid = 1\n")), &options.Options{IoUid: 1}},
		"in another case":           {send(t, "", body("systemdcgroup = true")), &options.Options{SystemdCgroup: true}},
		"a type beside the body":    {send(t, "", &runtimeoptions.Options{TypeUrl: "x/" + runcType, ConfigBody: []byte("IoGid = 2")}), &options.Options{IoGid: 2}},
		"our path in a body":        {send(t, "", body(`BinaryName = "/else/where/gpuslice-runtime"`)), &options.Options{}},
		"of 1.x, a user namespace":  {send(t, "", &runctypes.CreateOptions{IoUid: 1, IoGid: 2, NoPivotRoot: true}), &options.Options{IoUid: 1, IoGid: 2, NoPivotRoot: true}},
		"a file":                    {send(t, "", &runtimeoptions.Options{ConfigPath: file}), &options.Options{SystemdCgroup: true, Root: "/from/file"}},
		"a file before a body":      {send(t, "", &runtimeoptions.Options{ConfigPath: file, ConfigBody: []byte("?")}), &options.Options{SystemdCgroup: true, Root: "/from/file"}},
	} {
		got, err := understand(c.sent)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !proto.Equal(got, c.want) {
			t.Errorf("%s:\ngot  %v\nwant %v", name, got, c.want)
		}
	}
}

func TestAFieldOfANewerContainerdIsHandedOn(t *testing.T) {
	sent := send(t, "", &options.Options{SystemdCgroup: true})
	sent.Value = protowire.AppendTag(sent.Value, 1000, protowire.BytesType)
	sent.Value = protowire.AppendString(sent.Value, "of tomorrow")
	got, err := understand(sent)
	if err != nil {
		t.Fatal(err)
	}
	if !got.SystemdCgroup || !strings.Contains(string(got.ProtoReflect().GetUnknown()), "of tomorrow") {
		t.Errorf("got %v", got)
	}
}

func TestUnknownOptionsAreRefused(t *testing.T) {
	dir := t.TempDir()
	fifo, huge := filepath.Join(dir, "fifo"), filepath.Join(dir, "huge")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(huge, []byte(strings.Repeat("#", maxOptions+1)), 0o600); err != nil {
		t.Fatal(err)
	}
	path := func(path string) *anypb.Any { return send(t, "", &runtimeoptions.Options{ConfigPath: path}) }
	text := func(text string) *anypb.Any { return send(t, "", body(text)) }
	for _, c := range []struct {
		sent *anypb.Any
		want string
	}{
		{send(t, "", durationpb.New(1)), `of the type "google.protobuf.Duration", which is not supported`},
		{&anypb.Any{Value: []byte("x")}, `of the type "", which is not supported`},
		{&anypb.Any{TypeUrl: runcType, Value: []byte("garbage")}, "the runtime's options are no containerd.runc.v1.Options: "},
		{&anypb.Any{TypeUrl: generalType, Value: []byte{0xff}}, "the runtime's options are no runtimeoptions.v1.Options: "},
		{send(t, "", &options.Options{BinaryName: "runc"}), `name BinaryName "runc", but io.containerd.gpuslice.v1 prepares containers for a quota: leave BinaryName out, and name the low-level runtime by runtimes in the [runtime] section of gpuslice's configuration`},
		{send(t, "", &options.Options{BinaryName: "../" + gpuslice.RuntimeName}), `name BinaryName "../gpuslice-runtime"`},
		{text(`BinaryName = "/usr/bin/nvidia-container-runtime"`), `name BinaryName "/usr/bin/nvidia-container-runtime"`},
		{text("SystemdCgroups = true"), `the runtime's options have no key "SystemdCgroups": they are runc's, NoPivotRoot, NoNewKeyring, ShimCgroup, IoUid, IoGid, BinaryName, Root, SystemdCgroup, `},
		{text("[Options]\nSystemdCgroup = true"), `have no key "Options"`},
		{text("[SystemdCgroup]\nx = 1"), "incompatible types"},
		{text(`SystemdCgroup = "true"`), "line 1 (last key \"SystemdCgroup\"): incompatible types"},
		{text("SystemdCgroup = true\nsystemdCgroup = false"), `have the key "systemdCgroup" twice`},
		{text("IoUid = -1"), "out of range"},
		{text("IoUid = 4294967296"), "out of range"},
		{text("Root = "), "line 1"},
		{text("\x00\xff"), "the runtime's options: "},
		{text(`TypeUrl = "io.containerd.runsc.v1.options"`), `name TypeUrl "io.containerd.runsc.v1.options"`},
		{text(`ConfigPath = "/x"`), `name another file, ConfigPath "/x"`},
		{text(strings.Repeat("#", maxOptions+1)), "larger than 64KiB"},
		{send(t, "", &runtimeoptions.Options{TypeUrl: "x.y"}), `name TypeUrl "x.y"`},
		{path(filepath.Join(dir, "nothing")), "no such file"},
		{path("relative"), `ConfigPath: "relative" is not absolute`},
		{path(dir), "not a regular file"},
		{path(fifo), "not a regular file"},
		{path(huge), fmt.Sprintf("in %q are larger than 64KiB", huge)},
	} {
		_, err := understand(c.sent)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.80v: %v\nwant %s", c.sent, err, c.want)
		}
	}
}

// bootstrapOf returns the input that containerd 2.3 and later write to a new shim.
func bootstrapOf(t *testing.T, id, namespace string, extensions ...*anypb.Any) []byte {
	t.Helper()
	var m []byte
	field := func(number protowire.Number, value []byte) {
		m = protowire.AppendTag(m, number, protowire.BytesType)
		m = protowire.AppendBytes(m, value)
	}
	field(bootstrapID, []byte(id))
	field(bootstrapNamespace, []byte(namespace))
	m = protowire.AppendTag(m, 3, protowire.VarintType) // log_level
	m = protowire.AppendVarint(m, 4)
	field(4, []byte("v2.4.2"))
	for _, extension := range extensions {
		value, err := proto.Marshal(extension)
		if err != nil {
			t.Fatal(err)
		}
		field(bootstrapExtension, append(protowire.AppendVarint(protowire.AppendTag(nil, extensionValue, protowire.BytesType), uint64(len(value))), value...))
	}
	return m
}

func TestOptionsAreReadFromEachContainerdsFiles(t *testing.T) {
	sent := send(t, "", &options.Options{ShimCgroup: "/shims"})
	general := send(t, "", body("ShimCgroup = '/shims'"))
	other := send(t, "", durationpb.New(1))
	marshal := func(m proto.Message) []byte {
		text, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	for name, c := range map[string]struct {
		input []byte
		want  string // ShimCgroup
	}{
		"nothing":                         {nil, ""},
		"the options":                     {marshal(sent), "/shims"},
		"others":                          {marshal(general), "/shims"},
		"parameters without options":      {bootstrapOf(t, "c1", "ns"), ""},
		"parameters with options":         {bootstrapOf(t, "c1", "ns", sent), "/shims"},
		"parameters with other things":    {bootstrapOf(t, "c1", "ns", other, general), "/shims"},
		"parameters with only other ones": {bootstrapOf(t, "c1", "ns", other), ""},
	} {
		found, err := startOptions(c.input, "c1", "ns")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got, err := understand(found)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got.ShimCgroup != c.want {
			t.Errorf("%s: ShimCgroup is %q", name, got.ShimCgroup)
		}
	}
	for name, input := range map[string][]byte{
		"garbage":                         []byte("\xff\xff"),
		"parameters of another container": bootstrapOf(t, "c2", "ns", sent),
		"parameters of another namespace": bootstrapOf(t, "c1", "other", sent),
		"options of another type":         marshal(other),
	} {
		found, err := startOptions(input, "c1", "ns")
		if err == nil {
			_, err = understand(found)
		}
		if err == nil {
			t.Errorf("%s: nothing is wrong with it", name)
		}
	}
}

func FuzzBody(f *testing.F) {
	f.Add(bodyOf16)
	f.Add(bodyOf24)
	f.Add("SystemdCgroups = true\n[[x]]\n\"\\u0000\" = 1")
	f.Fuzz(func(t *testing.T, text string) {
		got, err := understand(send(t, "", &runtimeoptions.Options{ConfigBody: []byte(text)}))
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("more than a line: %q", err)
			}
			return
		}
		if got.BinaryName != "" {
			t.Errorf("another program is run: %q", got.BinaryName)
		}
	})
}

func FuzzStart(f *testing.F) {
	f.Add([]byte("\n\x02c1\x12\x02nsB\x02\n\x00"))
	f.Add([]byte("\n\x1acontainerd.runc.v1.Options\x12\x02H\x01"))
	f.Fuzz(func(t *testing.T, input []byte) {
		found, err := startOptions(input, "c1", "ns")
		if err != nil || typeName(found.GetTypeUrl()) == generalType { // it may name a file
			return
		}
		got, err := understand(found)
		if err != nil {
			return
		}
		if got.BinaryName != "" {
			t.Errorf("another program is run: %q", got.BinaryName)
		}
	})
}
