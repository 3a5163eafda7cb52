/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Generated from these files by "go generate". Nobody includes this one: the go command looks at it, and not at those.
 *
 *   ../../interceptor/atomic128.h
 *   ../../interceptor/attach.h
 *   ../../interceptor/ledger.c
 *   ../../interceptor/ledger.h
 *
 * SHA-256: 72bdc31c438dd15231cc82d4c1f7ec630d0821ec419065490fa64ced1d15d4de
 */
