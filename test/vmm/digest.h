/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Generated from these files by "go generate". No file includes this one: it changes with them, so
 * the go command rebuilds the package.
 *
 *   ../../interceptor/cuda_abi.h
 *
 * SHA-256: 713391fc49eba675fe124b99aafae76f07507e7d80ad8035e935ed9faee1fd94
 */
