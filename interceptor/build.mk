# SPDX-License-Identifier: Apache-2.0
# The interceptor: bin/libgpuslice.so. Included by the Makefile at the top.
#
# -nostartfiles: no constructor, not even the compiler's own. A process that never calls CUDA runs nothing of ours.
# -Bsymbolic: our own use of an exported name means ours.
# -falign-functions: a hook begins on a cache line. The driver's own calls leave none of ours in the nearest cache, so that each line counts:
# cuMemMap + cuMemUnmap became 0.6 % cheaper on a card.

INTERCEPTOR_SOURCES := $(sort $(wildcard interceptor/*.c interceptor/*.S))
INTERCEPTOR_HEADERS := $(wildcard interceptor/*.h interceptor/*.def interceptor/*.inc)
INTERCEPTOR_CFLAGS := -std=c11 -D_GNU_SOURCE -O2 -g -fPIC -fvisibility=hidden -fno-plt -flto=auto -falign-functions=64 \
	-Wall -Wextra -Werror -Wmissing-prototypes -Wstrict-prototypes
# Else gcc links a constructor of its own there, which looks at the CPU. Expanded in the recipe, since deps.sh installs the compiler.
INTERCEPTOR_ATOMICS = $(if $(filter aarch64-%,$(shell $(CC) -dumpmachine)),-mno-outline-atomics)
INTERCEPTOR_LDFLAGS := -shared -nostartfiles -Wl,-soname,libgpuslice.so -Wl,-z,now -Wl,-z,relro \
	-Wl,-z,noexecstack -Wl,-Bsymbolic -Wl,--no-undefined -Wl,--gc-sections -Wl,--build-id=sha1 \
	-Wl,--version-script=interceptor/upcall.map

INTERCEPTOR := bin/libgpuslice.so

$(INTERCEPTOR): $(INTERCEPTOR_SOURCES) $(INTERCEPTOR_HEADERS) interceptor/build.mk interceptor/upcall.map
	@mkdir -p $(@D)
	@echo "  $@"
	$(QUIET)$(CC) $(INTERCEPTOR_CFLAGS) $(INTERCEPTOR_ATOMICS) $(CFLAGS) $(INTERCEPTOR_LDFLAGS) $(LDFLAGS) -o $@.new $(INTERCEPTOR_SOURCES)
	$(QUIET)mv -f $@.new $@

# Prints what `make generate` writes; runs on this machine.
.cache/table: interceptor/tools/table.c $(INTERCEPTOR_HEADERS) interceptor/build.mk
	@mkdir -p $(@D)
	$(QUIET)$(CC) $(C_FLAGS) -o $@ $<
