# SPDX-License-Identifier: Apache-2.0

.PHONY: test-cards
test-cards: card-programs kubernetes-card ## Run the scripts for a real card on the simulated driver
	$(QUIET)test/gpu/all.sh --simulated
