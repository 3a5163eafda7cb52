# SPDX-License-Identifier: Apache-2.0
#
# The simulated driver. Included by the top-level Makefile; `make -f test/fakecuda/build.mk` works, too.

FAKECUDA     := test/fakecuda
FAKECUDA_BIN := bin/fakecuda

FAKECUDA_CFLAGS := -std=c11 -O2 -g -fno-math-errno -Wall -Wextra -Wpedantic -Wshadow -Wvla -Werror \
                   -fvisibility=hidden -fPIC -MMD -MP
# nodelete: a dlclose that closes the state's descriptor, or ends the lock's owner, would drop this process's record (machine.h). Bsymbolic:
# cuGetProcAddress returns the driver's own functions, and the driver calls its own, even if a preloaded library exports the same names.
FAKECUDA_LDFLAGS := -shared -pthread -Wl,-Bsymbolic -Wl,-z,nodelete -Wl,-z,now -Wl,--no-undefined

# Both libraries' knowledge of the machine; each has its own copy.
FAKECUDA_SHARED := machine machine_limit hold config uuid
FAKECUDA_NVML   := nvml nvml_fault nvml_limit nvml_memory nvml_process nvml_sensors
FAKECUDA_CUDA   := $(filter-out $(FAKECUDA_SHARED) $(FAKECUDA_NVML), \
                     $(basename $(notdir $(wildcard $(FAKECUDA)/*.c))))
FAKECUDA_OBJ    := .cache/fakecuda

# The oldest driver that gpuslice supports: the same, with only the functions of CUDA 11.2.
FAKECUDA_OLD         := 11020
FAKECUDA_OLD_BIN     := $(FAKECUDA_BIN)-11.2
FAKECUDA_OLD_EXPORTS := $(FAKECUDA_OBJ)/exports-$(FAKECUDA_OLD).map

TESTED += $(FAKECUDA_OLD_BIN)/libcuda.so.1

.PHONY: fakecuda
fakecuda: $(FAKECUDA_BIN)/libcuda.so.1 $(FAKECUDA_BIN)/libnvidia-ml.so.1 $(FAKECUDA_OLD_BIN)/libcuda.so.1

$(FAKECUDA_BIN)/libcuda.so.1: $(patsubst %,$(FAKECUDA_OBJ)/%.o,$(FAKECUDA_CUDA) $(FAKECUDA_SHARED))
$(FAKECUDA_BIN)/libnvidia-ml.so.1: $(patsubst %,$(FAKECUDA_OBJ)/%.o,$(FAKECUDA_NVML) $(FAKECUDA_SHARED))

$(FAKECUDA_OLD_BIN)/libcuda.so.1: $(FAKECUDA_OBJ)/driver-$(FAKECUDA_OLD).o $(FAKECUDA_OLD_EXPORTS) \
    $(patsubst %,$(FAKECUDA_OBJ)/%.o,$(filter-out driver,$(FAKECUDA_CUDA)) $(FAKECUDA_SHARED))
	@mkdir -p $(@D)
	$(QUIET)$(CC) $(CFLAGS) $(FAKECUDA_LDFLAGS) -Wl,-soname,libcuda.so.1 \
		-Wl,--version-script=$(FAKECUDA_OLD_EXPORTS) -o $@ $(filter %.o,$^)

$(FAKECUDA_OBJ)/driver-$(FAKECUDA_OLD).o: $(FAKECUDA)/driver.c
	@mkdir -p $(@D)
	$(QUIET)$(CC) $(FAKECUDA_CFLAGS) -DDRIVER_VERSION=$(FAKECUDA_OLD) $(CFLAGS) -c -o $@ $<

$(FAKECUDA_OLD_EXPORTS): $(FAKECUDA)/entries.h $(FAKECUDA)/build.mk
	@mkdir -p $(@D)
	$(QUIET)awk -F'[(), ]+' -v version=$(FAKECUDA_OLD) 'BEGIN { print "{ global:" } \
		/^(ENTRY|PER_THREAD)\(/ && $$3 <= version { print "\t" $$4 ";" } \
		END { print "local: *; };" }' $< >$@

COMPILED_FIRST += $(patsubst %,$(FAKECUDA_OBJ)/%.o,$(FAKECUDA_CUDA) $(FAKECUDA_NVML) $(FAKECUDA_SHARED) driver-$(FAKECUDA_OLD))

$(FAKECUDA_BIN)/%:
	@mkdir -p $(@D)
	@echo "  $@"
	$(QUIET)$(CC) $(CFLAGS) $(FAKECUDA_LDFLAGS) -Wl,-soname,$* -o $@ $(filter %.o,$^)

$(FAKECUDA_OBJ)/%.o: $(FAKECUDA)/%.c
	@mkdir -p $(@D)
	@echo "  $@"
	$(QUIET)$(CC) $(FAKECUDA_CFLAGS) $(CFLAGS) -c -o $@ $<

-include $(wildcard $(FAKECUDA_OBJ)/*.d)
