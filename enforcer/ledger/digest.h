/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Generated from interceptor/ledger.h, ledger.c, atomic128.h and attach.h by "go generate ./enforcer/ledger".
 * The go command rebuilds a package when a file of its directory changes, and does not see those: this
 * file changes with them. A test holds it against them.
 */
#define NATIVE_DIGEST "3c7d764122f4ee4741019207960bf0fa450b855cea7ac9b2580bf7824a44bc47"
