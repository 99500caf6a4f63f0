# SPDX-License-Identifier: LGPL-2.1-or-later
#
# lab.mk - the RDMA lab: make lab CMD='...', make check-lab-self
#
# Included by the top Makefile, after what builds QEMU and the guests.

.PHONY: lab lab-parts lab-kernel lab-leaks check-lab check-lab-self check-lab-leaks \
    check-kernels fetch-kernels

DEPS_LAB := $(BUILD)/.deps-lab

# What a lab needs before it starts; kernel and initramfs lab/lab makes itself
lab-parts: $(BUILD)/bin/qemu-system-x86_64 $(BUILD)/lab/tsckhz | $(DEPS_ALL) $(DEPS_LAB)

$(BUILD)/lab/tsckhz: lab/tsckhz.c | $(DEPS_ALL) $(DEPS_LAB)
	@mkdir -p $(@D)
	@$(CC) $(CFLAGS) -o $@ $<

# The line reaches bash as it was written: no expansion by make, no quoting
lab: export LAB_CMD = $(value CMD)
lab: lab-parts
	@BUILD='$(abspath $(BUILD))' lab/lab -c "$$LAB_CMD"

check-lab-self: lab-parts $(BUILD)/guests/micro.elf
	@BUILD='$(abspath $(BUILD))' CC='$(CC)' lab/selftest

# --- programs that run inside: tests/lab/NAME.c, with the library ---

LAB_TESTS := $(addprefix $(BUILD)/tests/lab/,link_verbs keyed_verbs memory_verbs hello_verbs removed_verbs)
LAB_PROGRAMS := $(BUILD)/tests/lab/move_two $(LAB_TESTS)
$(LAB_PROGRAMS): $(BUILD)/%: %.c $(BUILD)/lib/libfarfork.a tests/tests.mk | $(DEPS_ALL)
	@mkdir -p $(@D)
	@echo "  TEST    $@"
	@$(CC) $(TEST_CFLAGS) -iquote tests/unit -o $@ $< $(BUILD)/lib/libfarfork.a -lcmocka \
	    $(TEST_LIBS)
-include $(LAB_PROGRAMS:=.d)

# --- the kernels that people run, over tcp: part of `make check-full` ---

# Debian 12's, Debian 13's, the newest
KERNELS := 6.1 6.12 7.2
OLDEST := $(firstword $(KERNELS))
# Without CI: what an older kernel skips is no fault there. Each prints what it has passed as it goes
on_kernel = LAB_TIMEOUT=5400 lab/lab --kernel $(1) env -u CI tests/run --abreast 2 --limit 720 \
    tests/lab/on_kernel.py $(PLATFORM_TESTS) [+ $(IDLERS) ] [ $(UNIT_ABREAST) $(LOOP_ABREAST) ] $(LOOP_ALONE)

fetch-kernels: lab-parts
	@for k in $(KERNELS); do BUILD='$(abspath $(BUILD))' lab/lab --kernel $$k --describe | sed 's/^/  LAB     /'; done

check-kernels: fetch-kernels tools $(UNIT_TESTS) $(LOOP_TESTS) $(PLATFORM_TESTS) $(E2E_PROGRAMS) $(BUILD)/guests/micro.elf \
    $(BUILD)/tests/e2e/$(E2E_STOCK_bookworm)
	@$(foreach k,$(KERNELS),echo 'kernel $(k)' && $(RUN_ENV) $(call on_kernel,$(k)) &&) true

# --- the verbs link on a kernel's own RDMA stack: part of `make check` ---

# A hundred moves in one process, under AddressSanitizer
LEAKS := $(BUILD)/asan/tests/loop/many
RUN_LEAKS := 'lab/lab tests/lab/leaks $(LEAKS):1020'

# Each with its limit in seconds, with room for a slow machine; a lab ends its command a little before
export LAB_TIMEOUT ?= 1000
# The short ones share a lab: its start takes as long as each of them
RUN_LAB := \
    'lab/lab tests/run $(LAB_TESTS:=:250) tests/lab/doctor_peer:250 tests/lab/hwpoison:250 "tests/lab/leaks $(LEAKS):250":1020' \
    'lab/lab tests/lab/loop_verbs:1020' \
    'lab/lab tests/lab/move_verbs.py:1020' \
    'lab/lab tests/lab/killed_early.py:1020' \
    'lab/lab tests/lab/attach_verbs.py:1020' \
    'lab/lab tests/lab/resume_verbs.py:1020' \
    'lab/lab --kernel $(OLDEST) tests/run "$(BUILD)/tests/loop/page_pools tcp off:250" \
        "tests/lab/on_kernel.py doctor move-anon:400":1020'

# And what make check-full has more
RUN_LAB_MORE := $(foreach t,killed_late clock_jumps move_library,'lab/lab tests/lab/$t.py:1020') \
    'lab/lab tests/lab/loop_verbs --more:1020' \
    'lab/lab tests/lab/attach_verbs.py --more:1020' 'lab/lab tests/lab/killed_early.py --more:1020'

# Fetched before any test's time runs, and said; if it is not to be had, the tests say why
lab-kernel: lab-parts
	@BUILD='$(abspath $(BUILD))' lab/lab --describe | sed 's/^/  LAB     /'
	@BUILD='$(abspath $(BUILD))' lab/lab --kernel $(OLDEST) --describe | sed 's/^/  LAB     /'

lab-leaks: | $(DEPS_ALL)
	@$(SUB_MAKE) BUILD=$(BUILD)/asan SANITIZE='$(ASAN_FLAGS)' $(LEAKS)

check check-lab-more: lab-kernel lab-leaks $(LAB_PROGRAMS)
check-lab: lab-kernel lab-leaks $(LAB_PROGRAMS) $(BUILD)/guests/micro.elf $(LOOP_TESTS) $(E2E_PROGRAMS) \
    $(BUILD)/tests/e2e/$(E2E_STOCK_bookworm)
	@$(RUN_ENV) tests/run $(RUN_LAB) $(RUN_LAB_MORE)
check-lab-leaks: lab-kernel lab-leaks
	@$(RUN_ENV) tests/run $(RUN_LEAKS)
