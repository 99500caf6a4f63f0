# SPDX-License-Identifier: LGPL-2.1-or-later
#
# debian.mk - a whole Debian 12 as a guest: $(BUILD)/guests/debian.img and $(BUILD)/guests/debian/
#
# The system is made once, in some minutes, and stays in $(FARFORK_CACHE); its disk has the files of
# the package farfork-guest as they are in this checkout. Both need root: without it nothing is
# made, and debian_guest.py says so.

.PHONY: debian-guest
# to be raised when mkdebian makes another system
DEBIAN_GUEST := $(FARFORK_CACHE)/debian-12-guest-1
DEBIAN_DIR := $(patsubst %/,%,$(dir $(lastword $(MAKEFILE_LIST))))
DEPS_FULL := $(BUILD)/.deps-full

debian-guest: $(if $(filter 0,$(shell id -u)),$(BUILD)/guests/debian.img)

$(DEBIAN_GUEST)/root: | $(DEPS_FULL)
	$(DEBIAN_DIR)/mkdebian root '$(DEBIAN_GUEST)'

$(BUILD)/guests/debian.img: $(GUEST_FILES) $(DEBIAN_DIR)/mkdebian | $(DEBIAN_GUEST)/root
	@mkdir -p $(@D)
	rm -rf $(BUILD)/debian-tree
	$(MAKE) install-guest DESTDIR=$(abspath $(BUILD))/debian-tree PREFIX=/usr
	$(DEBIAN_DIR)/mkdebian disk '$(DEBIAN_GUEST)' $(BUILD)/debian-tree '$@'
	ln -sfn '$(DEBIAN_GUEST)' $(BUILD)/guests/debian
