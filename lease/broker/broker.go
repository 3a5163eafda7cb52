// SPDX-License-Identifier: Apache-2.0

// Package broker serves one lease's GPU session: it carries out clients' requests on one device, in the order in which they arrive.
//
// It owns the CUDA context, all memory and all modules of the lease. A client names them by handles; nothing that it sends reaches the
// driver unchecked but code for the device, and that runs there alone.
//
// It must never trust a request, nor let one client that is slow or gone stop another.
package broker
