# SPDX-License-Identifier: LGPL-2.1-or-later
#
# bench.mk - what a move costs: make bench, make bench FULL=1; what a fork costs: make bench-clone
#
# Included by the top Makefile. BENCH_FLAGS: see `farfork bench --help`

.PHONY: bench bench-key bench-clone bench-attach bench-fanout bench-serving bench-remote bench-visit
BENCH_PROGRAMS := $(addprefix $(BUILD)/bench/,baselines udpping redisload shaper)
BENCH_SCALING := $(BUILD)/bench/fault_scaling
DEPS_BENCH := $(BUILD)/.deps-bench
RUN_BENCH := tests/bench/statistics_test.py:60 tests/bench/results_test.py:120 \
    tests/bench/page_test.py:120 tests/bench/more_test.py:60 tests/bench/link_test.py:60 \
    tests/bench/fanout_sim_test.py:60 tests/bench/smoke.py:300 tests/bench/clone_smoke.py:120 tests/bench/installed.py:300
check: $(BENCH_PROGRAMS) $(BENCH_SCALING)
$(DEPS_BENCH): $(DEPS_ALL)

$(BENCH_PROGRAMS): $(BUILD)/bench/%: bench/%.c bench/bench.h base/cleanup.h bench/bench.mk | $(DEPS_LIB)
	@mkdir -p $(@D)
	@echo "  CC      $<"
	@$(CC) $(CFLAGS) -iquote base -o $@ $< -lpthread

# the only one with the library in it, and what tests use of it
$(BENCH_SCALING): bench/fault_scaling.c bench/bench.h $(BUILD)/lib/libfarfork.a bench/bench.mk | $(DEPS_LIB)
	@mkdir -p $(@D)
	@echo "  CC      $<"
	@$(CC) $(CFLAGS) $(addprefix -iquote ,$(INC_migrate)) -o $@ $< $(BUILD)/lib/libfarfork.a \
	    $(LIB_LIBS)

# how to serve many peers: the least that each way takes
$(BUILD)/bench/serving: bench/serving.c bench/bench.h base/cleanup.h bench/bench.mk | $(DEPS_BENCH)
	@mkdir -p $(@D)
	@echo "  CC      $<"
	@$(CC) $(CFLAGS) -iquote base -o $@ $< -luring -lpthread
bench-serving: $(BUILD)/bench/serving
	@$< $(SERVING_FLAGS)

# what the workload redis moves: needs packages that `make` alone does not
REDIS_INITRD := $(BUILD)/guests/initrd-redis.img
$(REDIS_INITRD): $(BUILD)/guests/initrd.img bench/mkredis | $(DEPS_BENCH)
	bench/mkredis '$<' '$@'

bench: $(BUILD)/bin/farfork $(BUILD)/bin/qemu-system-x86_64 $(BUILD)/guests/micro.elf \
       $(BENCH_PROGRAMS) $(BENCH_SCALING) linux-guest $(REDIS_INITRD) | $(DEPS_BENCH)
	@FARFORK_BUILD='$(abspath $(BUILD))' $(BUILD)/bin/farfork bench $(if $(FULL),--full) \
	    $(BENCH_FLAGS)

# what a key costs a move, beside QEMU's own: one table a kind of memory
bench-key: $(BUILD)/bin/farfork $(BUILD)/bin/qemu-system-x86_64 $(BUILD)/guests/micro.elf $(BENCH_PROGRAMS)
	@FARFORK_BUILD='$(abspath $(BUILD))' $(BUILD)/bin/farfork bench --runs 3 --mem 2048 \
	    --memory anon memfd --workload random --peers preempt rdma-tcp rdma-tcp,key $(BENCH_FLAGS)

# an unpatched QEMU by its own ways and by attaching, beside the patched one; BENCH_QEMU=stock-qemu-sid
BENCH_QEMU := stock-qemu
bench-attach: tools $(BUILD)/bin/qemu-system-x86_64 $(BUILD)/guests/micro.elf $(BENCH_PROGRAMS) \
              $(BUILD)/tests/e2e/$(BENCH_QEMU)
	@FARFORK_BUILD='$(abspath $(BUILD))' $(BUILD)/bin/farfork bench --qemu $(BENCH_QEMU) \
	    --mem 3072 --memory memfd anon --peers pre-copy post-copy preempt attach rdma-tcp \
	    $(BENCH_FLAGS)

bench-clone: tools $(BUILD)/bin/qemu-system-x86_64 $(BUILD)/guests/micro.elf $(BENCH_PROGRAMS)
	@FARFORK_BUILD='$(abspath $(BUILD))' $(BUILD)/bin/farfork bench --clone $(BENCH_FLAGS)

# To its data and back; VISIT_FLAGS: see bench/there_and_back.py --help
bench-visit: $(BUILD)/bin/qemu-system-x86_64 linux-guest | $(DEPS_BENCH)
	@FARFORK_BUILD='$(abspath $(BUILD))' bench/there_and_back.py --json $(BUILD)/bench/visit.json $(VISIT_FLAGS)

# What calls of a remote accelerator notice of a move; REMOTE_FLAGS: see bench/remote.py --help
bench-remote: $(BUILD)/bin/qemu-system-x86_64 linux-guest | $(DEPS_BENCH)
	@FARFORK_BUILD='$(abspath $(BUILD))' bench/remote.py --json $(BUILD)/bench/remote.json $(REMOTE_FLAGS)

# One guest to many hosts; FANOUT_FLAGS: see bench/fanout.py --help
bench-fanout: tools $(BUILD)/bin/qemu-system-x86_64 $(BUILD)/guests/micro.elf | $(DEPS_BENCH)
	@FARFORK_BUILD='$(abspath $(BUILD))' bench/fanout.py --json $(BUILD)/bench/fanout.json \
	    --plots $(BUILD)/bench/fanout $(FANOUT_FLAGS)
