//go:build cluster

// SPDX-License-Identifier: Apache-2.0

package test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/gpuslice/gpuslice/test/testhost"
)

const containerfile = "../deploy/Containerfile"

type stage struct {
	base       string
	copies     [][]string // sources below the project's root, and the directory in the image
	entrypoint []string
}

// bases maps a Containerfile's base images to the suite's archives; "" is an empty image.
var bases = map[string]string{"debian:bookworm-slim": "debian.tar", "scratch": ""}

// imageStages parses the Containerfile. It knows only the instructions used there.
func (n *node) imageStages() map[string]*stage {
	n.t.Helper()
	text, err := os.ReadFile(containerfile)
	n.Must(err)
	all, last := make(map[string]*stage), (*stage)(nil)
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		switch {
		case len(words) == 0 || strings.HasPrefix(words[0], "#"):
		case words[0] == "FROM" && len(words) == 4 && words[2] == "AS":
			last = &stage{base: words[1]}
			all[words[3]] = last
		case words[0] == "COPY" && len(words) >= 3 && last != nil:
			last.copies = append(last.copies, words[1:])
		case words[0] == "ENTRYPOINT" && last != nil:
			n.Must(json.Unmarshal([]byte(strings.TrimPrefix(strings.TrimSpace(line), "ENTRYPOINT")), &last.entrypoint))
		default:
			n.t.Fatalf("%s: %q is not understood", containerfile, line)
		}
	}
	return all
}

// build builds an image of the Containerfile. instead replaces some of its files.
func (n *node) build(target, ref string, instead map[string]string) {
	n.t.Helper()
	s := n.imageStages()[target]
	base, known := bases[s.base]
	if !known {
		n.t.Fatalf("%s: the suite has nothing for %s", containerfile, s.base)
	}
	dir, layer := n.in("build"), n.in("build.tar")
	for _, words := range s.copies {
		into := filepath.Join(dir, words[len(words)-1])
		n.Must(os.MkdirAll(into, 0o755))
		for _, name := range words[:len(words)-1] {
			from := filepath.Join("../..", name)
			if other := instead[name]; other != "" {
				from = other
			}
			n.sh("cp", from, into)
		}
	}
	mode := "-cf"
	if base != "" {
		n.sh("cp", n.engine("images", base), layer)
		mode = "-rf"
	}
	n.sh("tar", "-C", dir, "--owner=0", "--group=0", mode, layer, ".")
	n.image(ref, layer, testhost.ImageConfig{Entrypoint: s.entrypoint})
	n.Must(os.RemoveAll(dir))
	n.Must(os.Remove(layer))
}

func (n *node) sh(words ...string) {
	n.t.Helper()
	if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
		n.t.Fatalf("%s: %v\n%s", words, err, out)
	}
}
