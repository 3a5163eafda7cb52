# SPDX-License-Identifier: Apache-2.0

TESTED += $(BIN)/lease/examples

# Static: it runs where there is nothing of a GPU, nor of Go.
$(BIN)/lease/examples: $(wildcard test/lease/examples/*.go test/lease/examples/*.ptx lease/*.go lease/leasepb/*.go) go.mod go.sum
	@mkdir -p $(@D)
	@echo "  $@"
	$(QUIET)CGO_ENABLED=0 $(GO) build $(GO_FLAGS) -o $@ ./test/lease/examples
