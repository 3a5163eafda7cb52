//go:build cluster

// SPDX-License-Identifier: Apache-2.0

package test

import (
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
	text, err := os.ReadFile(filepath.Join("../..", quickstartFile))
	n.Must(err)
	dir := n.in("quickstart")
	var image string
	for _, found := range manifest.FindAllStringSubmatch(string(text), -1) {
		n.write(filepath.Join(dir, found[1]), "%s", found[2])
		image = regexp.MustCompile(`image: (\S+)`).FindStringSubmatch(found[2])[1]
	}
	n.pytorch(image)
	program := n.write(filepath.Join(dir, "bin/kubectl"), "#!/bin/sh\nexec %s --kubeconfig=%s --namespace=%s \"$@\"\n",
		n.plane.Program("kubectl"), n.plane.Kubeconfig("kubectl", n.plane.Admin.BearerToken), n.ns)
	n.Must(os.Chmod(program, 0o755))
	blocks, err := doccommands.Read("../..")
	n.Must(err)
	typed := 0
	for _, b := range blocks {
		if b.Mark != "cluster" {
			continue
		}
		for _, c := range b.Commands {
			cmd := exec.Command("/bin/bash", "-c", c.Text)
			cmd.Dir, cmd.Env = dir, append(os.Environ(), "HOME="+dir, "PATH="+filepath.Dir(program)+":"+os.Getenv("PATH"))
			said, err := cmd.CombinedOutput()
			if want := strings.TrimSpace(strings.Join(c.Printed, "\n")); err != nil || strings.TrimSpace(string(said)) != want {
				n.t.Errorf("%s: %s: it printed %q, %v; the document has %q", b, c.Text, said, err, want)
			}
			typed++
		}
	}
	if typed == 0 {
		n.t.Errorf("%s has nothing to type in a cluster", quickstartFile)
	}
	n.refused("train", "train", 3*gib)
	n.withdraw()
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
