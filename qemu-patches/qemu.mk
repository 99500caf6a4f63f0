# SPDX-License-Identifier: LGPL-2.1-or-later
#
# qemu.mk - QEMU with the patch series: $(BUILD)/bin/qemu-system-x86_64

# A folder here has the hooks of each version
QEMU_VERSIONS := $(patsubst qemu-patches/%/series,%,$(sort $(wildcard qemu-patches/*/series)))
QEMU_VERSION ?= 10.0
ifeq ($(filter $(QEMU_VERSION),$(QEMU_VERSIONS)),)
$(error QEMU_VERSION=$(QEMU_VERSION): permitted: $(QEMU_VERSIONS))
endif
QEMU_DIR := $(BUILD)/qemu-$(QEMU_VERSION)
QEMU_PROGRAMS := $(QEMU_VERSIONS:%=$(BUILD)/qemu-%/build/qemu-system-x86_64)
QEMU_OWN := $(wildcard qemu-patches/src/*)
# full: what people's command lines need; minimal: built in half the time (qemu-patches/build)
FEATURES ?= full

.PHONY: qemu qemu-versions always
qemu: $(BUILD)/bin/qemu-system-x86_64
qemu-versions: $(QEMU_PROGRAMS)
always:

# The tree is made anew when a patch changes; ccache makes that cheap
define QEMU_RULES
$(BUILD)/qemu-$1/.applied: $(addprefix qemu-patches/$1/,suite series $(shell cat qemu-patches/$1/series)) \
        qemu-patches/fetch qemu-patches/apply | $$(DEPS_ALL)
	qemu-patches/fetch qemu-patches/$1
	qemu-patches/apply qemu-patches/$1 $$(@D)/src
	@touch $$@
endef
$(foreach v,$(QEMU_VERSIONS),$(eval $(call QEMU_RULES,$v)))

# Our own files: copied anew when one changes, which rebuilds what includes them
$(BUILD)/qemu-%/.src: $(BUILD)/qemu-%/.applied $(QEMU_OWN)
	@mkdir -p $(@D)/src/migration/farfork
	cp -p $(QEMU_OWN) $(@D)/src/migration/farfork/
	@touch $@

$(BUILD)/qemu-%/.features: always
	@mkdir -p $(@D)
	@echo $(FEATURES) | cmp -s - $@ || echo $(FEATURES) > $@

$(QEMU_PROGRAMS): $(BUILD)/qemu-%/build/qemu-system-x86_64: $(BUILD)/qemu-%/.src $(BUILD)/qemu-%/.features \
        $(BUILD)/lib/libfarfork.a $(BUILD)/lib/pkgconfig/farfork.pc include/farfork.h include/farfork-clone.h \
        qemu-patches/build
	FEATURES=$(FEATURES) qemu-patches/build $(BUILD)/qemu-$*/src $(@D) $(abspath $(BUILD)/lib/pkgconfig)

# Which version that is: a stamp, so that another choice makes the link anew
$(BUILD)/.qemu-version: always
	@mkdir -p $(@D)
	@echo $(QEMU_VERSION) | cmp -s - $@ || echo $(QEMU_VERSION) > $@

$(BUILD)/bin/qemu-system-x86_64: $(QEMU_DIR)/build/qemu-system-x86_64 $(BUILD)/.qemu-version
	@mkdir -p $(@D)
	ln -sf ../qemu-$(QEMU_VERSION)/build/qemu-system-x86_64 $@
	@touch -h $@
