# SPDX-License-Identifier: LGPL-2.1-or-later
#
# demo.mk - make demo: running guests move, with this machine's own QEMU; make demo-qemu: with Farfork's
#
# Included by the top Makefile, which sets BUILD. DEMO_FLAGS: see demo/demo.py --help. QEMU_BIN: another QEMU

BUILD ?= build
DEMO_DIR := $(patsubst %/,%,$(dir $(lastword $(MAKEFILE_LIST))))
DEPS_DEMO := $(BUILD)/.deps-demo
# asked for alone: all packages at once, the first time that any is needed
ifeq ($(MAKECMDGOALS),demo)
$(DEPS_LIB) $(DEPS_GUESTS): $(DEPS_DEMO)
endif

.PHONY: demo demo-qemu
demo: guests tools $(BUILD)/bench/baselines $(DEPS_DEMO)
	@FARFORK_BUILD='$(BUILD)' QEMU_BIN="$${QEMU_BIN:-/usr/bin/qemu-system-x86_64}" \
	    python3 $(DEMO_DIR)/demo.py $(DEMO_FLAGS)

demo-qemu: all qemu $(BUILD)/bench/baselines
	@FARFORK_BUILD='$(BUILD)' python3 $(DEMO_DIR)/demo.py $(DEMO_FLAGS)
