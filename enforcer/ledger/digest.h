/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Generated from interceptor/ledger.h, ledger.c, atomic128.h and attach.h by "go generate ./enforcer/ledger".
 * The go command rebuilds a package when a file of its directory changes, and does not see those: this
 * file changes with them. A test holds it against them.
 */
#define NATIVE_DIGEST "e2699241b5893ba6528550a558089b391c5e0d7271ab9a31b045cef029b85ede"
