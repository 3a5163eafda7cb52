#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The models, as far as they are checked in seconds. More of them, and variants that must be caught: interceptor/model/run.sh [--quick].
cd "$(dirname "$0")/.." || exit 1
exec interceptor/model/run.sh --first
