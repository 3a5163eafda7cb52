# SPDX-License-Identifier: Apache-2.0

BUILD += $(BIN)/session

$(BIN)/session: $(wildcard test/session/*.go lease/*.go lease/*/*.go vmm/cuda/*.go vmm/cuda/*.[ch]) go.mod go.sum interceptor/cuda_abi.h
	@mkdir -p $(@D)
	@echo "  $@"
	$(QUIET)CGO_ENABLED=1 $(GO) build $(GO_FLAGS) -o $@ ./test/session
