/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Generated from these files by "go generate". Nobody includes this one: the go command looks at it, and not at those.
 *
 *   ../../interceptor/atomic128.h
 *   ../../interceptor/attach.h
 *   ../../interceptor/ledger.c
 *   ../../interceptor/ledger.h
 *
 * SHA-256: bc8140fe723e49df287577d82705345a7d93b238f6c9427ac569fb533aa4ebd7
 */
