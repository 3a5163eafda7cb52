# SPDX-License-Identifier: Apache-2.0

TESTED += $(BIN)/session

# The client's own tests as a program, for a card's machine without Go: test/gpu/lease.py runs them there.
.PHONY: session-tests
session-tests: $(BIN)/session
	$(QUIET)$(GO) test -c -o $(BIN)/session-tests/ ./lease

$(BIN)/session: $(wildcard test/session/*.go lease/*.go lease/*/*.go vmm/cuda/*.go vmm/cuda/*.[ch]) go.mod go.sum interceptor/cuda_abi.h
	@mkdir -p $(@D)
	@echo "  $@"
	$(QUIET)CGO_ENABLED=1 $(GO) build $(GO_FLAGS) -o $@ ./test/session
