//go:build cluster

// SPDX-License-Identifier: Apache-2.0

package test

import (
	"path/filepath"
	"slices"
	"strings"
)

const operatorFile = "docs/operate/kubernetes.md"

// operator types the page's commands twice: those for the chart, and those for kustomize.
func operator(n *node) {
	n.bare(func() {
		for _, manifests := range [][]string{{"-k", "../deploy/base"}, {"-f", "../deploy/elastic/deviceclass.yaml"}} {
			_, err := n.plane.Kubectl("", append([]string{"delete", "--ignore-not-found"}, manifests...)...)
			n.Must(err)
		}
		n.driverComes()
		n.images("1")
		for _, image := range []string{"gpuslice:", "gpuslice-dra:"} {
			for _, version := range []string{"1", "2"} {
				out, err := n.ctr("--namespace=k8s.io", "image", "tag", "gpuslice.test/"+image+"1", "registry.example.com/"+image+version)
				if err != nil {
					n.t.Fatalf("%v\n%s", err, out)
				}
			}
		}
		before := n.deployed() // what other cases leave in the cluster
		for _, ways := range [][2]string{{"chart", "-k . "}, {"kustomize", "helm"}} {
			n.operates(ways[0], ways[1])
			for _, name := range n.deployed() {
				if !slices.Contains(before, name) {
					n.t.Errorf("%s: %s is left", ways[0], name)
				}
			}
		}
	})
}

// operates types the page's blocks but those for the other way.
func (n *node) operates(way, other string) {
	n.t.Helper()
	dir := n.in(way)
	n.writes(operatorFile, dir)
	n.sh("mkdir", filepath.Join(dir, "kubernetes"))
	n.sh("cp", "-r", "../deploy", filepath.Join(dir, "kubernetes"))
	_, err := n.plane.Kubectl("", "create", "namespace", "team")
	n.Must(err)
	n.types(operatorFile, dir, func(commands string) bool { return !strings.Contains(commands, other) })
	_, err = n.plane.Kubectl("", "delete", "namespace", "team")
	n.Must(err)
}

// deployed returns what the node and the cluster have of a deployment.
func (n *node) deployed() []string {
	n.t.Helper()
	out, err := n.plane.Kubectl("", "get", "namespaces,deviceclasses,resourceslices,clusterroles,clusterrolebindings,validatingadmissionpolicies,"+
		"validatingadmissionpolicybindings,mutatingadmissionpolicies,mutatingadmissionpolicybindings", "--output=name")
	n.Must(err)
	all := strings.Split(out, "\n")
	for _, dir := range []string{"/opt", "/run", "/var/lib", "/var/run/cdi", "/var/lib/kubelet/plugins", "/var/lib/kubelet/plugins_registry"} {
		files, err := filepath.Glob(dir + "/*")
		n.Must(err)
		all = append(all, files...)
	}
	return slices.DeleteFunc(all, func(name string) bool { return !strings.Contains(name, "gpuslice") })
}
