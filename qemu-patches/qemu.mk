# SPDX-License-Identifier: LGPL-2.1-or-later
#
# qemu.mk - QEMU with the patch series: $(BUILD)/bin/qemu-system-x86_64

QEMU_SERIES := qemu-patches/10.0
QEMU_DIR := $(BUILD)/qemu
QEMU_OWN := $(wildcard qemu-patches/src/*)
# full: what people's command lines need; minimal: built in half the time (qemu-patches/build)
FEATURES ?= full
QEMU_PATCHES := $(QEMU_SERIES)/series $(addprefix $(QEMU_SERIES)/,$(shell cat $(QEMU_SERIES)/series))

qemu: $(BUILD)/bin/qemu-system-x86_64

# The tree is made anew when a patch changes; ccache makes that cheap
$(QEMU_DIR)/.applied: $(QEMU_PATCHES) qemu-patches/fetch qemu-patches/apply | $(DEPS_ALL)
	qemu-patches/fetch
	qemu-patches/apply $(QEMU_SERIES) $(QEMU_DIR)/src
	@touch $@

# Our own files: copied anew when one changes, which rebuilds what includes them
$(QEMU_DIR)/.src: $(QEMU_OWN) $(QEMU_DIR)/.applied
	@mkdir -p $(QEMU_DIR)/src/migration/farfork
	cp -p $(QEMU_OWN) $(QEMU_DIR)/src/migration/farfork/
	@touch $@

.PHONY: always
always:
$(QEMU_DIR)/.features: always
	@mkdir -p $(@D)
	@echo $(FEATURES) | cmp -s - $@ || echo $(FEATURES) > $@

$(BUILD)/bin/qemu-system-x86_64: $(QEMU_DIR)/.src $(QEMU_DIR)/.features $(BUILD)/lib/libfarfork.a \
                                 $(BUILD)/lib/pkgconfig/farfork.pc include/farfork.h include/farfork-clone.h \
                                 qemu-patches/build
	@mkdir -p $(@D)
	FEATURES=$(FEATURES) qemu-patches/build $(QEMU_DIR)/src $(QEMU_DIR)/build $(abspath $(BUILD)/lib/pkgconfig)
	ln -sf ../qemu/build/qemu-system-x86_64 $@
	@touch -h $@
