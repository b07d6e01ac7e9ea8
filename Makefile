# SOL is built by GNU make alone. `make help` lists the targets.
BUILD ?= build/release
CC ?= cc
PYTHON ?= python3
VENV ?= .venv

WARN = -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla $(WERROR)
OPT ?= -O2 -DNDEBUG
CFLAGS += -std=gnu11 -D_GNU_SOURCE -fPIC -fvisibility=hidden -pthread -Iinclude -Isrc $(WARN) $(OPT) -MMD -MP
# Kernels: floating point stays IEEE but for fused multiply-add; -Wno-psabi: vectors are passed inside one file only.
KFLAGS = -O3 -ffp-contract=fast -fno-math-errno -fno-trapping-math -fno-strict-aliasing -Wno-psabi -Wno-pedantic

ISA_generic = -DLANES=4
ISA_avx2 = -DLANES=8 -mavx2 -mfma
ISA_avx512 = -DLANES=16 -mavx512f -mavx512vl -mavx512dq -mavx512bw -mavx2 -mfma -mprefer-vector-width=512
ISAS = generic $(if $(filter x86_64,$(shell $(CC) -dumpmachine | cut -d- -f1)),avx2 avx512)

KERNELS := $(wildcard src/dnn/*_kernel.c)
SOURCES := $(filter-out $(KERNELS),$(wildcard src/*.c src/*/*.c src/device/*/*.c))
OBJECTS := $(SOURCES:%.c=$(BUILD)/%.o) $(foreach i,$(ISAS),$(KERNELS:%.c=$(BUILD)/%.$(i).o))

.PHONY: all lib
lib: $(BUILD)/libsol.a
$(BUILD)/libsol.a: $(OBJECTS)
	@rm -f $@
	@$(LD) -r -o $(BUILD)/sol.o $^
	@objcopy --localize-hidden $(BUILD)/sol.o
	@$(AR) rcs $@ $(BUILD)/sol.o
$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -c -o $@ $<
define isa_rule
$(BUILD)/%.$(1).o: %.c
	@mkdir -p $$(@D)
	$(CC) $(CFLAGS) $(KFLAGS) -DISA=$(1) $(ISA_$(1)) -c -o $$@ $$<
endef
$(foreach i,$(ISAS),$(eval $(call isa_rule,$(i))))
-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
