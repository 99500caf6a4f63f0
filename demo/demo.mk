# SPDX-License-Identifier: LGPL-2.1-or-later
#
# demo.mk - move two live guests and show what happened
#
# Included by the top Makefile, which sets BUILD. DEMO_FLAGS: see demo/demo.py --help

BUILD ?= build
DEMO_DIR := $(patsubst %/,%,$(dir $(lastword $(MAKEFILE_LIST))))

.PHONY: demo
demo: all
	@FARFORK_BUILD='$(BUILD)' python3 $(DEMO_DIR)/demo.py $(DEMO_FLAGS)
