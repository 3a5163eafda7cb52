// SPDX-License-Identifier: Apache-2.0

// Package scale tests the driver's part of a large cluster: real etcd, API server, scheduler and controller manager, with nodes
// simulated in one process. It checks that no card is overcommitted, and measures how long pods wait, how well the order of
// published devices packs the cards, and how often ResourceSlices are written.
//
// A simulated node has a Node with a lease, pods that become Running and Succeeded, claims prepared on cards in memory, and
// ResourceSlices. Only the driver's own code, package inventory, may publish these. A run takes minutes and is not part of CI.
// `make scale` runs it.
package scale
