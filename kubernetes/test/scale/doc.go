// SPDX-License-Identifier: Apache-2.0

// Package scale tries the driver's part of a large cluster: the real etcd, API server, scheduler and controller manager, with nodes that
// are simulated in one process. It shows that no card is ever given more than it has, how long pods wait, how well cards are packed by the
// order in which devices are published, and how often ResourceSlices are written while pods start and end.
//
// A node is what the cluster sees of one: a Node with its lease, pods that become Running and Succeeded, claims that are prepared by
// accounting on cards in memory, and ResourceSlices that package inventory publishes. It must never decide what is published or write a
// ResourceSlice by other means than the driver's own, and it is no part of CI: a run takes minutes. `make scale` runs it.
package scale
