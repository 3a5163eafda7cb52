// SPDX-License-Identifier: Apache-2.0

// Package lease is the client of leases and GPU sessions. It acquires a slice of a GPU for a limited time and works in it,
// without a GPU device node, a driver or CUDA.
//
// Errors of the lease service and of brokers are of type [*Error], with a code.
package lease
