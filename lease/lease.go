// SPDX-License-Identifier: Apache-2.0

// Package lease is the client of leases and of GPU sessions: it acquires a slice of a GPU for a time, and works in it without a GPU device
// node, a driver or CUDA.
//
// What the lease service or a broker refuses is an [*Error], with a code to switch on.
package lease
