//go:build cluster

// SPDX-License-Identifier: Apache-2.0

package test

import "testing"

// cases run one after the other on the same node.
var cases = []struct {
	name string
	run  func(n *node)
}{
	{"the quickstart does what it says", quickstart},
	{"one claim is a quota that its pod keeps", oneClaim},
	{"two pods share the quota of a claim", twoPodsShare},
	{"two requests are two quotas", twoRequestsInTwoContainers},
	{"a container has two requests on two cards", twoRequestsInAContainer},
	{"a container has two claims on two cards", twoClaimsInAContainer},
	{"a container is refused two requests on one card, in a sentence", twoRequestsOnOneCard},
	{"a request that counts two has two cards", severalGPUs},
	{"of a list the first request that fits is taken", firstThatFits},
	{"what fits on no card is Pending and told why, until it fits", tooBig},
	{"a request that names no memory has a whole card", wholeCard},
	{"each kind of workload keeps its quota", workloadsKeepQuotas},
	{"a claim needs nothing that Pod Security forbids", restricted},
	{"a card is shared in halves and thirds, and what does not fit waits", sharesOfACard},
	{"pods that know nothing of claims have a quota by an extended resource", extendedResources},
	{"a namespace's bound refuses claims above it", namespaceBounds},
	{"forged annotations and variables change nothing", forgedAnnotations},
	{"a RuntimeClass and a claim are one quota", runtimeClass},
	{"pods of HAMi and of NVIDIA's toolkit keep the quota that they name", fromElsewhere},
	{"elastic claims take turns on a card", elasticClaims},
	{"a claim is elastic if its class and its device are", elasticOrNot},
	{"a configuration that is not known is refused in a sentence", refusedConfiguration},
	{"a container of a claim with a ttl is ended when the ttl has passed", ttl},
	{"adminAccess is refused in a sentence", adminAccess},
	{"a driver that is killed while it prepares a claim prepares it when it is back", killedInPrepare},
	{"while gpusliced does not run its cards get no new pods and running pods stay", enforcerAway},
	{"a lost card gets no new pods, and its pods stay", lostCard},
	{"what a pod still has that was deleted by force is not given away", deletedByForce},
	{"a claim waits until a program outside slices releases its memory, and says so", outsideComes},
	{"a drained node keeps nothing of its claims", drained},
	{"pods keep their quota when any daemon is restarted", restarts},
	{"a pod refused by the hook says why, and leaves nothing", hookRefuses},
	{"what hangs while a container is made is given up, and the container starts later", hookHangs},
	{"a container that is started again has its quota again", startedAgain},
	{"containers that crash again and again keep their quota and leave nothing", crashes},
	{"a size is rounded up to MiB", oddSize},
	{"a node that has nothing but NVIDIA's driver has all else by pods", inPods(quotaInPods)},
	{"an upgrade of gpusliced and driver in pods leaves what runs as it is", inPods(upgradedInPods)},
	{"an operator's tasks do what the page says", operator},
	{"a pod with a claim starts as a plain one does", startTimes},
	{"the driver is small and idle", driverCosts},
	// The following cases run with CRI-O.
	{"under CRI-O one claim is a quota that its pod keeps", underCRIO(oneClaim)},
	{"under CRI-O two containers share the quota of a claim", underCRIO(twoContainersShare)},
	{"under CRI-O a container has two requests on two cards", underCRIO(twoRequestsInAContainer)},
	{"under CRI-O a container that is started again has its quota again", underCRIO(startedAgain)},
	{"under CRI-O a RuntimeClass and a claim are one quota", underCRIO(runtimeClassBeside)},
	{"under CRI-O pods keep their quota when it is restarted", underCRIO(restartedCRIO)},
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
