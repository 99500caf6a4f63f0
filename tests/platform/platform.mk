# SPDX-License-Identifier: LGPL-2.1-or-later
#
# platform.mk - one small program for each assumption about the kernel; see platform.h
#
# Included by the top Makefile, or alone from the top folder:
#   make -f tests/platform/platform.mk BUILD=build all platform-check

ifeq ($(words $(MAKEFILE_LIST)),1)
.PHONY: all
all: platform-tests
BUILD ?= build
CFLAGS ?= -std=c11 -O2 -g -Wall -Wextra -Wshadow -Wvla -Werror
endif

PLATFORM_DIR := $(patsubst %/,%,$(dir $(lastword $(MAKEFILE_LIST))))
PLATFORM_NAMES := $(sort $(basename $(notdir $(wildcard $(PLATFORM_DIR)/*.c))))
PLATFORM_TESTS := $(addprefix $(BUILD)/tests/platform/,$(PLATFORM_NAMES))

.PHONY: platform-tests platform-check
platform-tests: $(PLATFORM_TESTS)

$(PLATFORM_TESTS): $(BUILD)/tests/platform/%: $(PLATFORM_DIR)/%.c $(PLATFORM_DIR)/platform.h
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) -pthread $(LDFLAGS) -o $@ $<

# Every program, one after the other; skipped (77) is counted, never passed.
platform-check: $(PLATFORM_TESTS)
	@held=0; failed=0; skipped=0; \
	for t in $(PLATFORM_TESTS); do \
	    timeout -k 1 10 $$t; \
	    case $$? in 0) held=$$((held + 1));; 77) skipped=$$((skipped + 1));; \
	    *) failed=$$((failed + 1)); echo "FAILED: $$t";; esac; \
	done; \
	echo "platform: $$held hold, $$failed do not, $$skipped cannot be tried here"; \
	test $$failed -eq 0
