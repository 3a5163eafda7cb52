/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Generated from interceptor/ledger.h, ledger.c, atomic128.h and attach.h by "go generate ./enforcer/ledger".
 * The go command rebuilds a package when a file of its directory changes, and does not see those: this
 * file changes with them. A test holds it against them.
 */
#define NATIVE_DIGEST "847cd15e55c0f25034b75bf2e2f3935e57c4428c7ad949fafd382e1f198d1f5a"
