#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The ledger's model, as far as it is checked in a few seconds. The whole of it: interceptor/model/run.sh.
cd "$(dirname "$0")/.." || exit 1
exec interceptor/model/run.sh --quick
