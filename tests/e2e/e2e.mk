# SPDX-License-Identifier: LGPL-2.1-or-later
#
# e2e.mk - the end-to-end tests, each with its limit in seconds
#
# A little more than the limit that a test has of its own, so that it can still say why. They
# need QEMU and the test guests (`make`), and take FARFORK_BUILD for the build folder.

E2E_TESTS := \
    tests/e2e/doctor.py:110 \
    tests/e2e/doctor_peer.py:100 \
    tests/e2e/hosts.py:120 \
    tests/e2e/evacuate.py:170 \
    tests/e2e/slurm.py:260 \
    tests/e2e/devices_stay.py:200 \
    tests/e2e/host_files.py:100 \
    tests/e2e/on_systemd.py:130 \
    tests/e2e/move_micro.py:200 \
    tests/e2e/move_bytes.py:200 \
    tests/e2e/busy_devices.py:110 \
    tests/e2e/precopy.py:200 \
    tests/e2e/returns.py:320 \
    tests/e2e/move_linux.py:170 \
    tests/e2e/ping_pong.py:140 \
    tests/e2e/smp4.py:170 \
    tests/e2e/big.py:170 \
    tests/e2e/sparse.py:140 \
    tests/e2e/cancel.py:140 \
    tests/e2e/break_before_go.py:140 \
    tests/e2e/break_after_go.py:230 \
    tests/e2e/resume.py:320 \
    tests/e2e/who_runs.py:320 \
    tests/e2e/take_back.py:320 \
    tests/e2e/shut_down.py:110 \
    tests/e2e/hold.py:220 \
    tests/e2e/move_fallback.py:260 \
    tests/e2e/dump.py:140 \
    tests/e2e/meanwhile.py:140 \
    tests/e2e/quit.py:180 \
    tests/e2e/unplug.py:100 \
    tests/e2e/stopped.py:$(if $(filter 1,$(FARFORK_FULL)),1720,310) \
    tests/e2e/one_runner.py:$(if $(filter 1,$(FARFORK_FULL)),260,140) \
    tests/e2e/refuse.py:170 \
    tests/e2e/refuse_memory.py:120 \
    tests/e2e/backends.py:140 \
    tests/e2e/forked_moves.py:130 \
    tests/e2e/fork_resume.py:200 \
    tests/e2e/agent_waves.py:60 \
    tests/e2e/ssh.py:220 \
    tests/e2e/agent_safe.py:260 \
    tests/e2e/vmclone.py:920 \
    tests/e2e/vmclone_fed.py:420 \
    tests/e2e/fork_again.py:220 \
    tests/e2e/multicast.py:520 \
    tests/e2e/touched.py:300 \
    tests/e2e/pool.py:820 \
    tests/e2e/fork_fails.py:300 \
    tests/e2e/farfork_move.py:350 \
    tests/e2e/move_parents.py:220 \
    tests/e2e/farfork_visit.py:320 \
    tests/e2e/visit_fallback.py:260 \
    tests/e2e/visit_guest.py:220 \
    tests/e2e/visit_budget.py:200 \
    tests/e2e/visit_stops.py:150 \
    tests/e2e/machines.py:$(if $(filter 1,$(FARFORK_FULL)),320,170) \
    tests/e2e/move_states.py:140 \
    tests/e2e/rundir_full.py:140 \
    tests/e2e/owner.py:80 \
    tests/e2e/secrets.py:140 \
    tests/e2e/keys.py:170 \
    tests/e2e/tls_creds.py:170 \
    tests/e2e/sandbox.py:180 \
    tests/e2e/outside.py:170 \
    tests/e2e/attach_stream.py:80 \
    tests/e2e/attach_blocks.py:120 \
    tests/e2e/ordinary_user.py:270 \
    tests/e2e/clone_states.py:140 \
    tests/e2e/clone_disks.py:170 \
    tests/e2e/overlays.py:340 \
    tests/e2e/unfinished.py:120 \
    tests/e2e/guest_identity.py:320 \
    tests/e2e/lines.py:$(if $(filter 1,$(FARFORK_FULL)),920,140) \
    tests/e2e/vmclone_linux.py:420 \
    tests/e2e/stock.py:140 \
    tests/e2e/attach_move.py:250 \
    tests/e2e/attach_after_go.py:210 \
    tests/e2e/attach_options.py:240 \
    tests/e2e/attach_fork.py:240 \
    tests/e2e/attach_visit.py:180 \
    tests/e2e/attach_guests.py:200 \
    tests/e2e/attach_children.py:300 \
    tests/e2e/promote.py:320 \
    tests/e2e/promote_net.py:100 \
    tests/e2e/libvirt_move.py:100 \
    tests/e2e/libvirt_attach.py:320 \
    tests/e2e/libvirt_fork.py:$(if $(filter 1,$(FARFORK_FULL)),600,220) \
    tests/e2e/metrics.py:100

# Those that `make check` runs two at a time: they wait for timers and peers, by conditions with long
# limits, and take nothing that a host has once: addresses, ports, mounts that others see; one of them
# takes huge pages.
# (stopped.py and take_back.py run some of their own cases at the same time: abreast.py.)
E2E_BESIDE := $(filter $(addprefix tests/e2e/,$(addsuffix .py:%,break_after_go resume dump quit one_runner \
    meanwhile keys cancel sandbox tls_creds break_before_go lines farfork_move move_parents farfork_visit visit_guest visit_budget visit_stops visit_fallback move_fallback hold shut_down ssh \
    who_runs forked_moves clone_states clone_disks fork_resume vmclone touched vmclone_fed fork_again multicast pool agent_safe fork_fails \
    ordinary_user overlays unfinished guest_identity hosts evacuate slurm devices_stay busy_devices attach_stream attach_blocks attach_move attach_after_go attach_options attach_fork attach_visit attach_children promote promote_net)),$(E2E_TESTS))

# Those that `make check-full` runs with QEMU's other versions as well: what stands on its own migration
# code, and on how it starts and stops a guest
E2E_OF_QEMU := $(filter $(addprefix tests/e2e/,$(addsuffix .py:%,move_micro busy_devices precopy returns move_linux cancel \
    break_before_go break_after_go resume who_runs take_back shut_down hold dump quit unplug one_runner \
    refuse refuse_memory forked_moves farfork_move tls_creds \
    stock)),$(E2E_TESTS))

# Those that `make check-full` runs with Debian's other QEMUs as well: what forks stand on
E2E_OF_FORKS := $(filter $(addprefix tests/e2e/,$(addsuffix .py:%,vmclone vmclone_fed fork_again overlays touched)),$(E2E_TESTS))

# sshd for ssh.py: this Debian's, with what it needs, downloaded and not installed
E2E_SUITE := $(shell . /etc/os-release && echo $$VERSION_CODENAME)
E2E_SSHD := $(FARFORK_CACHE)/sshd-$(E2E_SUITE)
E2E_FILES := $(addprefix $(BUILD)/tests/e2e/,sshd stock-qemu stock-qemu-trixie stock-libvirt node-exporter host-tools \
    guest-tools slurm) $(BUILD)/tests/e2e/.stock-qemu-arm $(BUILD)/guests/micro-arm64.elf

$(E2E_SSHD)/ready: | $(DEPS_ALL)
	for p in openssh-server openssh-client libwrap0; do \
	    scripts/debian-archive binary '$(E2E_SUITE)' $$p '$(E2E_SSHD)' || exit 1; done
	touch '$@'

$(BUILD)/tests/e2e/sshd: $(E2E_SSHD)/ready
	@mkdir -p $(@D)
	ln -sfn '$(E2E_SSHD)' '$@'

# node_exporter for metrics.py, and a reader of OpenMetrics in Python
E2E_NODE_EXPORTER := $(FARFORK_CACHE)/node-exporter-$(E2E_SUITE)

$(E2E_NODE_EXPORTER)/ready: | $(DEPS_ALL)
	for p in prometheus-node-exporter python3-prometheus-client; do \
	    scripts/debian-archive binary '$(E2E_SUITE)' $$p '$(E2E_NODE_EXPORTER)' || exit 1; done
	touch '$@'

$(BUILD)/tests/e2e/node-exporter: $(E2E_NODE_EXPORTER)/ready
	@mkdir -p $(@D)
	ln -sfn '$(E2E_NODE_EXPORTER)' '$@'

# systemd, udev, D-Bus, nftables, firewalld and AppArmor's parser for booted.py, 65 MB to download
E2E_HOST_TOOLS := $(FARFORK_CACHE)/host-tools-$(E2E_SUITE)

$(E2E_HOST_TOOLS)/ready: | $(DEPS_ALL)
	scripts/debian-archive tree '$(E2E_SUITE)' firewalld '$(@D)'
	for p in udev nftables apparmor dbus-user-session; do \
	    scripts/debian-archive binary '$(E2E_SUITE)' $$p '$(@D)' || exit 1; done
	touch '$@'

$(BUILD)/tests/e2e/host-tools: $(E2E_HOST_TOOLS)/ready
	@mkdir -p $(@D)
	ln -sfn '$(E2E_HOST_TOOLS)' '$@'

# What guests have: swtpm and qemu-ga, for tpm.py and guest_agent.py
E2E_GUEST_TOOLS := $(FARFORK_CACHE)/guest-tools-$(E2E_SUITE)

$(E2E_GUEST_TOOLS)/ready: | $(DEPS_ALL)
	for p in swtpm swtpm-libs 'libtpms0.*' qemu-guest-agent; do \
	    scripts/debian-archive binary '$(E2E_SUITE)' "$$p" '$(E2E_GUEST_TOOLS)' || exit 1; done
	touch '$@'

$(BUILD)/tests/e2e/guest-tools: $(E2E_GUEST_TOOLS)/ready
	@mkdir -p $(@D)
	ln -sfn '$(E2E_GUEST_TOOLS)' '$@'

# Slurm for slurm.py: controller, node daemon and commands
E2E_SLURM := $(FARFORK_CACHE)/slurm-$(E2E_SUITE)

$(E2E_SLURM)/ready: | $(DEPS_ALL)
	for p in slurmctld slurmd slurm-client slurm-wlm-basic-plugins libhwloc15; do \
	    scripts/debian-archive binary '$(E2E_SUITE)' $$p '$(E2E_SLURM)' || exit 1; done
	touch '$@'

$(BUILD)/tests/e2e/slurm: $(E2E_SLURM)/ready
	@mkdir -p $(@D)
	ln -sfn '$(E2E_SLURM)' '$@'

# Unpatched QEMUs of Debian's for attach_*.py: 7.2, 10.0 and the newest, each with all that it
# needs down to libc, 40 MB to download; run by qemu-system-x86_64 at its root's top. In the same roots, 9 MB
# more, qemu-system-aarch64
E2E_STOCK_bookworm := stock-qemu
E2E_STOCK_trixie := stock-qemu-trixie
E2E_STOCK_sid := stock-qemu-sid
E2E_FULL_FILES := $(addprefix $(BUILD)/tests/e2e/,$(E2E_STOCK_trixie) $(E2E_STOCK_sid) \
    .$(E2E_STOCK_trixie)-arm .$(E2E_STOCK_sid)-arm)

$(FARFORK_CACHE)/stock-qemu-%/qemu-system-x86_64: tests/e2e/stock-qemu | $(DEPS_ALL)
	test -e '$(@D)/complete' || scripts/debian-archive tree '$*' qemu-system-x86 '$(@D)'
	touch '$(@D)/complete'
	cp '$<' '$@'

$(FARFORK_CACHE)/stock-qemu-%/qemu-system-aarch64: tests/e2e/stock-qemu $(FARFORK_CACHE)/stock-qemu-%/qemu-system-x86_64
	test -e '$(@D)/usr/bin/qemu-system-aarch64' || scripts/debian-archive binary '$*' qemu-system-arm '$(@D)'
	cp '$<' '$@'

define E2E_STOCK_RULE
$(BUILD)/tests/e2e/$(E2E_STOCK_$1): $(FARFORK_CACHE)/stock-qemu-$1/qemu-system-x86_64
	@mkdir -p $$(@D)
	ln -sfn '$$(<D)' '$$@'

$(BUILD)/tests/e2e/.$(E2E_STOCK_$1)-arm: $(FARFORK_CACHE)/stock-qemu-$1/qemu-system-aarch64
	@mkdir -p $$(@D)
	touch '$$@'
endef
$(foreach s,bookworm trixie sid,$(eval $(call E2E_STOCK_RULE,$s)))

# Debian 12's libvirtd for libvirt_hosts.py, and what it needs of packages that this machine lacks
E2E_LIBVIRT := $(FARFORK_CACHE)/stock-libvirt-bookworm

$(E2E_LIBVIRT)/ready: | $(DEPS_ALL)
	for p in libvirt0 libvirt-daemon libvirt-daemon-driver-qemu libvirt-daemon-system \
	    libvirt-clients libyajl2 libssh-4 libpcap0.8 libparted2 dmidecode; do \
	    scripts/debian-archive binary bookworm $$p '$(E2E_LIBVIRT)' || exit 1; done
	touch '$@'

$(BUILD)/tests/e2e/stock-libvirt: $(E2E_LIBVIRT)/ready
	@mkdir -p $(@D)
	ln -sfn '$(E2E_LIBVIRT)' '$@'
