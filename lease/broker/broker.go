// SPDX-License-Identifier: Apache-2.0

// Package broker serves the GPU session of one lease: it executes clients' requests on one device, in order of arrival.
//
// The package owns the lease's CUDA context, memory and modules. Clients name them by handles. Every input is checked before
// it reaches the driver; the exception is device code, which runs only on the device.
//
// The package must never trust a request, nor let a slow or disconnected client block another.
package broker
