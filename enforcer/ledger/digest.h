/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Generated from these files by "go generate". No file includes this one: it changes with them, so
 * the go command rebuilds the package.
 *
 *   ../../interceptor/atomic128.h
 *   ../../interceptor/attach.h
 *   ../../interceptor/ledger.c
 *   ../../interceptor/ledger.h
 *
 * SHA-256: 71367aadc03bcf71566e7ef4f046695313bfa40302d57656c4fadb56507232da
 */
