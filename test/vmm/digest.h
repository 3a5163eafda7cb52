/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Generated from these files by "go generate". No file includes this one: it changes with them, so
 * the go command rebuilds the package.
 *
 *   ../../interceptor/cuda_abi.h
 *
 * SHA-256: 36df4f9e6c94f73b7ca06d206dcf252264445d1db0c824f545bffa2ae3833741
 */
