# SPDX-License-Identifier: LGPL-2.1-or-later
#
# tests.mk - unit tests, loop tests, fuzzers, and who runs them

.PHONY: check check-quick check-unit check-asan check-tsan check-fuzz check-full check-sanitized soak soak-lib soak-moves \
    fuzz
.PHONY: check-versions check-stock check-guests check-lab-more
.PHONY: unit-tests loop-tests fuzzers clone-plan model

# The longer variants of tests, with longer limits
ifneq ($(filter check-full,$(MAKECMDGOALS)),)
export FARFORK_FULL := 1
endif

# E2E_TESTS: programs and scripts, each with a limit in seconds: tests/e2e/NAME:SECONDS. Exit
# code 77 skips, with the reason as the last line; see tests/run.
-include tests/e2e/e2e.mk
E2E_TESTS ?=

FUZZ_SECONDS ?= 60

# Where a sanitizer needs fixed addresses and the host permits to ask for them
NO_ASLR = $(shell setarch -R true 2> /dev/null && echo setarch -R)
RUN_ENV := FARFORK_TOP=$(CURDIR) FARFORK_BUILD=$(abspath $(BUILD)) LAB_KLOG=fail

TEST_CFLAGS = $(CFLAGS) $(SANITIZE) -MMD -MP $(addprefix -iquote ,$(LIB_DIRS) include $(TOOL_DIRS) tests/unit)
TEST_LIBS := $(LIB_LIBS)

# --- unit: one CMocka program a subject ---

UNIT_TESTS := $(patsubst %.c,$(BUILD)/%,$(sort $(wildcard tests/unit/*/*.c)))
unit-tests: $(UNIT_TESTS)

WRAP_ALLOC := -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=strdup
$(BUILD)/tests/unit/migrate/test_wire: TEST_LDFLAGS := $(WRAP_ALLOC)
$(BUILD)/tests/unit/rdma/test_link_tcp: TEST_LDFLAGS := -Wl,--wrap=getaddrinfo
$(BUILD)/tests/unit/rdma/test_key: TEST_LDFLAGS := -Wl,--wrap=gnutls_hkdf_expand
$(BUILD)/tests/unit/uffd/test_uffd: TEST_LDFLAGS := -Wl,--wrap=ioctl,--wrap=madvise
$(BUILD)/tests/unit/migrate/test_segments: TEST_LDFLAGS := -Wl,--wrap=ff_readable
$(BUILD)/tests/unit/migrate/test_touched: TEST_LDFLAGS := -Wl,--wrap=ff_segments_cut

$(UNIT_TESTS): $(BUILD)/%: %.c $(BUILD)/lib/libtools.a $(BUILD)/lib/libfarfork.a tests/tests.mk | $(DEPS_ALL)
	@mkdir -p $(@D)
	@echo "  TEST    $@"
	@$(CC) $(TEST_CFLAGS) $(TEST_LDFLAGS) -o $@ $< $(BUILD)/lib/libtools.a $(BUILD)/lib/libfarfork.a -lcmocka \
	    $(TOOL_LIBS) $(TEST_LIBS)

# --- clone: what vmclone plans, for tests that do it with real QEMUs ---

clone-plan: $(BUILD)/tests/clone/plan
$(BUILD)/tests/clone/plan: tests/e2e/plan_disks.c $(BUILD)/lib/libtools.a $(BUILD)/lib/libfarfork.a tests/tests.mk | $(DEPS_ALL)
	@mkdir -p $(@D)
	@echo "  TEST    $@"
	@$(CC) $(CFLAGS) $(SANITIZE) -MMD -MP $(addprefix -iquote ,$(INC_control/fork)) -o $@ $< $(BUILD)/lib/libtools.a \
	    $(BUILD)/lib/libfarfork.a $(TOOL_LIBS) $(TEST_LIBS)
-include $(BUILD)/tests/clone/plan.d

# --- model: the protocol of a move, all of its states ---

MODEL := $(BUILD)/tests/model/protocol_model
MODEL_OBJ := $(patsubst %.c,$(BUILD)/obj/%.o,$(sort $(wildcard tests/model/*.c)))
MODEL_PARTS := $(filter-out %/protocol_model.o,$(MODEL_OBJ))
model: $(MODEL)

$(MODEL_OBJ): $(BUILD)/obj/%.o: %.c tests/tests.mk | $(DEPS_LIB)
	@mkdir -p $(@D)
	@echo "  CC      $<"
	@$(CC) $(CFLAGS) $(SANITIZE) -MMD -MP $(addprefix -iquote ,tests/model $(INC_migrate)) -c -o $@ $<

$(MODEL): $(MODEL_OBJ) $(BUILD)/lib/libfarfork.a
	@mkdir -p $(@D)
	@echo "  TEST    $@"
	@$(CC) $(CFLAGS) $(SANITIZE) -o $@ $(MODEL_OBJ) $(BUILD)/lib/libfarfork.a $(LIB_LIBS)

# --- loop: whole moves in one process ---

LOOP_SUPPORT := harness region_memory one_move family stranger by_hand fallback soak_draw \
    owner visits
LOOP_OBJ := $(LOOP_SUPPORT:%=$(BUILD)/obj/tests/loop/%.o)
LOOP_SRC := $(filter-out $(LOOP_SUPPORT:%=tests/loop/%.c),$(sort $(wildcard tests/loop/*.c)))
LOOP_TESTS := $(LOOP_SRC:%.c=$(BUILD)/%)
loop-tests: $(LOOP_TESTS)

$(LOOP_OBJ): $(BUILD)/obj/%.o: %.c tests/tests.mk | $(DEPS_ALL)
	@mkdir -p $(@D)
	@echo "  CC      $<"
	@$(CC) $(TEST_CFLAGS) -c -o $@ $<

$(LOOP_TESTS): $(BUILD)/%: %.c $(LOOP_OBJ) $(BUILD)/lib/libfarfork.a | $(DEPS_ALL)
	@mkdir -p $(@D)
	@echo "  TEST    $@"
	@$(CC) $(TEST_CFLAGS) -iquote tests/platform -iquote tests/model -o $@ $< $(LOOP_OBJ) \
	    $(LOOP_MORE) $(BUILD)/lib/libfarfork.a $(TEST_LIBS)

$(BUILD)/tests/loop/model_accepts: $(MODEL_PARTS)
$(BUILD)/tests/loop/verified $(BUILD)/tests/loop/tags_kept: LOOP_MORE := -Wl,--wrap=ff_port_accept
$(BUILD)/tests/loop/resume_answers: LOOP_MORE := -Wl,--wrap=getaddrinfo
$(BUILD)/tests/loop/model_accepts: LOOP_MORE := $(MODEL_PARTS) -Wl,--wrap=ff_link_connect,--wrap=ff_port_accept

# --- e2e: what its tests run beside QEMU ---

E2E_PROGRAMS := $(addprefix $(BUILD)/tests/e2e/,outside_look state_between)
$(E2E_PROGRAMS): $(BUILD)/%: %.c $(BUILD)/lib/libtools.a $(BUILD)/lib/libfarfork.a | $(DEPS_ALL)
	@mkdir -p $(@D)
	@echo "  TEST    $@"
	@$(CC) $(TEST_CFLAGS) -o $@ $< $(BUILD)/lib/libtools.a $(BUILD)/lib/libfarfork.a $(TOOL_LIBS) \
	    $(TEST_LIBS)

# --- fuzzers: clang's; seeds are made, not kept ---

PART_FUZZERS := $(addprefix $(BUILD)/fuzz/,wire_fuzz queue_fuzz clone_fuzz gate_fuzz)
WHOLE_FUZZERS := $(addprefix $(BUILD)/fuzz/,dest_fuzz source_fuzz agent_fuzz feed_fuzz guest_fuzz \
    command_fuzz address_fuzz)
FUZZERS := $(PART_FUZZERS) $(WHOLE_FUZZERS)
FUZZ_CORPORA := wire queue clone gate dest source agent guest command address feed
FUZZ_SANITIZE = $(filter-out $(OPT),$(CFLAGS)) -O1 -fno-omit-frame-pointer -MMD -MP \
              -fno-sanitize-recover=undefined $(addprefix -iquote ,$(LIB_DIRS) include $(TOOL_DIRS))
FUZZ_CFLAGS = $(FUZZ_SANITIZE) -fsanitize=fuzzer,address,undefined
fuzzers: $(FUZZERS) $(BUILD)/fuzz/.seeds

$(PART_FUZZERS): $(BUILD)/fuzz/%: tests/fuzz/%.c tests/tests.mk | $(DEPS_ALL)
	@mkdir -p $(@D)
	@echo "  FUZZ    $@"
	@clang $(FUZZ_CFLAGS) -o $@ $< $(TEST_LIBS)

# a whole side of a move: all of the library, seen by the fuzzer
FUZZ_OBJ := $(patsubst %.c,$(BUILD)/fuzz/obj/%.o,$(LIB_SRC) $(addprefix tests/fuzz/,peer.c clock.c command_host.c) \
              $(filter-out $(TOOL_MAIN:$(BUILD)/obj/%.o=%.c),$(TOOL_SRC)))
$(FUZZ_OBJ): $(BUILD)/fuzz/obj/%.o: %.c tests/tests.mk | $(DEPS_ALL)
	@mkdir -p $(@D)
	@clang $(FUZZ_SANITIZE) -fsanitize=fuzzer-no-link,address,undefined -c -o $@ $<

$(BUILD)/fuzz/libwhole.a: $(FUZZ_OBJ)
	@rm -f $@ && ar rcs $@ $^

$(BUILD)/fuzz/address_fuzz: FUZZ_WRAP = ff_key_load

# clock.c, peer.c
$(addprefix $(BUILD)/fuzz/,dest_fuzz source_fuzz agent_fuzz feed_fuzz): FUZZ_WRAP = clock_gettime timerfd_settime \
    timer_create ff_same_user
$(BUILD)/fuzz/source_fuzz: FUZZ_WRAP += ff_process_exec

# command_host.c: an input names programs, files and processes
$(BUILD)/fuzz/command_fuzz: FUZZ_WRAP = kill waitid waitpid open unlink access connect clock_gettime \
    timerfd_settime timer_create \
    ff_process_exec agent_set_weight preflight_check rundir_write_state rundir_reserve_state \
    jsonl_write_json journal_send $(addprefix overlay_records_,make unmake add sweep leave) \
    $(addprefix ff_agent_,together stats session image_name working_set free)

$(WHOLE_FUZZERS): $(BUILD)/fuzz/%: tests/fuzz/%.c $(BUILD)/fuzz/libwhole.a tests/tests.mk
	@echo "  FUZZ    $@"
	@clang $(FUZZ_CFLAGS) $(addprefix -Xlinker --wrap=,$(FUZZ_WRAP)) -o $@ $< $(BUILD)/fuzz/libwhole.a \
	    $(TOOL_LIBS) $(TEST_LIBS)

$(BUILD)/fuzz/seeds: tests/fuzz/seeds.c $(BUILD)/lib/libtools.a $(BUILD)/lib/libfarfork.a | $(DEPS_ALL)
	@mkdir -p $(@D)
	@$(CC) $(TEST_CFLAGS) -o $@ $< $(BUILD)/lib/libtools.a $(BUILD)/lib/libfarfork.a $(TOOL_LIBS) \
	    $(TEST_LIBS)

$(BUILD)/fuzz/.seeds: $(BUILD)/fuzz/seeds
	@mkdir -p $(addprefix $(@D)/,$(FUZZ_CORPORA))
	@$< $(addprefix $(@D)/,$(FUZZ_CORPORA))
	@touch $@

-include $(MODEL_OBJ:.o=.d) $(UNIT_TESTS:=.d) $(LOOP_OBJ:.o=.d) $(LOOP_TESTS:=.d) $(E2E_PROGRAMS:=.d) $(FUZZERS:=.d) \
    $(FUZZ_OBJ:.o=.d)

# --- running; what a run needs is built before it starts ---

# `make check` runs two tests at a time, where there are two cores, of those that wait more than they
# compute: unit tests, and these. Alone: who takes huge pages, or all memory, of the host; who depends on
# how long something takes, a lease for instance; who computes; and who is named nowhere.
ABREAST ?= $(if $(filter 1,$(shell nproc)),1,2)
LOOP_ABREAST := $(filter $(addprefix %/,agent_hostile agents budgets death groups handed_over hello holes_early keyed \
    older options poisoned relays returns return_fails touched_first resume_answers sparse),$(LOOP_TESTS))
# These hardly compute: a quarter of one core at most, the longest first
named = $(foreach n,$(1),$(filter %/$n,$(UNIT_TESTS) $(LOOP_TESTS)))
IDLERS := $(call named,tags_kept take_back before_hello shortage test_tcp_gate agent_resume resume_waits \
    agent_breaks test_link test_certs breaks holes_moved model_accepts never_ran reclaim)
LOOP_ALONE := $(filter-out $(LOOP_ABREAST) $(IDLERS),$(LOOP_TESTS))
UNIT_ABREAST := $(filter-out $(IDLERS),$(UNIT_TESTS))

RUN_LOOP := $(LOOP_TESTS:=:180)
RUN_UNIT := $(UNIT_TESTS:=:120)
RUN_PLATFORM := $(PLATFORM_TESTS:=:60)
RUN_MODEL := $(MODEL):60
RUN_DOCS := tests/docs/man_matches_help.py:60 tests/docs/figures_match_code.py:30 \
    tests/docs/names_exist.py:30 tests/docs/failures_are_shown.py:30 tests/docs/state_is_listed.py:60 \
    'tests/layout/circles.py $(BUILD):60' 'tests/layout/names.py $(BUILD):60' \
    tests/layout/clocks.py:30 tests/layout/words.py:30
# that the micro guest notices every kind of damage to its memory: what the e2e tests rest on
RUN_GUESTS := 'tests/guests/micro/micro_selftest.py --qemu $(BUILD)/bin/qemu-system-x86_64 \
    --guest $(BUILD)/guests/micro.elf --bios qboot.rom:480'
run_fuzz = 'tests/fuzz/run $(1) $(FUZZERS):$(shell expr $(1) + 120)'

check-unit: $(UNIT_TESTS) $(LOOP_TESTS) $(PLATFORM_TESTS) $(MODEL)
	@$(RUN_ENV) tests/run $(RUN_UNIT) $(RUN_MODEL) $(RUN_LOOP) $(RUN_PLATFORM)

# Before each commit: some of every layer in five minutes, by what each test takes
QUICK_LOOP := $(filter-out $(addprefix %/,shortage agent_breaks delays memory_types resume),$(LOOP_TESTS))
QUICK_E2E := $(patsubst %,tests/e2e/%.py:200,doctor move_micro sparse unplug refuse_memory backends \
    move_states agent_waves owner secrets clone_states clone_disks unfinished)
QUICK_BENCH := tests/bench/statistics_test.py:60 tests/bench/results_test.py:120
check-quick: all qemu clone-plan lab-kernel $(UNIT_TESTS) $(QUICK_LOOP) $(PLATFORM_TESTS) $(E2E_PROGRAMS) \
             $(E2E_FILES) fuzzers $(MODEL) $(BUILD)/tests/lab/link_verbs
	@$(RUN_ENV) CC='$(CC)' tests/run 'tests/unit/headers $(BUILD)' $(RUN_DOCS) $(RUN_UNIT) \
	    $(RUN_MODEL) $(RUN_PLATFORM) $(QUICK_LOOP:=:180) $(call run_fuzz,15) $(QUICK_BENCH) $(QUICK_E2E) \
	    'lab/lab $(BUILD)/tests/lab/link_verbs:300'

check: all qemu clone-plan $(UNIT_TESTS) $(LOOP_TESTS) $(PLATFORM_TESTS) $(E2E_PROGRAMS) $(E2E_FILES) fuzzers \
       $(MODEL)
	@$(RUN_ENV) CC='$(CC)' tests/run --abreast $(ABREAST) tests/unit/runner:120 tests/unit/abreast \
	    'tests/unit/headers $(BUILD)' $(RUN_MODEL) $(RUN_DOCS) \
	    [+ tests/unit/guest_keys $(IDLERS:=:180) ] [ $(UNIT_ABREAST:=:120) $(LOOP_ABREAST:=:180) ] \
	    $(LOOP_ALONE:=:180) $(RUN_PLATFORM) $(call run_fuzz,30) $(RUN_BENCH) $(RUN_GUESTS) \
	    $(filter-out $(E2E_BESIDE),$(E2E_TESTS)) [ $(E2E_BESIDE) ] $(RUN_LAB)

# All of them at the same time; what was found covers more the next time
check-fuzz: fuzzers
	@$(RUN_ENV) tests/fuzz/run $(FUZZ_SECONDS) $(FUZZERS)

fuzz:
	@$(SUB_MAKE) check-fuzz FUZZ_SECONDS=$(shell expr $(or $(MINUTES),60) '*' 60)

# The library and its tests once more, in a folder of their own. MAKEFLAGS is emptied because
# the sub-make sets -j itself. report_thread_leaks=0: a test of a broken link ends by _exit()
# while threads are blocked in faults for good, as it must.
SUB_MAKE = MAKEFLAGS= $(MAKE) --no-print-directory $(MAKEOVERRIDES)
ASAN_FLAGS := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
TSAN_FLAGS := -fsanitize=thread -fno-omit-frame-pointer

WITH_ASAN = ASAN_OPTIONS=detect_leaks=1 $(SUB_MAKE) BUILD=$(BUILD)/asan SANITIZE='$(ASAN_FLAGS)'
WITH_TSAN = TSAN_OPTIONS='halt_on_error=1 report_thread_leaks=0' \
    $(SUB_MAKE) BUILD=$(BUILD)/tsan SANITIZE='$(TSAN_FLAGS)' RUN_PREFIX='$(NO_ASLR)'

check-asan:
	@$(WITH_ASAN) check-sanitized

check-tsan:
	@$(WITH_TSAN) check-sanitized

# The model has one thread: nothing for TSan, and minutes of it
SANITIZED = $(UNIT_TESTS) $(LOOP_TESTS) $(if $(findstring =thread,$(SANITIZE)),,$(MODEL))
check-sanitized: $(UNIT_TESTS) $(LOOP_TESTS) $(MODEL)
	@$(RUN_ENV) $(RUN_PREFIX) tests/run --limit 300 $(SANITIZED)

# One guest, moved and forked again and again while things go wrong: the same SEED, the same steps
soak: all qemu $(E2E_PROGRAMS)
	@$(RUN_ENV) tests/e2e/soak.py --minutes $(or $(MINUTES),30) $(if $(SEED),--seed '$(SEED)')

# The library's part of that, under ASan with UBSan and under TSan, for so long each
soak-lib:
	@$(WITH_ASAN) soak-moves
	@$(WITH_TSAN) soak-moves

soak-moves: $(BUILD)/tests/loop/soak_moves
	@$(RUN_ENV) $(RUN_PREFIX) $< --seconds $(shell expr $(or $(MINUTES),10) '*' 60) $(if $(SEED),--seed $(SEED))

# By parts, each of which is a command, too: a whole run takes half a day
FULL_PARTS := versions stock guests asan tsan fuzz lab-more packages kernels
check-full: check
	@for part in $(FULL_PARTS); do $(SUB_MAKE) check-$$part || exit 1; done
	@$(SUB_MAKE) soak MINUTES=10

# What stands on QEMU's own code, with its other versions; and a move from one to the next
check-versions: all qemu $(QEMU_PROGRAMS) $(E2E_PROGRAMS) $(E2E_FILES) clone-plan
	@$(foreach p,$(filter-out $(QEMU_DIR)/%,$(QEMU_PROGRAMS)), \
	    $(RUN_ENV) QEMU_BIN=$(abspath $p) tests/run $(E2E_OF_QEMU) &&) true
	@$(RUN_ENV) tests/run tests/e2e/upgrade.py:300

# Debian's other QEMUs, unpatched
check-stock: all qemu $(E2E_PROGRAMS) $(E2E_FILES) $(E2E_FULL_FILES)
	@$(RUN_ENV) tests/run 'tests/e2e/attach_guests.py --others:600'
	@$(foreach s,$(E2E_STOCK_trixie) $(E2E_STOCK_sid), \
	    $(RUN_ENV) QEMU_BIN=$(abspath $(BUILD)/tests/e2e/$s/qemu-system-x86_64) tests/run $(E2E_OF_FORKS) &&) true

# Firmware, an agent inside, a TPM; a whole Debian
check-guests: all qemu debian-guest $(E2E_PROGRAMS) $(E2E_FILES)
	@$(RUN_ENV) tests/run tests/e2e/firmware.py:420 tests/e2e/guest_agent.py:300 tests/e2e/tpm.py:190 \
	    'bench/remote.py --ways rdma-postcopy visit:300' 'bench/there_and_back.py --mem 384 --data 128:150' tests/e2e/debian_guest.py:1720

check-lab-more: $(BUILD)/guests/micro.elf $(LOOP_TESTS) $(E2E_PROGRAMS) $(E2E_FILES) $(UNIT_TESTS)
	@$(RUN_ENV) tests/run 'lab/lab tests/lab/resume_verbs.py --long:1020' \
	    'env LAB_APPEND="apparmor=1 security=apparmor audit=1" lab/lab tests/lab/apparmor.py:420' \
	    'lab/lab tests/e2e/on_systemd.py:520' $(RUN_LAB_MORE)
