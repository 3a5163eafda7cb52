/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Generated from interceptor/ledger.h, ledger.c, atomic128.h and attach.h by "go generate ./enforcer/ledger".
 * The go command rebuilds a package when a file of its directory changes, and does not see those: this
 * file changes with them. A test holds it against them.
 */
#define NATIVE_DIGEST "d1e180d051cee9ea0dd157b56f30606d7618ce3f12cf18f120976e797b74b12b"
