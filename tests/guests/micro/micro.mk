# SPDX-License-Identifier: LGPL-2.1-or-later
#
# micro.mk - build the ring-3 micro guest: $(BUILD)/guests/micro.elf; micro-arm64.elf beside it
#
# Included by the top Makefile; also works alone, from the top of the tree:
#   make -f tests/guests/micro/micro.mk BUILD=build
#
# The guest is freestanding, and linked with nothing.

BUILD ?= build
OBJCOPY ?= objcopy

MICRO_DIR := $(patsubst %/,%,$(dir $(lastword $(MAKEFILE_LIST))))
MICRO_OUT := $(BUILD)/guests/micro
MICRO_ELF := $(BUILD)/guests/micro.elf
MICRO_OBJ := $(patsubst %,$(MICRO_OUT)/%.o,boot platform ram ledger work report main)

# Not CFLAGS: sanitizers, PIE and hardening flags have no place in this program.
MICRO_CFLAGS := -std=c11 -O2 -g0 -m64 -Wall -Wextra -Wshadow -Wvla -Werror \
    -ffreestanding -fno-pic -fno-pie -fno-stack-protector -fcf-protection=none \
    -fno-asynchronous-unwind-tables -fno-tree-loop-distribute-patterns \
    -mno-red-zone -mgeneral-regs-only -mcmodel=small
MICRO_LDFLAGS := -m64 -nostdlib -static -no-pie -Wl,--build-id=none \
    -Wl,-z,max-page-size=4096 -Wl,-z,noexecstack -Wl,--no-warn-rwx-segments

.PHONY: micro-guest
micro-guest: $(MICRO_ELF)

$(MICRO_OUT)/%.o: $(MICRO_DIR)/%.c $(MICRO_DIR)/micro.h $(MICRO_DIR)/micro.mk
	@mkdir -p $(@D)
	$(CC) $(MICRO_CFLAGS) -c -o $@ $<

$(MICRO_OUT)/%.o: $(MICRO_DIR)/%.S $(MICRO_DIR)/micro.mk
	@mkdir -p $(@D)
	$(CC) -m64 -c -o $@ $<

# Multiboot loaders take 32-bit ELF only, whatever is in it.
$(MICRO_ELF): $(MICRO_OBJ) $(MICRO_DIR)/micro.ld
	$(CC) $(MICRO_LDFLAGS) -Wl,-T,$(MICRO_DIR)/micro.ld -o $(MICRO_OUT)/micro64.elf $(MICRO_OBJ)
	$(OBJCOPY) -O elf32-i386 $(MICRO_OUT)/micro64.elf $@

# The same guest for qemu-system-aarch64, by clang and lld, which need no cross compiler
MICRO_ARM64_ELF := $(BUILD)/guests/micro-arm64.elf
MICRO_ARM64_OBJ := $(patsubst %,$(MICRO_OUT)/arm64/%.o,boot_arm64 platform_arm64 ram ledger work report main)
MICRO_ARM64_CFLAGS := --target=aarch64-none-elf -std=c11 -O2 -g0 -Wall -Wextra -Wshadow -Wvla -Werror \
    -ffreestanding -fno-builtin -fno-pic -fno-stack-protector -fno-asynchronous-unwind-tables \
    -mgeneral-regs-only -mstrict-align -mno-outline-atomics

$(MICRO_OUT)/arm64/%.o: $(MICRO_DIR)/%.c $(MICRO_DIR)/micro.h $(MICRO_DIR)/micro.mk
	@mkdir -p $(@D)
	clang $(MICRO_ARM64_CFLAGS) -c -o $@ $<

$(MICRO_OUT)/arm64/%.o: $(MICRO_DIR)/%.S $(MICRO_DIR)/micro.mk
	@mkdir -p $(@D)
	clang --target=aarch64-none-elf -c -o $@ $<

$(MICRO_ARM64_ELF): $(MICRO_ARM64_OBJ) $(MICRO_DIR)/micro_arm64.ld
	@mkdir -p $(@D)
	ld.lld -m aarch64elf -static --build-id=none -z max-page-size=4096 -T $(MICRO_DIR)/micro_arm64.ld -o $@ $(MICRO_ARM64_OBJ)
