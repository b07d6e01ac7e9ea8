# SOL is built by GNU make alone. `make help` lists the targets.
BUILD ?= build/release
CC ?= cc
PYTHON ?= python3
VENV ?= .venv

WARN = -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wno-overlength-strings -Wno-format-zero-length $(WERROR)
OPT ?= -O2 -DNDEBUG
CFLAGS += -std=gnu11 -D_GNU_SOURCE -fPIC -fvisibility=hidden -pthread -Iinclude -Isrc $(WARN) $(OPT) -MMD -MP
# Kernels: floating point follows IEEE 754, except that the compiler may fuse a multiplication and an addition. -Wno-psabi:
# functions pass vectors only within one file, so the warning about their calling convention does not apply.
KFLAGS = -O3 -ffp-contract=fast -fno-math-errno -fno-trapping-math -fno-strict-aliasing -Wno-psabi -Wno-pedantic

# Per instruction set: the macros that src/dnn/simd.h explains, and the compiler's flags.
ISA_generic = -DLANES=4 -DREGISTERS=16
ISA_avx2 = -DLANES=8 -DREGISTERS=16 -mavx2 -mfma $(VARIANT)
ISA_avx512 = -DLANES=16 -DREGISTERS=32 -mavx512f -mavx512vl -mavx512dq -mavx512bw -mavx2 -mfma -mprefer-vector-width=512 $(VARIANT)
ISA_neon = -DLANES=4 -DREGISTERS=32 -DBY_LANE $(VARIANT)
# neon is built on every machine: deployment plans and prepacks libraries for arm64 with it.
ISAS_x86_64 = avx2 avx512
ISAS := generic neon $(ISAS_$(shell $(CC) -dumpmachine | cut -d- -f1))

KERNELS := $(wildcard src/dnn/*_kernel.c)
CLI := $(wildcard src/cli/*.c)
# The two files that are filtered out of src/deploy are compiled only as parts of deployed libraries, the one of src/device/far
# only when a far device is opened.
SOURCES := $(filter-out $(KERNELS) $(CLI) src/deploy/library.c src/deploy/portable_library.c src/device/far/worker.c,$(wildcard src/*.c src/*/*.c src/device/*/*.c src/frontend/*/*.c))
OBJECTS := $(SOURCES:%.c=$(BUILD)/%.o) $(foreach i,$(ISAS),$(KERNELS:%.c=$(BUILD)/%.$(i).o))

# C tests: each test/GROUP/test_*.c is a program. The other .c files of test/op are linked into all programs of that group.
TESTS := $(patsubst %.c,$(BUILD)/%,$(wildcard test/*/test_*.c))
TEST_PARTS := $(patsubst %.c,$(BUILD)/%.o,$(filter-out test/op/test_%,$(wildcard test/op/*.c)))

ifeq ($(MAKELEVEL)$(filter -j%,$(MAKEFLAGS)),0)
MAKEFLAGS += -j$(shell nproc)
endif
.SECONDARY:
.DELETE_ON_ERROR:

.PHONY: all lib cli ctest veda demo operators test check lint fmt asan tsan fuzz arm64 bench bench-layers bench-train train-shares replay loc zoo zoo-far zoo-train ve-kernels networks clean help
all: $(VENV)/installed $(BUILD)/sol ## build the library and the program sol, install the package into .venv

lib: $(BUILD)/libsol.a ## the C library alone
cli: $(BUILD)/sol ## the program sol, which needs no Python
$(BUILD)/sol: $(CLI:%.c=$(BUILD)/%.o) $(BUILD)/libsol.a
	$(CC) $(CFLAGS) -o $@ $^ -ldl -lm
$(BUILD)/libsol.a: $(OBJECTS)
	@rm -f $@
	@$(CC) -r -nostdlib -o $(BUILD)/sol.o $^
	@$$($(CC) -print-prog-name=objcopy) --localize-hidden $(BUILD)/sol.o
	@$$($(CC) -print-prog-name=ar) rcs $@ $(BUILD)/sol.o
$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -c -o $@ $<
# Each step of training packs. With -O2 its loops take twice the time.
$(BUILD)/src/dnn/winograd_pack.o: CFLAGS += -O3
$(BUILD)/src/dfp/prelude.o: src/dfp/kernel_types.h src/dfp/scalar.h
$(BUILD)/src/device/far_emit.o: src/device/step_kernels.h src/run/step_numbers.h $(wildcard src/dnn/*_plain.h)
# A device may embed texts of its folder: the compiler's lists of included files do not have them.
$(foreach d,$(wildcard src/device/*/),$(eval $(filter $(BUILD)/$(d)%,$(OBJECTS)): $(wildcard $(d)*.h $(d)worker.c)))
$(BUILD)/src/deploy/sources.o: $(wildcard src/base/*.[ch] src/run/*.[ch] src/dnn/*.[ch] src/device/*/*.[ch] src/deploy/*.[ch] include/sol/*.h)
define isa_rule
$(BUILD)/%.$(1).o: %.c
	@mkdir -p $$(@D)
	$(CC) $(CFLAGS) $(KFLAGS) -DISA=$(1) $(ISA_$(1)) -c -o $$@ $$<
endef
$(foreach i,$(ISAS),$(eval $(call isa_rule,$(i))))

$(BUILD)/test/%.o: CFLAGS += -Itest -Itest/unit
ctest: $(TESTS)
# The stand-ins for libraries that kernels call.
NEC := $(BUILD)/libvednn_openmp.so $(BUILD)/libcblas.so $(BUILD)/libblas_openmp.so
# The stand-in for NEC's VEDA. Its text of the device is assembled into it, so it depends on that, too.
veda: $(BUILD)/libveda.so $(NEC) ## the stand-ins for NEC's VEDA, VEDNN and BLAS on far devices: build/release/libveda.so
VEDA := $(patsubst %.c,$(BUILD)/%.o,$(filter-out $(addprefix test/veda/,device.c vednn.c cblas.c blas.c),$(wildcard test/veda/*.c)))
VEDA_BASE := $(filter-out %/far/far.o,$(filter $(addprefix $(BUILD)/src/,base/% jit/% device/far/%),$(OBJECTS)))
$(BUILD)/libveda.so: $(VEDA) $(VEDA_BASE) test/veda/veda.map
	$(CC) $(CFLAGS) -shared -Wl,--version-script=test/veda/veda.map -Wl,-z,nodelete -o $@ $(filter %.o,$^) -ldl -lm
$(BUILD)/lib%_openmp.so: test/veda/%.c
	$(CC) -std=gnu11 -O2 -fopenmp -fPIC -Isrc $(WARN) -shared -o $@ $<
$(BUILD)/libcblas.so: test/veda/cblas.c src/device/ve/nlc.h
	$(CC) -std=gnu11 -O2 -fPIC -Isrc $(WARN) -shared -o $@ $<
$(BUILD)/libvednn_openmp.so: src/device/ve/vednn.h
$(filter $(BUILD)/test/unit/test_vednn $(BUILD)/test/unit/test_nlc,$(TESTS)): | $(BUILD)/libveda.so $(NEC)
$(filter $(BUILD)/test/unit/test_queue $(BUILD)/test/unit/test_ve $(BUILD)/test/unit/test_veda%,$(TESTS)): | $(BUILD)/libveda.so
$(BUILD)/test/veda/context.o: test/veda/veda_types.h test/veda/veda_device.h test/veda/tasks.h test/veda/device.c
$(patsubst %,%.o,$(filter $(BUILD)/test/unit/test_veda%,$(TESTS))): test/veda/veda_types.h test/veda/veda_device.h test/unit/veda_kernels.c
$(filter $(BUILD)/test/op/%,$(TESTS)): $(TEST_PARTS)
$(TESTS): %: %.o $(OBJECTS)
	$(CC) $(CFLAGS) -o $@ $^ -ldl -lm
-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)

# Python: a stamp file in .venv records that a list of pinned packages, or SOL's package, is installed.
PY = $(VENV)/bin/python
PIP = env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS $(PY) -m pip --disable-pip-version-check --no-input install
REQUIRE = tools/requirements
RUN = SOL_CACHE_DIR="$${SOL_CACHE_DIR:-$(CURDIR)/build/cache}" $(PY)

$(VENV)/bin/python:
	@echo "== creating $(VENV)"
	$(PYTHON) -m venv $(VENV)
$(VENV)/build: $(REQUIRE)/build.txt | $(VENV)/bin/python
	@echo "== installing PyTorch and build tools"
	$(PIP) -r $< && touch $@
$(VENV)/test $(VENV)/demo $(VENV)/zoo $(VENV)/lint: $(VENV)/%: $(REQUIRE)/%.txt $(VENV)/build
	@flock $(VENV) $(PIP) -q -r $< && touch $@
$(VENV)/peers: $(REQUIRE)/peers.txt $(VENV)/zoo
	@echo "== installing other inference engines"
	@flock $(VENV) $(PIP) -q -r $< && touch $@
$(VENV)/networks: $(REQUIRE)/networks.txt $(VENV)/models $(VENV)/zoo
	@flock $(VENV) $(PIP) -q --no-deps -r $< && touch $@
$(VENV)/models: $(REQUIRE)/models.txt tools/torchvision_cpu.py $(VENV)/demo
	@flock $(VENV) $(PIP) -q --no-deps -r $< && $(PY) tools/torchvision_cpu.py && touch $@
PACKAGE := setup.py pyproject.toml $(shell find python include -name '*.py' -o -name '*.[ch]' -o -name py.typed)
$(VENV)/installed: $(PACKAGE) $(BUILD)/libsol.a $(VENV)/build
	@echo "== installing the package"
	@rm -rf build/lib* build/bdist* build/temp*
	@flock $(VENV) $(PIP) -q --no-build-isolation --no-deps --force-reinstall . && touch $@

operators: $(VENV)/installed $(VENV)/test ## which operators and modules of PyTorch's own lists SOL computes: docs/operators.md
	@$(RUN) tools/operator_lists.py --write --jobs $(shell nproc)
demo: $(VENV)/installed $(VENV)/models ## the product on real input: digits and photographs
	@$(PY) examples/demo.py
test: $(VENV)/installed $(BUILD)/sol $(VENV)/test $(TESTS) ## all tests, or one group: T=unit|op|torch|onnx|deploy|fault
	@$(RUN) tools/run_tests.py --build $(BUILD) $(T)

check: ## what CI runs besides the tests
	@$(MAKE) lint
	@$(MAKE) loc
	@$(MAKE) asan
	@$(MAKE) zoo QUICK=1
lint: $(VENV)/installed $(VENV)/lint ## formatting, ruff, folder order, exported symbols, what documents and comments name
	@$(PY) tools/format.py --check
	@$(VENV)/bin/ruff format -q --check . || { echo '`make fmt` formats Python'; exit 1; }
	@$(VENV)/bin/ruff check -q .
	@$(PY) tools/layers.py
	@$(PY) tools/symbols.py $(VENV)
	@$(PY) tools/doc_names.py *.md docs/*.md
fmt: $(VENV)/lint ## format all C and Python sources
	@$(PY) tools/format.py
	@$(VENV)/bin/ruff check -q --fix .
	@$(VENV)/bin/ruff format -q .
# The compiler needs minutes for inline checks of long unrolled loops. So UBSan checks only the generic variant of kernels; in the
# others, which are compiled from the same source, ASan checks by calls.
LONG_LOOPS = -g0 -fno-sanitize=undefined --param asan-instrumentation-with-call-threshold=0
# Generated kernels are those of `make test`.
KEPT = SOL_CACHE_DIR="$${SOL_CACHE_DIR:-$(CURDIR)/build/cache}"
SANITIZED = $(MAKE) ctest WERROR=-Werror OPT="-O1 -g -fno-omit-frame-pointer -fsanitize=$(1)" VARIANT="$(LONG_LOOPS)" BUILD=build/$(2)
# With + make hands its jobs on, as it does not see $(MAKE) inside of SANITIZED.
asan: ## C tests under AddressSanitizer and UndefinedBehaviorSanitizer, warnings are errors
	+@$(call SANITIZED,address$(comma)undefined -fno-sanitize-recover=undefined,asan)
	@$(KEPT) $(PYTHON) tools/run_tests.py --build build/asan --only-c $(T)
# Tests fork, and kernels of far devices synchronise by OpenMP, which ThreadSanitizer does not see in the C compiler's own libraries.
TSAN = die_after_fork=0:ignore_noninstrumented_modules=1:suppressions=$(CURDIR)/test/tsan.txt
tsan: ## C tests under ThreadSanitizer
	+@$(call SANITIZED,thread,tsan)
	@$(KEPT) TSAN_OPTIONS=$(TSAN) $(PYTHON) tools/run_tests.py --build build/tsan --only-c $(T)
comma = ,

# Fuzzing of the parsers. The corpus and the inputs that fail stay in build/fuzz.
CLANG ?= clang
FUZZ = $(CLANG) -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined -fprofile-instr-generate -fcoverage-mapping
fuzz: $(VENV)/test ## the readers of ONNX and text under libFuzzer, SECONDS= each (60); needs clang
	@mkdir -p build/fuzz && $(PY) test/fuzz/seeds.py build/fuzz
	@for kind in onnx session text; do \
		$(FUZZ) $(filter-out -MMD -MP $(WARN),$(CFLAGS)) -w $(filter-out src/device/%,$(wildcard src/base/*.c src/ir/*.c src/frontend/*/*.c)) \
			test/fuzz/fuzz_$$kind.c -o build/fuzz/fuzz_$$kind -lm && \
		SOL_LOOP_SECONDS=1 SOL_CALL_MEMORY=4 LLVM_PROFILE_FILE=build/fuzz/$$kind.profraw build/fuzz/fuzz_$$kind -max_total_time=$(or $(SECONDS),60) -max_len=16384 -timeout=10 \
			-rss_limit_mb=4096 -print_final_stats=1 -artifact_prefix=build/fuzz/ build/fuzz/$$kind || exit 1; done

# Tests that run under qemu compile generated kernels with the first cc in PATH, so PATH begins with a folder in which cc is
# the cross compiler. In qemu, a process with threads may rarely hang after a fork, before it executes the compiler:
# SOL_CC_TIMEOUT limits that.
ARM64 = aarch64-linux-gnu
ARM64_RUNNER ?= qemu-aarch64 -L /usr/$(ARM64)
arm64: ## C tests as arm64 programs under qemu, and fmla in the kernels' loops; T= as in test
	@for tool in $(ARM64)-gcc $(ARM64)-objdump $(firstword $(ARM64_RUNNER)); do command -v $$tool >/dev/null || \
		{ echo "make arm64 needs $$tool: apt-get install gcc-$(ARM64) libc6-dev-arm64-cross qemu-user"; exit 1; }; done
	@$(MAKE) ctest WERROR=-Werror CC=$(ARM64)-gcc BUILD=build/arm64
	@$(PYTHON) tools/fma.py $(ARM64)-objdump $(patsubst %.c,build/arm64/%.neon.o,$(filter-out %/finish_kernel.c %/table_kernel.c %/linear_int8_kernel.c %/attention_kernel.c %/attention_row_kernel.c,$(KERNELS)))
	@mkdir -p build/arm64/bin && ln -sf $$(command -v $(ARM64)-gcc) build/arm64/bin/cc
	@PATH="$(CURDIR)/build/arm64/bin:$$PATH" SOL_CC_TIMEOUT=30 $(PYTHON) tools/run_tests.py --build build/arm64 \
		--runner "$(ARM64_RUNNER)" --only-c $(T)

loc: $(VENV)/lint ## size of the core, length of functions, share of comments; fails over the limits
	@$(PY) tools/loc.py
replay: $(VENV)/installed $(VENV)/models $(VENV)/zoo ## which networks' kernels changed since REV (default HEAD)
	@$(PY) tools/replay.py $(NETS) --against $(or $(REV),HEAD)
zoo: $(VENV)/installed $(VENV)/models $(VENV)/zoo ## all networks against PyTorch in float64; NETS=, QUICK=1, DETERMINISTIC=1
	@$(PY) tools/zoo.py $(NETS) $(if $(QUICK),--quick) $(if $(DETERMINISTIC),--deterministic) --json build/zoo$(if $(DETERMINISTIC),-deterministic).json
	@$(PY) tools/numerics.py build/zoo.json build/zoo-deterministic.json
zoo-far: $(VENV)/installed $(VENV)/models $(if $(ONNX),$(VENV)/peers,$(VENV)/zoo) ## the same for small images on a far device; NETS=, QUICK=1, DEVICE=far, ONNX=1
	@$(PY) tools/zoo.py $(NETS) $(if $(QUICK),--quick) $(if $(ONNX),--onnx) --device $(or $(DEVICE),far) --side 64 --batches 1,2 --json build/zoo-far.json
zoo-train: $(VENV)/installed $(VENV)/models $(VENV)/zoo ## gradients of all networks against PyTorch in float64; NETS=, QUICK=1, DEVICE=far
	@$(PY) tools/zoo_train.py $(NETS) $(if $(QUICK),--quick) $(if $(DEVICE),--device $(DEVICE)) --json build/zoo-train.json
ve-kernels: $(VENV)/installed $(VENV)/models $(VENV)/zoo veda ## all networks' kernels, compiled for vector engines by clang; NETS=, QUICK=1, CLANG=
	@CLANG="$(filter-out clang,$(CLANG))" $(PY) tools/ve_kernels.py $(NETS) $(if $(QUICK),--quick)
networks: $(VENV)/installed $(VENV)/networks ## networks of timm, torchvision and transformers against PyTorch, docs/networks.md; NETS=
	@$(RUN) tools/network_lists.py $(NETS) --write
bench: $(VENV)/installed $(VENV)/models $(VENV)/zoo $(if $(PEERS),$(VENV)/peers) ## SOL and its peers in turns; NETS=, BATCH=, THREADS=, RUNS=, PEERS=1
	@$(PY) -m sol.bench $(NETS) --batch $(or $(BATCH),1) $(if $(THREADS),--threads $(THREADS)) $(if $(RUNS),--runs $(RUNS)) \
		--json build/bench.json --svg $(if $(README),docs,build)/bench.svg $(if $(README),--readme README.md)
bench-layers: $(VENV)/installed $(if $(PEERS),$(VENV)/peers) ## single layers beside other engines; ROWS="'softmax 16x1000' ..", THREADS=, PEERS=1
	@$(PY) -m sol.bench --layers $(ROWS) $(if $(THREADS),--threads $(THREADS)) --peers eager,onnxruntime --seconds $(or $(SECONDS),1) \
		--json build/layers.json --svg $(if $(README),docs,build)/layers.svg $(if $(README),--readme README.md)
bench-train: $(VENV)/installed $(VENV)/models $(VENV)/zoo ## training steps beside PyTorch's; NETS=, BATCH=, SIDE=, THREADS=, PEERS=
	@$(PY) tools/train_times.py $(NETS) --batch $(or $(BATCH),4) --side $(or $(SIDE),128) --threads $(or $(THREADS),0) --peers $(or $(PEERS),eager) --json build/train.json
train-shares: $(VENV)/installed $(VENV)/models $(VENV)/zoo ## which kernels take the time of training steps, beside the machine's limits; NETS=, BATCH=, SIDE=, THREADS=
	@$(PY) tools/train_shares.py $(NETS) --batch $(or $(BATCH),16) --side $(or $(SIDE),0) --threads $(or $(THREADS),0) --json build/train-shares.json
clean: ## everything built; .venv stays
	rm -rf build .sol python/*.egg-info
help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14
