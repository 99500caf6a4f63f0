# SPDX-License-Identifier: LGPL-2.1-or-later
#
# Makefile - build, check and show Farfork; `make help` lists what there is

BUILD ?= build
CC := gcc
WERROR ?= -Werror
OPT ?= -O2
CFLAGS := -std=gnu11 -D_GNU_SOURCE $(OPT) -g -Wall -Wextra -Wshadow -Wvla $(WERROR)
SANITIZE ?=
LIB_CFLAGS := $(CFLAGS) -fPIC -fvisibility=default $(SANITIZE) -MMD -MP
LIB_LIBS := -lrdmacm -libverbs -lgnutls -lIPSec_MB -lpthread
TOOL_LIBS := -ljansson
VERSION := 0.1.0

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SECONDARY:
MAKEFLAGS += --no-builtin-rules
ifeq ($(filter -j%,$(MAKEFLAGS)),)
MAKEFLAGS += -j$(shell nproc)
endif

# --- what a folder may include (docs/architecture.md): a wrong include does not compile ---

INC_base := base
INC_rdma := rdma base
INC_uffd := uffd base include
INC_migrate := migrate rdma uffd base include
INC_probe := probe migrate rdma uffd base include
INC_clone := clone migrate rdma uffd base include
INC_vm := vm base
INC_vm/disk := vm/disk $(INC_vm)
INC_vm/attach := vm/attach $(INC_vm)
INC_control/host := control/host $(INC_vm/disk) include
INC_control/session := control/session $(INC_control/host)
INC_control/agent := control/agent vm/attach $(INC_control/host)
INC_control/fork := control/fork control/session $(INC_control/host)
INC_control/move := control/move control/session $(INC_control/host)
INC_control/attach := control/attach vm/attach $(INC_control/host)
INC_cli := cli control/agent control/move control/attach $(INC_control/fork)
iquote = $(addprefix -iquote ,$(INC_$(1)))

LIB_DIRS := base rdma uffd migrate probe clone
LIB_SRC := $(sort $(wildcard $(addsuffix /*.c,$(LIB_DIRS))))
LIB_OBJ := $(LIB_SRC:%.c=$(BUILD)/obj/%.o)
TOOL_DIRS := vm vm/disk vm/attach $(addprefix control/,host session agent fork move attach) cli
TOOL_SRC := $(sort $(wildcard $(addsuffix /*.c,$(TOOL_DIRS))))
TOOL_OBJ := $(TOOL_SRC:%.c=$(BUILD)/obj/%.o)
TOOL_MAIN := $(BUILD)/obj/cli/farfork.o $(BUILD)/obj/cli/vmclone.o # one program each

DEPS_LIB := $(BUILD)/.deps-lib
DEPS_GUESTS := $(BUILD)/.deps-guests
DEPS_ALL := $(BUILD)/.deps-all

.PHONY: all lib tools qemu guests check check-full check-asan check-tsan check-fuzz \
        clean help install
all: lib tools guests

$(BUILD)/.deps-%: scripts/deps
	@mkdir -p $(@D)
	scripts/deps $*
	@touch $@

# one after the other: apt takes one at a time
$(BUILD)/.deps-guests: $(BUILD)/.deps-lib
$(BUILD)/.deps-all: $(BUILD)/.deps-guests
$(BUILD)/.deps-lab: $(BUILD)/.deps-all

# --- library and tools ---

lib: $(BUILD)/lib/libfarfork.a $(BUILD)/lib/libfarfork.so $(BUILD)/lib/pkgconfig/farfork.pc tools

define object_rule
$(BUILD)/obj/$(1)/%.o: $(1)/%.c | $(DEPS_LIB)
	@mkdir -p $$(@D)
	@echo "  CC      $$<"
	@$$(CC) $$(LIB_CFLAGS) $$(call iquote,$(1)) -c -o $$@ $$<
endef
$(foreach d,$(LIB_DIRS) $(TOOL_DIRS),$(eval $(call object_rule,$(d))))

$(BUILD)/lib/libfarfork.a: $(LIB_OBJ)
	@mkdir -p $(@D)
	@echo "  AR      $@"
	@rm -f $@ && ar rcs $@ $^

$(BUILD)/lib/libfarfork.so.0: $(LIB_OBJ) include/farfork.map
	@mkdir -p $(@D)
	@echo "  LD      $@"
	@$(CC) $(SANITIZE) -shared -Wl,-soname,libfarfork.so.0 -Wl,--version-script=include/farfork.map \
	    -Wl,-z,defs -o $@ $(LIB_OBJ) $(LIB_LIBS)

$(BUILD)/lib/libfarfork.so: $(BUILD)/lib/libfarfork.so.0
	@ln -sf $(<F) $@

$(BUILD)/lib/pkgconfig/farfork.pc: Makefile
	@mkdir -p $(@D)
	@printf '%s\n' 'Name: farfork' 'Description: move a running guest; its memory follows' \
	    'Version: $(VERSION)' 'Cflags: -I$(CURDIR)/include' \
	    'Libs: $(abspath $(BUILD))/lib/libfarfork.a $(LIB_LIBS)' > $@

$(BUILD)/lib/libtools.a: $(filter-out $(TOOL_MAIN),$(TOOL_OBJ))
	@mkdir -p $(@D)
	@echo "  AR      $@"
	@rm -f $@ && ar rcs $@ $^

tools: $(BUILD)/bin/farfork $(BUILD)/bin/vmclone
$(BUILD)/bin/farfork: $(BUILD)/obj/cli/farfork.o
$(BUILD)/bin/vmclone: $(BUILD)/obj/cli/vmclone.o
$(BUILD)/bin/farfork $(BUILD)/bin/vmclone: $(BUILD)/lib/libtools.a $(BUILD)/lib/libfarfork.a
	@mkdir -p $(@D)
	@echo "  LD      $@"
	@$(CC) $(SANITIZE) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(LIB_LIBS) $(TOOL_LIBS)

-include $(LIB_OBJ:.o=.d) $(TOOL_OBJ:.o=.d)

# --- QEMU and test guests ---

include qemu-patches/qemu.mk
include tests/guests/micro/micro.mk
include tests/guests/linux/linux.mk
include tests/platform/platform.mk
include tests/tests.mk
include demo/demo.mk
include lab/lab.mk
include bench/bench.mk
include scripts/install.mk
include tests/packages/packages.mk
include tests/guests/debian/debian.mk

# What these fragments build needs more packages
$(MICRO_OBJ) $(LG_OUT)/guestload $(LG_KERNEL)/release: | $(DEPS_GUESTS)
$(PLATFORM_TESTS): | $(DEPS_ALL)

guests: $(BUILD)/guests/micro.elf linux-guest

clean:
	rm -rf $(BUILD)

help:
	@printf '%s\n' \
	  'make            library, tools and test guests' \
	  'make lib        library and tools alone, in seconds' \
  'make qemu       QEMU with the patch series: for rdma-postcopy: by its own monitor, and for the tests' \
	  "make demo       move and fork running guests of this machine's own QEMU, and show what happened (3 minutes)" \
	  'make demo-qemu  the same with the patched QEMU, which it builds' \
	  'make bench      what moves cost, against what QEMU has (12 minutes; FULL=1: all)' \
	  'make bench-key  what a key costs a move of 2 GiB, beside QEMU'\''s own (3 minutes)' \
	  'make bench-visit   a guest goes to its data and back: a visit against two moves (3 minutes)' \
	  'make bench-remote  what calls of a remote accelerator notice of a move (2 minutes)' \
	  'make bench-serving what serving many peers costs, by threads and by io_uring (2 minutes)' \
	  'make bench-fanout what a fork to 1, 2, 4 ... 32 hosts costs, by a star and by chains (35 minutes)' \
	  'make bench-clone  what forks cost, against what QEMU has (20 minutes)' \
	  'make check      build everything, run the tests' \
	  'make check-quick some of every layer, in 5 minutes: before each commit' \
	  'make check-full the tests, and what takes longer' \
	  'make soak       moves and forks of one guest while things go wrong (MINUTES=30 SEED=n)' \
	  'make soak-lib   the same with the library alone, under ASan, UBSan and TSan (MINUTES=10 SEED=n)' \
	  'make check-asan make check-tsan   unit and loop tests under a sanitizer' \
	  'make lab CMD=...  a command on a kernel with soft-RoCE; make check-lab: the verbs link there' \
	  'make check-kernels  on the kernels of Debian 12, 13 and its backports, in virtual machines' \
	  'make fuzz       the fuzzers at the same time (MINUTES=60); make check-fuzz: FUZZ_SECONDS=60' \
	  'make install    to PREFIX (/usr/local), below DESTDIR where that is set; make install-qemu: Farfork'\''s QEMU' \
	  'make deb        Debian packages, in $(BUILD)/deb; make guest-tarball: for guests of other systems' \
	  'make check-packages  install them into a fresh Debian, use them, remove them' \
	  'make clean      remove $(BUILD)/' \
	  'Variables: BUILD (folder), FARFORK_CACHE (downloads and objects, outside the checkout),' \
	  '  QEMU_VERSION ($(QEMU_VERSIONS)), FEATURES (full, minimal)'
