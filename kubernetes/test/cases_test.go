//go:build cluster

// SPDX-License-Identifier: Apache-2.0

package test

import "testing"

// cases are tried one after the other on one node.
var cases = []struct {
	name string
	run  func(n *node)
}{
	{"one claim is a quota that its pod keeps", oneClaim},
	{"two containers share the quota of a claim", twoContainersShare},
	{"two pods share the quota of a claim", twoPodsShare},
	{"two requests are two quotas", twoRequestsInTwoContainers},
	{"a container has two requests on two cards", twoRequestsInAContainer},
	{"a container is refused two requests on one card, in a sentence", twoRequestsOnOneCard},
	{"a request that counts two has two cards", severalGPUs},
	{"of a list the first request that fits is taken", firstThatFits},
	{"what fits on no card is Pending and told why, until it fits", tooBig},
	{"a request that names no memory has a whole card", wholeCard},
	{"a namespace's bound refuses claims above it", namespaceBounds},
	{"forged annotations and variables change nothing", forgedAnnotations},
	{"a RuntimeClass and a claim are one quota", runtimeClass},
	{"a configuration that is not known is refused in a sentence", refusedConfiguration},
}

func TestCluster(t *testing.T) {
	n := newNode(t)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			n.of(t)
			defer n.clean()
			c.run(n)
		})
	}
}
