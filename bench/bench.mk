# SPDX-License-Identifier: LGPL-2.1-or-later
#
# bench.mk - what a move costs: make bench, make bench FULL=1
#
# Included by the top Makefile. BENCH_FLAGS: see `farfork bench --help`

.PHONY: bench
DEPS_BENCH := $(BUILD)/.deps-bench
$(DEPS_BENCH): $(DEPS_ALL)

$(BUILD)/bench/floors: bench/floors.c bench/bench.mk | $(DEPS_LIB)
	@mkdir -p $(@D)
	@echo "  CC      $<"
	@$(CC) $(CFLAGS) -o $@ $< -lpthread

bench: $(BUILD)/bin/farfork $(BUILD)/bin/qemu-system-x86_64 $(BUILD)/guests/micro.elf \
       $(BUILD)/bench/floors | $(DEPS_BENCH)
	@FARFORK_BUILD='$(abspath $(BUILD))' $(BUILD)/bin/farfork bench $(if $(FULL),--full) \
	    $(BENCH_FLAGS)
