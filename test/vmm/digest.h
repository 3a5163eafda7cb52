/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Generated from these files by "go generate". Nobody includes this one: the go command looks at it, and not at those.
 *
 *   ../../interceptor/cuda_abi.h
 *
 * SHA-256: 47f94ee03fe6796dc8c255b17a5a09783cf8dd66372c187ce8bd226907d1e3be
 */
