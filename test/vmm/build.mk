# SPDX-License-Identifier: Apache-2.0

TESTED += $(BIN)/vmm

$(BIN)/vmm: $(wildcard test/vmm/*.go test/vmm/*.[ch] vmm/*.go vmm/cuda/*.go vmm/cuda/*.[ch]) $(wildcard api/*.go api/client/*.go) go.mod go.sum interceptor/cuda_abi.h
	@mkdir -p $(@D)
	@echo "  $@"
	$(QUIET)CGO_ENABLED=1 $(GO) build $(GO_FLAGS) -o $@ ./test/vmm

# The package's own tests as programs, for a card's machine without Go: test/gpu/vmm.py runs them there.
.PHONY: vmm-tests
vmm-tests: $(BIN)/vmm
	$(QUIET)$(GO) test -c -o $(BIN)/vmm-tests/ ./vmm ./vmm/cuda
