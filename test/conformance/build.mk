# SPDX-License-Identifier: Apache-2.0
#
# The conformance programs. Each is one file, so that on a machine with nothing but gcc
#	gcc -o alloc test/conformance/alloc.c -ldl
# does as well; link.c alone wants -l:libcuda.so.1 in place of -ldl.

CONFORMANCE          := test/conformance
CONFORMANCE_BIN      := bin/conformance
CONFORMANCE_PROGRAMS := $(addprefix $(CONFORMANCE_BIN)/,alloc pool pointer vmm elastic share ipc outlive external array \
                          tile context graph graph_full capture limit module kernel arithmetic stack many places green checkpoint \
                          procaddr info nvml fault link)
CONFORMANCE_HEADERS  := $(CONFORMANCE)/conformance.h $(CONFORMANCE)/peer.h $(CONFORMANCE)/graphs.h $(CONFORMANCE)/code.h interceptor/cuda_abi.h interceptor/nvml_abi.h \
                        interceptor/driver.def interceptor/nvml.def test/fakecuda/abi.h
CONFORMANCE_CFLAGS   := -std=c11 -O2 -g -Wall -Wextra -Wpedantic -Wshadow -Wvla -Werror

TESTED += $(CONFORMANCE_PROGRAMS)
SUITES += test/conformance/check.sh

.PHONY: conformance
conformance: $(CONFORMANCE_PROGRAMS)

$(CONFORMANCE_BIN)/%: $(CONFORMANCE)/%.c $(CONFORMANCE_HEADERS)
	@mkdir -p $(@D)
	@echo "  $@"
	$(QUIET)$(CC) $(CONFORMANCE_CFLAGS) $(CFLAGS) -o $@ $< $(LDFLAGS) -ldl

# link is linked against a library of the right name that defines what it calls and nothing else. It
# lies where no program finds it by chance: the real one is taken when link starts.
CONFORMANCE_STUB := $(CONFORMANCE_BIN)/stub/libcuda.so.1
COMPILED_FIRST   += $(CONFORMANCE_STUB)

$(CONFORMANCE_STUB): $(CONFORMANCE)/link.c interceptor/cuda_abi.h
	@mkdir -p $(@D)
	$(QUIET)$(CC) $(CONFORMANCE_CFLAGS) $(CFLAGS) -c -o $(@D)/link.o $<
	$(QUIET)nm -u $(@D)/link.o | sed -n 's/^ *U \(cu[A-Z].*\)/void \1(void);void \1(void) {}/p' | \
		$(CC) $(CFLAGS) -shared -fPIC -Wl,-soname,libcuda.so.1 -o $@ -x c -

$(CONFORMANCE_BIN)/link: $(CONFORMANCE)/link.c $(CONFORMANCE_STUB)
	$(QUIET)$(CC) $(CONFORMANCE_CFLAGS) $(CFLAGS) -o $@ $< $(LDFLAGS) $(CONFORMANCE_STUB)
