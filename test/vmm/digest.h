/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Generated from these files by "go generate". No file includes this one: it changes with them, so
 * the go command rebuilds the package.
 *
 *   ../../interceptor/cuda_abi.h
 *
 * SHA-256: e7d4bf1eb3fadca338e1f8224f2448339c35a5954695ea59f2a252c5e9df97f5
 */
