//go:build cluster

// SPDX-License-Identifier: Apache-2.0

package test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/gpuslice/gpuslice/test/doccommands"
	"github.com/gpuslice/gpuslice/test/testhost"
)

const quickstartFile = "docs/use/kubernetes.md"

// manifest matches the file that the document tells users to write.
var manifest = regexp.MustCompile("(?s)in `(vram.yaml)`:\n\n```yaml\n(.*?)```")

// standIns replace programs of the document's image.
var standIns = map[string]string{
	"python":     "exec /demo/cuda_hog 2147483648",
	"nvidia-smi": `set -- $(/demo/cuda_hog 0); echo "$(($4 / 1048576)) MiB"`,
}

// quickstart runs the document's commands and checks their output.
func quickstart(n *node) {
	text, err := os.ReadFile(filepath.Join("../..", quickstartFile))
	n.Must(err)
	found := manifest.FindStringSubmatch(string(text))
	if found == nil {
		n.t.Fatalf("%s has no manifest", quickstartFile)
	}
	name, yaml := found[1], found[2]
	file := n.write(n.in(name), "%s", yaml)
	n.pytorch(regexp.MustCompile(`image: (\S+)`).FindStringSubmatch(yaml)[1])
	blocks, err := doccommands.Read("../..")
	n.Must(err)
	typed := 0
	for _, b := range blocks {
		if b.Mark != "cluster" {
			continue
		}
		for _, c := range b.Commands {
			words := strings.Fields(strings.ReplaceAll(c.Text, name, file))
			if words[0] != "kubectl" {
				n.t.Fatalf("%s: %s: kubectl is what is typed here", b, c.Text)
			}
			said, err := n.plane.Kubectl("", append([]string{"--namespace=" + n.ns}, words[1:]...)...)
			if want := strings.TrimSpace(strings.Join(c.Printed, "\n")); err != nil || strings.TrimSpace(said) != want {
				n.t.Errorf("%s: %s: it printed %q, %v; the document has %q; %s", b, c.Text, said, err, want, n.events("train"))
			}
			typed++
		}
	}
	if typed == 0 {
		n.t.Errorf("%s has nothing to type in a cluster", quickstartFile)
	}
	n.refused("train", "train", 3*gib)
}

// pytorch builds the document's image with stand-ins for its programs.
func (n *node) pytorch(ref string) {
	n.t.Helper()
	bin, layer := n.in("pytorch", "usr", "bin"), n.in("pytorch.tar")
	for name, script := range standIns {
		path := n.write(filepath.Join(bin, name), "#!/bin/sh\n%s\n", script)
		n.Must(os.Chmod(path, 0o755))
	}
	n.sh("cp", n.engine("images", "debian.tar"), layer)
	n.sh("tar", "-C", n.in("pytorch"), "-rf", layer, "./usr/bin")
	n.image("docker.io/"+ref, layer, testhost.ImageConfig{Cmd: []string{"/bin/sh"}})
	n.Must(os.Remove(layer))
}
