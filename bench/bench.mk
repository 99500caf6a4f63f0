# SPDX-License-Identifier: LGPL-2.1-or-later
#
# bench.mk - what a move costs: make bench, make bench FULL=1
#
# Included by the top Makefile. BENCH_FLAGS: see `farfork bench --help`

.PHONY: bench
BENCH_PROGRAMS := $(addprefix $(BUILD)/bench/,floors udpping wire)
DEPS_BENCH := $(BUILD)/.deps-bench
RUN_BENCH := tests/bench/statistics_test.py:60 tests/bench/results_test.py:120 \
    tests/bench/link_test.py:60 tests/bench/smoke.py:170
check: $(BENCH_PROGRAMS)
$(DEPS_BENCH): $(DEPS_ALL)

$(BENCH_PROGRAMS): $(BUILD)/bench/%: bench/%.c bench/bench.mk | $(DEPS_LIB)
	@mkdir -p $(@D)
	@echo "  CC      $<"
	@$(CC) $(CFLAGS) -o $@ $< -lpthread

bench: $(BUILD)/bin/farfork $(BUILD)/bin/qemu-system-x86_64 $(BUILD)/guests/micro.elf \
       $(BENCH_PROGRAMS) linux-guest | $(DEPS_BENCH)
	@FARFORK_BUILD='$(abspath $(BUILD))' $(BUILD)/bin/farfork bench $(if $(FULL),--full) \
	    $(BENCH_FLAGS)
