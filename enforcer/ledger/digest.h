/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Generated from these files by "go generate". Nobody includes this one: the go command looks at it, and not at those.
 *
 *   ../../interceptor/atomic128.h
 *   ../../interceptor/attach.h
 *   ../../interceptor/ledger.c
 *   ../../interceptor/ledger.h
 *
 * SHA-256: c8ea68d12dec3167354d4aa1a48e14210c992b1c4a036eda2e06388655578fa0
 */
