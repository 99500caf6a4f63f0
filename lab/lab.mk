# SPDX-License-Identifier: LGPL-2.1-or-later
#
# lab.mk - the RDMA lab: make lab CMD='...', make check-lab-self
#
# Included by the top Makefile, after what builds QEMU and the guests.

.PHONY: lab lab-parts check-lab check-lab-self

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

LAB_TESTS := $(BUILD)/tests/lab/link_verbs $(BUILD)/tests/lab/memory_verbs

$(LAB_TESTS): $(BUILD)/%: %.c $(BUILD)/lib/libfarfork.a tests/tests.mk | $(DEPS_ALL)
	@mkdir -p $(@D)
	@echo "  TEST    $@"
	@$(CC) $(TEST_CFLAGS) -o $@ $< $(BUILD)/lib/libfarfork.a -lcmocka $(TEST_LIBS)

-include $(LAB_TESTS:=.d)

# The verbs link on a kernel's own RDMA stack
check-lab: lab-parts tools $(BUILD)/guests/micro.elf $(LAB_TESTS) $(LOOP_TESTS)
	@BUILD='$(abspath $(BUILD))' LAB_KLOG=fail tests/run \
	    $(patsubst %,'lab/lab %:180',$(abspath $(LAB_TESTS))) \
	    'lab/lab tests/lab/loop_verbs:240' \
	    'lab/lab tests/lab/move_verbs.py:300' 'lab/lab tests/lab/doctor_peer:260'
