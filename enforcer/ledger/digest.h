/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Generated from these files by "go generate". Nobody includes this one: the go command looks at it, and not at those.
 *
 *   ../../interceptor/atomic128.h
 *   ../../interceptor/attach.h
 *   ../../interceptor/ledger.c
 *   ../../interceptor/ledger.h
 *
 * SHA-256: 90940f9e1acfcac511a83be8870f67675582fa7263e8cdf0aac241aa6741cb72
 */
