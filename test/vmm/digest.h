/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Generated from these files by "go generate". No file includes this one: it changes with them, so
 * the go command rebuilds the package.
 *
 *   ../../interceptor/cuda_abi.h
 *
 * SHA-256: 9f5c350e09e90a37809c196d47cbd56d1bce9b2662887a5ab3b3010578ee6441
 */
