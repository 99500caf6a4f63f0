# SPDX-License-Identifier: LGPL-2.1-or-later
#
# demo.mk - move two live guests, fork one, and show what happened
#
# Included by the top Makefile, which sets BUILD. DEMO_FLAGS: see demo/demo.py --help

BUILD ?= build
DEMO_DIR := $(patsubst %/,%,$(dir $(lastword $(MAKEFILE_LIST))))

.PHONY: demo
demo: all $(BUILD)/bench/baselines
	@FARFORK_BUILD='$(BUILD)' python3 $(DEMO_DIR)/demo.py $(DEMO_FLAGS)
