# SPDX-License-Identifier: Apache-2.0

TESTED += $(BIN)/bench/cost

# elf_symbol.c finds the driver's own functions behind the interceptor's. -D_GNU_SOURCE= equals the definition in files that have their own.
$(BIN)/bench/cost: $(wildcard test/bench/*.[ch]) interceptor/elf_symbol.c $(C_HEADERS)
	@mkdir -p $(@D)
	@echo "  $@"
	$(QUIET)$(CC) $(C_FLAGS) -D_GNU_SOURCE= -Wno-pedantic $(CFLAGS) $(LDFLAGS) -o $@ $(filter %.c,$^) -ldl
