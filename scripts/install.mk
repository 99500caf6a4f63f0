# SPDX-License-Identifier: LGPL-2.1-or-later
#
# install.mk - make install: tools, library, manual, QEMU, and what `farfork bench` runs
#
# Farfork's QEMU stands beside the system's, in lib/farfork/bin. lib/farfork has the shape of a
# build folder and share/farfork that of a checkout, so that bench.py finds what it needs in either.

PREFIX ?= /usr/local
INSTALLED = $(DESTDIR)$(PREFIX)
INSTALL_SHARE := $(wildcard bench/*.py) $(addprefix tests/e2e/,common.py proxies.py stocks.py) guest/farfork-guest \
    $(addprefix tests/guests/,micro/qemu.py micro/report.py linux/linuxguest.py linux/linuxreport.py)

install: lib $(BUILD)/bin/qemu-system-x86_64 $(BUILD)/guests/micro.elf \
         $(BENCH_PROGRAMS) $(BENCH_SCALING)
	install -d $(addprefix $(INSTALLED)/,bin include lib/pkgconfig lib/farfork/bin share/farfork)
	install $(BUILD)/bin/farfork $(BUILD)/bin/vmclone $(INSTALLED)/bin
	install -m 644 include/farfork*.h $(INSTALLED)/include
	install -m 644 $(BUILD)/lib/libfarfork.a $(BUILD)/lib/libfarfork.so.0 $(INSTALLED)/lib
	ln -sf libfarfork.so.0 $(INSTALLED)/lib/libfarfork.so
	sed 's|-I$(CURDIR)/include|-I$(PREFIX)/include|; s|$(abspath $(BUILD))/lib|$(PREFIX)/lib|' \
	    $(BUILD)/lib/pkgconfig/farfork.pc > $(INSTALLED)/lib/pkgconfig/farfork.pc
	for s in 1 7 8; do install -D -m 644 -t $(INSTALLED)/share/man/man$$s man/*.$$s || exit; done
	install -s $(BUILD)/bin/qemu-system-x86_64 $(INSTALLED)/lib/farfork/bin
	ln -sf ../../../bin/farfork ../../../bin/vmclone $(INSTALLED)/lib/farfork/bin
	install -D -t $(INSTALLED)/lib/farfork/bench $(BENCH_PROGRAMS) $(BENCH_SCALING)
	install -D -m 644 -t $(INSTALLED)/lib/farfork/guests $(BUILD)/guests/micro.elf
	cp --parents --preserve=mode $(INSTALL_SHARE) $(INSTALLED)/share/farfork
