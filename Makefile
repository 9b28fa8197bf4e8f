# mm3. Targets for people: all demo test test-long tsan fuzz install dist clean format lint. CC, CFLAGS, PREFIX, BUILD may be set.
CC      ?= gcc
ifeq ($(origin CC),default)
CC      := gcc
endif
BUILD   ?= build
PREFIX  ?= /usr/local
DESTDIR ?=
OPT     ?= -O3
SAN     ?=
VERSION := $(shell sed -n 's/^\#define MM3_VERSION "\(.*\)"/\1/p' include/mm3.h)
SONAME  := libmm3.so.$(firstword $(subst ., ,$(VERSION)))
ARCH    := $(shell $(CC) -dumpmachine 2>/dev/null | cut -d- -f1)

PKGS := jansson libpcre2-8 libutf8proc
WARN := -std=c17 -Wall -Wextra -Wpedantic -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla
# -ffp-contract=off: a row's bits must not depend on what the compiler fused. Never -ffast-math (docs/numerics.md).
# -fvisibility=hidden keeps the shared library to MM3_API.
ALL_CFLAGS = $(WARN) $(OPT) -g -fPIC -pthread -ffp-contract=off -fvisibility=hidden -D_GNU_SOURCE -Iinclude -Isrc \
             $(SAN) $(shell pkg-config --cflags $(PKGS)) $(CFLAGS)
ALL_LIBS   = $(SAN) -pthread $(shell pkg-config --libs $(PKGS)) -lm $(LDFLAGS)

# Instruction sets by file name, so that one binary serves every machine; left out on other architectures.
ISA_avx2   := -mavx2 -mfma -mf16c -mbmi2
ISA_avx512 := $(ISA_avx2) -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512bf16 -mavx512vbmi -mprefer-vector-width=512
ISA_amx    := $(ISA_avx512) -mamx-tile -mamx-bf16
isa = $(if $(filter %_avx2.c %256.c,$1),$(ISA_avx2))$(if $(filter %_avx512.c %512.c,$1),$(ISA_avx512))$(if $(filter %_amx.c,$1),$(ISA_amx))

LIB_SRC := $(wildcard $(addprefix src/,$(addsuffix /*.c,base mx device comm ops kernels kernels/cpu tune model text forward engine bench)))
ifneq ($(ARCH),x86_64)
LIB_SRC := $(filter-out %_avx2.c %_avx512.c %_amx.c %256.c %512.c,$(LIB_SRC))
endif
CLI_SRC  := $(wildcard src/cli/*.c)
TEST_SRC := $(wildcard tests/unit/test_*.c tests/kernels/test_*.c tests/golden/test_*.c)
TEST_LIB := $(wildcard tests/support/*.c)
# A target's corpus is replayed by make test; make fuzz links the same file with libFuzzer.
FUZZ     := $(patsubst tests/fuzz/fuzz_%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
FUZZ_LIB := $(addprefix $(BUILD)/tests/,fuzz/fuzz.o support/temp_dir.o support/alloc_faults.o support/io_faults.o)
LIB_OBJ  := $(LIB_SRC:%.c=$(BUILD)/%.o) $(BUILD)/src_hash.o
CLI_OBJ  := $(CLI_SRC:%.c=$(BUILD)/%.o)
TEST_BIN := $(TEST_SRC:%.c=$(BUILD)/%)
TEST_LIB_OBJ := $(TEST_LIB:%.c=$(BUILD)/%.o)
# What tests/support/alloc_faults.c and io_faults.c stand before, in test programs alone.
TEST_WRAPS := malloc calloc realloc aligned_alloc mmap pthread_create \
              open fstat read pread write pwrite mkstemp mkostemp ftruncate fchmod flock close rename

REPLAY_BIN := $(FUZZ:%=$(BUILD)/tests/fuzz/test_%)
FUZZ_BIN   := $(FUZZ:%=$(BUILD)/tests/fuzz/fuzz_%)

.PHONY: all deps demo test test-long tsan install uninstall dist distcheck clean format lint tests fuzz fuzzers
all: $(BUILD)/mm3 $(BUILD)/libmm3.a

deps:
	@scripts/install-deps

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $(call isa,$<) -MMD -MP -c $< -o $@

# What a plan's decisions are valid for: a hash per candidate's source (and compiler and options).
$(BUILD)/src_hash.c: scripts/src-hash $(wildcard src/kernels/*/*.c src/kernels/*/*.h src/ops/*.h src/mx/*.h)
	@mkdir -p $(@D)
	@scripts/src-hash "$$($(CC) --version | head -n 1) $(OPT) $(SAN) $(CFLAGS)" > $@.new && mv $@.new $@
$(BUILD)/src_hash.o: $(BUILD)/src_hash.c
	$(CC) $(ALL_CFLAGS) -MMD -MP -c $< -o $@

$(BUILD)/libmm3.a: $(LIB_OBJ)
	@rm -f $@
	ar rcs $@ $^

$(BUILD)/libmm3.so.$(VERSION): $(LIB_OBJ)
	$(CC) -shared -Wl,-soname,$(SONAME) -o $@ $^ $(ALL_LIBS)

$(BUILD)/mm3: $(CLI_OBJ) $(BUILD)/libmm3.a
	$(CC) -o $@ $(CLI_OBJ) $(BUILD)/libmm3.a $(ALL_LIBS)

# In fuzzers the coverage of the code under test counts, not that of its checks.
$(BUILD)/tests/%.o: ALL_CFLAGS += -Itests $(if $(findstring fuzzer,$(SAN)),-fno-sanitize=fuzzer-no-link)
$(TEST_BIN): %: %.o $(TEST_LIB_OBJ) $(BUILD)/libmm3.a
	$(CC) -o $@ $(filter %.o %.a,$^) $(TEST_WRAPS:%=-Wl,--wrap=%) $(ALL_LIBS) -lcmocka

$(REPLAY_BIN): $(BUILD)/tests/fuzz/test_%: $(BUILD)/tests/fuzz/fuzz_%.o $(BUILD)/tests/fuzz/replay.o $(FUZZ_LIB) $(BUILD)/libmm3.a
	$(CC) -o $@ $^ $(TEST_WRAPS:%=-Wl,--wrap=%) $(ALL_LIBS)

$(FUZZ_BIN): %: %.o $(FUZZ_LIB) $(BUILD)/libmm3.a
	$(CC) -fsanitize=fuzzer -o $@ $^ $(TEST_WRAPS:%=-Wl,--wrap=%) $(ALL_LIBS)

# Growth is counted, not timed: a second copy of the host's code in which every branch counts (tests/growth/work.h). -w: the first
# copy had the warnings, and where branches are counted gcc sees less and warns of more.
COUNTED_OBJ := $(patsubst %.c,$(BUILD)/counted/%.o,$(wildcard $(addprefix src/,$(addsuffix /*.c,base model text kernels forward engine))))
GROWTH_OBJ  := $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/growth/*.c)) $(BUILD)/tests/support/checkpoint.o $(BUILD)/tests/support/temp_dir.o
GROWTH_BIN  := $(BUILD)/tests/growth/test_growth
GROWTH_WRAPS := malloc calloc realloc memcpy memmove memset memcmp memchr memmem strlen strcmp strncmp strchr strstr strspn strcspn \
                pcre2_compile_8 pcre2_match_8 mm3_device_run mm3_graph_replay
$(BUILD)/counted/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -fsanitize-coverage=trace-pc -fno-builtin -w -MMD -MP -c $< -o $@
$(GROWTH_BIN): $(GROWTH_OBJ) $(COUNTED_OBJ) $(BUILD)/libmm3.a
	$(CC) -o $@ $^ $(GROWTH_WRAPS:%=-Wl,--wrap=%) $(ALL_LIBS) -lcmocka

tests: $(TEST_BIN) $(REPLAY_BIN) $(GROWTH_BIN)
fuzzers: $(FUZZ_BIN)

# FUZZ_SECONDS for each target, FUZZ_TARGETS to choose some; docs/fuzzing.md. A build folder of its own, with clang.
fuzz:
	@BUILD=$(BUILD) MAKE="$(MAKE)" scripts/fuzz $(FUZZ_TARGETS)

# Sub-makes, so that freshly installed packages are seen by pkg-config.
demo: deps
	@$(MAKE) --no-print-directory -s -j$(shell nproc) all
	@MM3=$(BUILD)/mm3 scripts/demo

# The second build is for the tests that tests/sanitized.list names, and for test-long.
SANITIZED = BUILD=$(BUILD)/sanitized OPT=-O1 SAN='-fsanitize=address,undefined -fno-sanitize-recover=all'
test: deps
	@$(MAKE) --no-print-directory -s -j$(shell nproc) all tests
	@$(MAKE) --no-print-directory -s -j$(shell nproc) $(SANITIZED) all $(shell sed -n 's|^tests/.*/test_|$(BUILD)/sanitized/&|p' tests/sanitized.list)
	@BUILD=$(BUILD) SANITIZED=$(BUILD)/sanitized tests/run

# The rest: an hour at most on two cores.
test-long: deps
	@$(MAKE) --no-print-directory -s -j$(shell nproc) all tests
	@$(MAKE) --no-print-directory -s -j$(shell nproc) $(SANITIZED) all tests
	@BUILD=$(BUILD) MAKE="$(MAKE)" scripts/test-long

# The thread sanitizer over what threads share. With clang, in a folder of its own.
TSAN_TESTS := device threads engine replay replay_engine tuning
tsan: deps
	@command -v clang >/dev/null || { echo "mm3: make tsan needs clang: apt-get install clang" >&2; exit 1; }
	@$(MAKE) --no-print-directory -s -j$(shell nproc) BUILD=$(BUILD)/tsan CC=clang OPT=-O2 \
	    SAN='-fsanitize=thread -fno-omit-frame-pointer' $(TSAN_TESTS:%=$(BUILD)/tsan/tests/unit/test_%)
	@BUILD=$(BUILD)/tsan tests/run unit/test_

# Made anew each time: it holds the PREFIX.
.PHONY: $(BUILD)/mm3.pc
$(BUILD)/mm3.pc: mm3.pc.in include/mm3.h
	@mkdir -p $(@D)
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' $< > $@

# The manual page and completion for shells, as the program itself tells them.
MANUAL := $(BUILD)/mm3.1 $(BUILD)/mm3.bash $(BUILD)/mm3.zsh
$(BUILD)/mm3.1: TOPIC := man
$(BUILD)/mm3.bash: TOPIC := bash
$(BUILD)/mm3.zsh: TOPIC := zsh
$(MANUAL): $(BUILD)/mm3
	$< help $(TOPIC) > $@.new && mv $@.new $@

install: all $(BUILD)/libmm3.so.$(VERSION) $(BUILD)/mm3.pc $(MANUAL)
	install -D -m 755 $(BUILD)/mm3 $(DESTDIR)$(PREFIX)/bin/mm3
	install -D -m 644 include/mm3.h $(DESTDIR)$(PREFIX)/include/mm3.h
	install -D -m 644 $(BUILD)/libmm3.a $(DESTDIR)$(PREFIX)/lib/libmm3.a
	install -D -m 755 $(BUILD)/libmm3.so.$(VERSION) $(DESTDIR)$(PREFIX)/lib/libmm3.so.$(VERSION)
	ln -sf libmm3.so.$(VERSION) $(DESTDIR)$(PREFIX)/lib/$(SONAME)
	ln -sf $(SONAME) $(DESTDIR)$(PREFIX)/lib/libmm3.so
	install -D -m 644 $(BUILD)/mm3.pc $(DESTDIR)$(PREFIX)/lib/pkgconfig/mm3.pc
	install -D -m 644 $(BUILD)/mm3.1 $(DESTDIR)$(PREFIX)/share/man/man1/mm3.1
	install -D -m 644 $(BUILD)/mm3.bash $(DESTDIR)$(PREFIX)/share/bash-completion/completions/mm3
	install -D -m 644 $(BUILD)/mm3.zsh $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_mm3
	@[ -n "$(DESTDIR)" ] || ldconfig 2>/dev/null || true # so that programs find the library; root's business alone

uninstall:
	rm -f $(DESTDIR)$(PREFIX)/bin/mm3 $(DESTDIR)$(PREFIX)/include/mm3.h $(DESTDIR)$(PREFIX)/lib/libmm3.* \
	      $(DESTDIR)$(PREFIX)/lib/pkgconfig/mm3.pc $(DESTDIR)$(PREFIX)/share/man/man1/mm3.1 \
	      $(DESTDIR)$(PREFIX)/share/bash-completion/completions/mm3 $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_mm3

# The sources of the last commit; and from these alone, without git: a build, the small model's words, an installation.
DIST := mm3-$(VERSION)
dist:
	@git rev-parse --verify -q HEAD >/dev/null 2>&1 || { echo "make dist: needs a git checkout" >&2; exit 1; }
	@mkdir -p $(BUILD)
	git archive --format=tar --prefix=$(DIST)/ HEAD | gzip -9n > $(BUILD)/$(DIST).tar.gz.new
	@mv $(BUILD)/$(DIST).tar.gz.new $(BUILD)/$(DIST).tar.gz
	@echo $(BUILD)/$(DIST).tar.gz

distcheck: dist
	rm -rf $(BUILD)/$(DIST)
	tar -xzf $(BUILD)/$(DIST).tar.gz -C $(BUILD)
	GIT_DIR=/nowhere $(MAKE) -C $(BUILD)/$(DIST) BUILD=build DESTDIR=$(abspath $(BUILD)/$(DIST))/stage install
	cd $(BUILD)/$(DIST) && stage$(PREFIX)/bin/mm3 generate --tune off -p 'In the beginning' -n 24 --greedy | grep 'God created'
	rm -rf $(BUILD)/$(DIST)

clean:
	rm -rf $(BUILD)

FORMATTED := $(shell git ls-files '*.c' '*.h' 2>/dev/null)
format:
	clang-format -i $(FORMATTED)

lint:
	@scripts/lint

-include $(LIB_OBJ:.o=.d) $(CLI_OBJ:.o=.d) $(COUNTED_OBJ:.o=.d) $(GROWTH_OBJ:.o=.d) $(TEST_BIN:%=%.d) $(TEST_LIB_OBJ:.o=.d) $(wildcard $(BUILD)/tests/fuzz/*.d)
