//go:build cluster

// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/gpuslice/gpuslice/test/doccommands"
	"github.com/gpuslice/gpuslice/test/testhost"
)

const quickstartFile = "docs/use/kubernetes.md"

// manifest matches the files that the document tells users to write.
var manifest = regexp.MustCompile("(?s)`([a-z-]+[.]yaml)`[^`\n]*:\n\n```yaml\n(.*?)```")

// standIns replace programs of the document's image.
var standIns = map[string]string{
	"python":     "exec /demo/cuda_hog 2147483648",
	"nvidia-smi": `set -- $(/demo/cuda_hog 0); echo "$(($4 / 1048576)) MiB"`,
}

// quickstart types the document's commands in a shell and compares what they print.
func quickstart(n *node) {
	dir := n.in("quickstart")
	n.pytorch(n.writes(quickstartFile, dir))
	n.types(quickstartFile, dir, func(string) bool { return true })
	n.refused("train", "train", 3*gib)
	n.withdraw()
}

// writes writes a document's files into a directory. It returns the last image that they name.
func (n *node) writes(document, dir string) (image string) {
	n.t.Helper()
	text, err := os.ReadFile(filepath.Join("../..", document))
	n.Must(err)
	for _, found := range manifest.FindAllStringSubmatch(string(text), -1) {
		n.write(filepath.Join(dir, found[1]), "%s", found[2])
		if named := regexp.MustCompile(`image: (\S+)`).FindStringSubmatch(found[2]); named != nil {
			image = named[1]
		}
	}
	return image
}

// types types the commands of a document's blocks in a directory, and compares what they print, if the document has it. It
// repeats `kubectl get` until then.
func (n *node) types(document, dir string, isWanted func(commands string) bool) {
	n.t.Helper()
	config := n.plane.Kubeconfig("typed", n.plane.Admin.BearerToken)
	n.sh(n.plane.Program("kubectl"), "--kubeconfig="+config, "config", "set-context", "--current", "--namespace="+n.ns)
	blocks, err := doccommands.Read("../..")
	n.Must(err)
	typed := 0
	for _, b := range blocks {
		if b.File != document || b.Mark != "cluster" || !isWanted(fmt.Sprint(b.Commands)) {
			continue
		}
		for _, c := range b.Commands {
			want, got := strings.TrimSpace(strings.Join(c.Printed, "\n")), ""
			try := func() error {
				cmd := exec.Command("/bin/bash", "-c", c.Text)
				cmd.Dir, cmd.Env = dir, append(os.Environ(), "HOME="+dir, "KUBECONFIG="+config,
					"PATH="+filepath.Dir(n.plane.Program("kubectl"))+":"+n.engine("helm")+":"+os.Getenv("PATH"))
				said, err := cmd.CombinedOutput()
				if got = strings.TrimSpace(string(said)); err != nil || want != "" && got != want {
					return fmt.Errorf("%s: %s: it printed %q, %w; the document has %q", b, c.Text, got, err, want)
				}
				return nil
			}
			if strings.HasPrefix(c.Text, "kubectl get") {
				n.eventually("the document is right", try)
			} else if err := try(); err != nil {
				n.t.Error(err)
			}
			typed++
		}
	}
	if typed == 0 {
		n.t.Errorf("%s has nothing to type in a cluster", document)
	}
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
