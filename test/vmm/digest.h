/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Generated from these files by "go generate". Nobody includes this one: the go command looks at it, and not at those.
 *
 *   ../../interceptor/cuda_abi.h
 *
 * SHA-256: 4c24482d894c27817e20fe497570309b48e2cbe05ef0c92216411b2e25f0c67e
 */
