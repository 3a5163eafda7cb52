# SPDX-License-Identifier: Apache-2.0

.PHONY: bench-enforcer
bench-enforcer: test-programs ## Measure the enforcer with 10,000 slices, as root (SCALE_FLAGS='-slices 1000')
	$(QUIET)$(GO) build $(GO_FLAGS) -o .cache/scale ./test/scale
	$(QUIET).cache/scale $(SCALE_FLAGS)
