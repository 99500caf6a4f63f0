# SPDX-License-Identifier: LGPL-2.1-or-later
#
# install.mk - make install, install-qemu, install-host, install-rdma, install-guest, guest-tarball, deb
#
# Farfork's QEMU stands beside the system's, in lib/farfork/bin, with its modules in lib/farfork/lib.
# lib/farfork has the shape of a build folder and share/farfork that of a checkout, so that bench.py
# and demo.py find what they need in either.

PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
SYSCONFDIR ?= $(if $(filter /usr /usr/local,$(PREFIX)),/etc,$(PREFIX)/etc)
# firewalld looks below /usr/lib and /etc
FIREWALLD = $(if $(filter /usr,$(PREFIX)),/usr/lib,$(SYSCONFDIR))/firewalld/services
INSTALLED = $(DESTDIR)$(PREFIX)
INSTALLED_LIB = $(DESTDIR)$(LIBDIR)
INSTALL_SHARE := $(wildcard bench/*.py) demo/demo.py $(addprefix \
    tests/e2e/,common.py counted.py stocks.py) guest/farfork-guest $(addprefix \
    tests/guests/,micro/qemu.py micro/report.py linux/linuxguest.py linux/linuxreport.py linux/netlab linux/tcpclient.py)
QEMU_MODULES = $(filter-out %-s390x-virtio-gpu-ccw.so,$(wildcard $(addprefix \
    $(QEMU_DIR)/build/,accel-*.so block-*.so hw-*.so ui-*.so)))
GUEST_FILES := guest/farfork-guest packaging/60-farfork-guest.rules \
    packaging/farfork-guest.service man/farfork-guest.8

.PHONY: install install-qemu install-host install-rdma install-guest guest-tarball deb bench-programs
bench-programs: $(BENCH_PROGRAMS) $(BENCH_SCALING)

install: install-host lib linux-guest $(BUILD)/guests/micro.elf bench-programs
	install -d $(addprefix $(INSTALLED)/,bin include lib/farfork/bin share/farfork) \
	    $(INSTALLED_LIB)/pkgconfig
	install $(BUILD)/bin/farfork $(BUILD)/bin/vmclone $(INSTALLED)/bin
	install -m 644 include/farfork*.h $(INSTALLED)/include
	install -m 644 $(BUILD)/lib/libfarfork.a $(BUILD)/lib/libfarfork.so.0 $(INSTALLED_LIB)
	ln -sf libfarfork.so.0 $(INSTALLED_LIB)/libfarfork.so
	sed 's|-I$(CURDIR)/include|-I$(PREFIX)/include|; s|$(abspath $(BUILD))/lib|$(LIBDIR)|' \
	    $(BUILD)/lib/pkgconfig/farfork.pc > $(INSTALLED_LIB)/pkgconfig/farfork.pc
	for s in 1 7 8; do install -D -m 644 -t $(INSTALLED)/share/man/man$$s man/*.$$s || exit; done
	install -D -m 644 packaging/farfork.bash $(INSTALLED)/share/bash-completion/completions/farfork
	ln -sf farfork $(INSTALLED)/share/bash-completion/completions/vmclone
	install -D -m 644 -t $(INSTALLED)/share/zsh/vendor-completions packaging/_farfork
	install -D -m 644 -t $(INSTALLED)/share/doc/libfarfork-dev/examples packaging/example.c
	ln -sf ../../../bin/farfork ../../../bin/vmclone $(INSTALLED)/lib/farfork/bin
	install -D -t $(INSTALLED)/lib/farfork/bench $(BENCH_PROGRAMS) $(BENCH_SCALING)
	install -D -m 644 -t $(INSTALLED)/lib/farfork/guests $(BUILD)/guests/micro.elf \
	    $(BUILD)/guests/vmlinux $(BUILD)/guests/initrd.img
	cp --parents --preserve=mode $(INSTALL_SHARE) $(INSTALLED)/share/farfork

install-qemu: $(BUILD)/bin/qemu-system-x86_64
	install -D -s -t $(INSTALLED)/lib/farfork/bin $(BUILD)/bin/qemu-system-x86_64
	$(if $(QEMU_MODULES),install -D -m 644 -t $(INSTALLED)/lib/farfork/lib/qemu \
	    $(QEMU_MODULES))

# what a host needs beside programs; `farfork doctor` says what of it is missing
install-host:
	install -D -m 644 -t $(INSTALLED)/lib/udev/rules.d packaging/60-farfork.rules
	install -D -m 644 -t $(INSTALLED)/lib/systemd/system packaging/farfork.slice
	install -D -m 644 -t $(INSTALLED)/lib/systemd/user packaging/farfork.slice
	install -D -m 644 -t $(DESTDIR)$(FIREWALLD) packaging/farfork.xml
	install -D -m 644 -t $(DESTDIR)$(SYSCONFDIR)/apparmor.d packaging/farfork-agent
	install -D -m 644 -t $(DESTDIR)$(SYSCONFDIR)/apparmor.d/abstractions packaging/farfork-qemu
	install -D -m 644 -t $(INSTALLED)/share/doc/farfork/examples packaging/farfork.nft \
	    packaging/60-farfork-userfaultfd.conf
	install -D -t $(INSTALLED)/share/doc/farfork/examples/slurm $(wildcard packaging/slurm/*)

# for hosts with RDMA: members of group kvm may pin all memory
install-rdma:
	install -D -m 644 -t $(DESTDIR)$(SYSCONFDIR)/security/limits.d packaging/farfork-rdma.conf

# for guests: of other systems, by guest-tarball
install-guest:
	install -D -t $(INSTALLED)/sbin guest/farfork-guest
	install -D -m 644 -t $(INSTALLED)/lib/systemd/system packaging/farfork-guest.service
	install -D -m 644 -t $(INSTALLED)/lib/udev/rules.d packaging/60-farfork-guest.rules
	install -D -m 644 -t $(INSTALLED)/share/man/man8 man/farfork-guest.8

guest-tarball: $(BUILD)/farfork-guest-$(VERSION).tar.gz
$(BUILD)/farfork-guest-$(VERSION).tar.gz: $(GUEST_FILES)
	@mkdir -p $(@D)
	rm -rf $(BUILD)/guest-tree
	$(MAKE) install-guest DESTDIR=$(abspath $(BUILD))/guest-tree PREFIX=/usr
	tar -czf $@ --owner=0 --group=0 --sort=name -C $(BUILD)/guest-tree usr

# Debian packages, in $(BUILD)/deb
DEPS_DEB := $(BUILD)/.deps-deb
deb: all qemu bench-programs | $(DEPS_DEB)
	rm -rf $(BUILD)/deb && mkdir -p $(BUILD)/deb
	BUILD=$(BUILD) debian/rules binary > $(BUILD)/deb/log 2>&1 || { tail -n 30 $(BUILD)/deb/log >&2; exit 1; }
	BUILD=$(BUILD) debian/rules clean >> $(BUILD)/deb/log 2>&1
	lintian --fail-on error $(BUILD)/deb/*.deb
	@ls -l $(BUILD)/deb/*.deb
