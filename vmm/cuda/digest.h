/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Generated from these files by "go generate". No file includes this one: it changes with them, so
 * the go command rebuilds the package.
 *
 *   ../../interceptor/cuda_abi.h
 *
 * SHA-256: 315cf2aba1e9780d3b6587a70bb3d1e8b223b97e5397089cfe0ece54214dfe9b
 */
