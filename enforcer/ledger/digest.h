/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Generated from these files by "go generate". Nobody includes this one: the go command looks at it, and not at those.
 *
 *   ../../interceptor/atomic128.h
 *   ../../interceptor/attach.h
 *   ../../interceptor/ledger.c
 *   ../../interceptor/ledger.h
 *
 * SHA-256: af8f94dcd339b029601ed5c798a5d198fa93f5b66bfd157a639e94dfdcbb7f0a
 */
