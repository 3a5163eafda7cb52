# SPDX-License-Identifier: Apache-2.0

.PHONY: mutants
mutants: build ## Inject faults into the source and see that tests catch each (MUTANTS_FLAGS='-j 1 enforcer/store')
	$(QUIET)GO='$(GO)' VERSION='$(VERSION)' test/mutants/run.sh $(MUTANTS_FLAGS)
