# SPDX-License-Identifier: LGPL-2.1-or-later
#
# linux.mk - the Linux test guest: $(BUILD)/guests/vmlinux and $(BUILD)/guests/initrd.img
#
# Alone:    make -f tests/guests/linux/linux.mk BUILD=DIR
# Included: set BUILD before; builds nothing unless asked for `linux-guest`.
# The kernel is fetched once into $(FARFORK_CACHE) and stays there.

BUILD ?= build
LG_DIR := $(patsubst %/,%,$(dir $(lastword $(MAKEFILE_LIST))))
LG_OUT := $(BUILD)/guests/linux

XDG_CACHE_HOME ?= $(HOME)/.cache
FARFORK_CACHE ?= $(XDG_CACHE_HOME)/farfork
export FARFORK_CACHE

LG_SUITE ?= trixie
LG_PACKAGE ?= linux-image-6\.12\.[0-9.+deb]*-cloud-amd64(-unsigned)?
LG_KERNEL ?= $(FARFORK_CACHE)/kernel-trixie-6.12-cloud
# busybox-static of this machine, or else the suite's own
LG_BUSYBOX ?= $(firstword $(wildcard /bin/busybox /usr/bin/busybox) \
                          $(FARFORK_CACHE)/busybox-$(LG_SUITE)/usr/bin/busybox)

LG_CFLAGS := -std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -Wshadow -Wvla -Werror \
             -ffile-prefix-map=$(LG_DIR)=. -static -pthread -s -Wl,--build-id=none
LG_SOURCES := $(addprefix $(LG_DIR)/,guestload.c gl_mem.c gl_disk.c gl_tcp.c gl_udp.c gl_rpc.c)
LG_HELPER := $(LG_DIR)/../../../guest/farfork-guest

.PHONY: linux-guest linux-guest-clean
linux-guest: $(BUILD)/guests/vmlinux $(BUILD)/guests/initrd.img

$(LG_KERNEL)/release:
	$(LG_DIR)/fetch-kernel '$(LG_SUITE)' '$(LG_PACKAGE)' '$(LG_KERNEL)'

$(FARFORK_CACHE)/busybox-$(LG_SUITE)/usr/bin/busybox:
	$(LG_DIR)/../../../scripts/debian-archive binary '$(LG_SUITE)' busybox-static \
	    '$(FARFORK_CACHE)/busybox-$(LG_SUITE)'
	test -x '$@'

$(BUILD)/guests/vmlinux: $(LG_KERNEL)/release
	@mkdir -p $(@D)
	cp '$(LG_KERNEL)/vmlinux' '$@.part'
	mv '$@.part' '$@'

$(LG_OUT)/guestload: $(LG_SOURCES) $(LG_DIR)/guestload.h
	@mkdir -p $(@D)
	$(CC) $(LG_CFLAGS) -o '$@' $(LG_SOURCES)

$(BUILD)/guests/initrd.img: $(LG_OUT)/guestload $(LG_DIR)/guest_init $(LG_DIR)/mkguest \
                            $(LG_KERNEL)/release $(LG_BUSYBOX) $(LG_HELPER)
	$(LG_DIR)/mkguest '$(LG_KERNEL)' '$(LG_BUSYBOX)' '$(LG_OUT)/guestload' '$(LG_DIR)/guest_init' \
	    '$(LG_HELPER)' '$@'

linux-guest-clean:
	rm -rf '$(LG_OUT)' '$(BUILD)/guests/vmlinux' '$(BUILD)/guests/initrd.img'
