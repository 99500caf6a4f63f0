#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# micro_selftest.py - prove that the micro guest notices damage, and only damage
"""
Boots the micro guest with its RAM in a shared file, damages pages from outside while it is
stopped, and compares what it reports with what was done, to the page:

    lost    a page zeroed
    stale   an old copy of a page put back; a ledger page zeroed (the pages are "newer")
    torn    a bit flipped anywhere; half a page old; two pages exchanged

Then touch=50 mode=readonly: never-touched pages must be zero, and stay unwritten. Then, with
--migrate, a stock pre-copy and post-copy migration over TCP loopback must leave the ledger clean.

    micro_selftest.py --qemu PATH --guest micro.elf [--accel auto|kvm|tcg] [-L DIR]... [--migrate]

Exit status: 0 all as expected, 1 not, 77 cannot run here (the reason is printed).
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
import time

import report
from qemu import Guest, GuestError

PAGE = 4096
LIMIT_S = 60
# Mostly waiting between touches: a page damaged in the middle of its own touch, which could
# hide the damage, is then a matter of one in a million. The sweep takes under a second.
PACED = "rate=20000 sweep=1 report_ms=50"
DAMAGED_MIB = 16


class Failed(Exception):
    pass


class Ram:
    """The guest's RAM file, by page number. Below 3 GiB the offset is the guest address."""

    def __init__(self, guest):
        self.fd = os.open(guest.ram, os.O_RDWR)
        boot = guest.boot_event()
        self.pages = boot["pages"]
        self.ncpu = boot["ncpu"]
        self.firmware = range(boot["dirty_first"], boot["dirty_end"])
        self.ledger = int(boot["ledger"], 16)
        self.segments = [(int(a, 16), first, n) for a, first, n in boot["segments"]]

    def offset(self, page):
        for gpa, first, n in self.segments:
            if first <= page < first + n:
                return gpa + (page - first) * PAGE
        raise ValueError(page)

    def read(self, page):
        return os.pread(self.fd, PAGE, self.offset(page))

    def write(self, page, data):
        os.pwrite(self.fd, data, self.offset(page))

    def generation(self, page):
        return int.from_bytes(os.pread(self.fd, 4, self.ledger + 4 * page), "little")

    def close(self):
        os.close(self.fd)


class Bench:
    """A guest, its RAM, and how many wrong pages it should have reported so far."""

    def __init__(self, guest, rng):
        self.guest, self.rng = guest, rng
        self.ram = Ram(guest)
        self.want = {"lost": 0, "stale": 0, "torn": 0}

    def counts(self, log):
        snap = report.snapshot(log.lines)
        return {k: sum(line[k] for line in snap.values()) for k in self.want}

    def pick(self, n):
        """n pages, and at least one of every CPU when n allows."""
        pages = self.rng.sample(range(self.ram.pages // self.ram.ncpu), n)
        return [p * self.ram.ncpu + i % self.ram.ncpu for i, p in enumerate(pages)]

    def expect(self, what, **more):
        for kind, n in more.items():
            self.want[kind] += n
        try:
            self.guest.wait(what, lambda log: self.counts(log) == self.want, LIMIT_S)
            log = self.guest.wait_sweeps(1, LIMIT_S)
        except GuestError as e:
            raise Failed(f"{what}: reported {self.counts(self.guest.log())}, "
                         f"expected {self.want}: {e}")
        if self.counts(log) != self.want:
            raise Failed(f"{what}: reported {self.counts(log)}, expected {self.want}")
        print(f"  ok: {what}: {more or 'nothing reported'}", flush=True)

    def stopped(self, action):
        self.guest.qmp("stop")
        action()
        self.guest.qmp("cont")

    def old_copies(self, pages):
        """Contents that are out of date: copied now, returned when every page has moved on."""
        old = {}

        def copy():
            for p in pages:
                old[p] = (self.ram.generation(p), self.ram.read(p))
        self.stopped(copy)
        end = time.monotonic() + LIMIT_S
        while any(self.ram.generation(p) < old[p][0] + 2 for p in pages):
            if time.monotonic() > end:
                raise Failed("pages do not change")
            time.sleep(0.02)
        return {p: data for p, (gen, data) in old.items()}


def damage(bench):
    ram, rng = bench.ram, bench.rng
    bench.guest.wait_sweeps(1, LIMIT_S)
    bench.expect("left alone")

    pages = bench.pick(4)
    bench.stopped(lambda: [ram.write(p, bytes(PAGE)) for p in pages])
    bench.expect("zeroed pages", lost=4)
    bad = [line["first_bad"] for line in report.snapshot(bench.guest.log().lines).values()
           if line["first_bad"]]
    if any(b["kind"] != "lost" or b["page"] not in pages or
           int(b["gpa"], 16) != ram.offset(b["page"]) for b in bad):
        raise Failed(f"first_bad {bad} names none of {pages}")

    old = bench.old_copies(bench.pick(4))
    bench.stopped(lambda: [ram.write(p, data) for p, data in old.items()])
    bench.expect("old copies put back", stale=4)

    def flip():
        for p in bench.pick(8):
            data = bytearray(ram.read(p))
            data[rng.randrange(PAGE)] ^= 1 << rng.randrange(8)
            ram.write(p, data)
    bench.stopped(flip)
    bench.expect("one bit flipped", torn=8)

    old = bench.old_copies(bench.pick(4))
    bench.stopped(lambda: [ram.write(p, data[:PAGE // 2] + ram.read(p)[PAGE // 2:])
                           for p, data in old.items()])
    bench.expect("half a page old", torn=4)

    def exchange():
        a, b = bench.pick(2)
        data = ram.read(a)
        ram.write(a, ram.read(b))
        ram.write(b, data)
    bench.stopped(exchange)
    bench.expect("two pages exchanged", torn=2)

    entries = min(PAGE // 4, ram.pages)
    bench.stopped(lambda: os.pwrite(ram.fd, bytes(4 * entries), ram.ledger))
    bench.expect("ledger page zeroed", stale=entries)


def test_damage(boot, smp, rng):
    with boot(f"damage{smp}", smp=smp, mem_mib=DAMAGED_MIB, shared=True, options=PACED) as g:
        g.wait_ready(LIMIT_S)
        damage(Bench(g, rng))
        ok, reasons = report.verdict(g.log())
        if ok or len(reasons) > smp:
            raise Failed(f"verdict: {ok}, {reasons}")


def test_readonly(boot, rng):
    with boot("readonly", smp=2, mem_mib=2 * DAMAGED_MIB, shared=True,
              options=PACED + " touch=50 mode=readonly") as g:
        g.wait_ready(LIMIT_S)
        g.wait_sweeps(1, LIMIT_S)
        bench = Bench(g, rng)
        bench.expect("untouched pages are zero")
        pages = [p for p in range(bench.ram.pages) if p not in bench.ram.firmware]
        written = [p for p in pages if bench.ram.generation(p)]
        share = len(written) / len(pages)
        if not 0.45 < share < 0.55:
            raise Failed(f"touch=50 wrote {share:.0%} of the pages")
        fresh = next(p for p in pages if not bench.ram.generation(p))
        if bench.ram.read(fresh) != bytes(PAGE):
            raise Failed("an untouched page is not zero")

        def spoil():
            bench.ram.write(fresh, b"\1" + bytes(PAGE - 1))
            bench.ram.write(written[0], bytes(PAGE))
        bench.stopped(spoil)
        # nothing is repaired in this mode, so both are reported again and again
        g.wait("both kinds of damage", lambda log: bench.counts(log)["lost"] > 1 and
               bench.counts(log)["torn"] > 1, LIMIT_S)
        print("  ok: readonly: a lost page and a foreign word reported", flush=True)


def test_options(boot):
    with boot("options", options="fil=3") as g:
        try:
            g.wait("refusal", lambda log: False, LIMIT_S)
        except GuestError as e:
            if "unknown option" not in str(e) or "fil=3" not in str(e):
                raise Failed(f"refusal of a wrong option: {e}")
    print("  ok: a wrong option is refused", flush=True)


def migrate(src, dst, mode, limit_s):
    capabilities = [{"capability": "postcopy-ram", "state": mode == "post-copy"}]
    for g in (src, dst):
        g.qmp("migrate-set-capabilities", capabilities=capabilities)
    dst.qmp("migrate-incoming", uri="tcp:127.0.0.1:0")
    address = dst.qmp("query-migrate")["socket-address"][0]
    src.qmp("migrate", uri=f"tcp:{address['host']}:{address['port']}")
    end = time.monotonic() + limit_s
    started = mode != "post-copy"
    while True:
        status = src.qmp("query-migrate")["status"]
        if status == "active" and not started:
            src.qmp("migrate-start-postcopy")
            started = True
        if status == "completed":
            return
        if status in ("failed", "cancelled", "postcopy-paused") or time.monotonic() > end:
            raise Failed(f"{mode}: status {status} after "
                         f"{limit_s - end + time.monotonic():.1f} s: {dst.complaint()}")
        time.sleep(0.02)


def test_migration(boot, smp, mode, mem_mib, load):
    what = f"{mode}, {smp} CPUs, {mem_mib} MiB"
    name = f"{mode}{smp}"
    options = load + " report_ms=100"
    with boot(name + "-src", smp=smp, mem_mib=mem_mib, options=options) as src, \
            boot(name + "-dst", smp=smp, mem_mib=mem_mib, options=options,
                 extra=["-incoming", "defer"]) as dst:
        src.wait_ready(4 * LIMIT_S)
        src.wait_sweeps(1, LIMIT_S)
        if mode == "pre-copy":
            src.qmp("migrate-set-parameters", downtime_limit=2000, max_bandwidth=0)
        migrate(src, dst, mode, LIMIT_S)
        dst.wait("reports", lambda log: log.lines, LIMIT_S)
        dst.wait_sweeps(2, LIMIT_S)
        dst.qmp("stop")
        log = report.parse(src.console, dst.console)
        ok, reasons = report.verdict(log)
        if not ok:
            raise Failed(f"{what}: {reasons}")
        before = report.snapshot(report.parse(src.console).lines)
        t = report.total(report.diff(before, report.snapshot(log.lines)))
        print(f"  ok: {what}: clean; {t['stalls']} stalls, "
              f"{report.human_ns(t['stall_ns'])} in all, max {report.human_ns(t['max_ns'])}",
              flush=True)


def choose_accel(args, work):
    """The accelerator that boots the guest; auto: kvm if it does."""
    errors = []
    for accel in ("kvm", "tcg") if args.accel == "auto" else (args.accel,):
        if accel == "kvm" and not os.access("/dev/kvm", os.R_OK | os.W_OK):
            errors.append("kvm: no access to /dev/kvm")
            continue
        try:
            with Guest(args.qemu, args.guest, accel, work, name="probe-" + accel,
                       firmware=args.firmware, bios=args.bios) as g:
                g.wait_ready(LIMIT_S)
            return accel, errors
        except GuestError as e:
            errors.append(f"{accel}: {e}")
    return None, errors


def parse_args():
    ap = argparse.ArgumentParser(description="Prove that the micro guest notices damage.")
    ap.add_argument("--qemu", required=True, help="qemu-system-x86_64")
    ap.add_argument("--guest", required=True, help="micro.elf")
    ap.add_argument("--accel", choices=("auto", "kvm", "tcg"), default="auto")
    ap.add_argument("-L", dest="firmware", action="append", default=[], metavar="DIR",
                    help="firmware directory for QEMU; repeatable")
    ap.add_argument("--bios", metavar="FILE", help="firmware; qboot.rom boots in 10 ms where "
                    "SeaBIOS takes 3 s, as under a KVM that emulates ring 0")
    ap.add_argument("--smp", type=int, nargs="+", default=[1, 4])
    ap.add_argument("--seed", type=int, help="of the choice of damage; printed when not given")
    ap.add_argument("--migrate", action="store_true", help="migrate too, not only damage")
    ap.add_argument("--mem", type=int, default=256, help="MiB of the guests that migrate")
    ap.add_argument("--load", default="", help="options of the guests that migrate")
    ap.add_argument("--keep", action="store_true", help="keep the working directory")
    return ap.parse_args()


def run(args, work):
    accel, errors = choose_accel(args, work)
    if accel is None:
        no_kvm = args.accel == "kvm" and not os.access("/dev/kvm", os.R_OK | os.W_OK)
        print("selftest: the guest does not boot: " + "; ".join(errors))
        return 77 if no_kvm else 1
    seed = args.seed if args.seed is not None else random.randrange(1 << 32)
    rng = random.Random(seed)
    print(f"accelerator {accel}, seed {seed}" + "".join(f"\n  ({e})" for e in errors))

    def boot(name, **how):
        return Guest(args.qemu, args.guest, accel, work, name=name, firmware=args.firmware,
                     bios=args.bios, **how)

    failures = 0
    tests = [("wrong option", lambda: test_options(boot))]
    for smp in args.smp:
        tests.append((f"damage, {smp} CPUs", lambda smp=smp: test_damage(boot, smp, rng)))
    tests.append(("readonly", lambda: test_readonly(boot, rng)))
    if args.migrate:
        for smp in args.smp:
            for mode in ("pre-copy", "post-copy"):
                tests.append((f"{mode}, {smp} CPUs", lambda smp=smp, mode=mode:
                              test_migration(boot, smp, mode, args.mem, args.load)))
    for name, test in tests:
        print(name, flush=True)
        try:
            test()
        except (Failed, GuestError) as e:
            failures += 1
            print(f"  FAILED: {e}", flush=True)
    print("selftest: " + (f"{failures} of {len(tests)} failed" if failures else "ok"))
    return 1 if failures else 0


def main():
    args = parse_args()
    for path, hint in ((args.qemu, "build QEMU, or give --qemu"),
                       (args.guest, "build the guest: make micro-guest")):
        if not os.path.exists(path):
            print(f"selftest: skipped: no {path}: {hint}")
            return 77
    # RAM files want a tmpfs; unix socket paths want to be short
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    work = tempfile.mkdtemp(prefix="micro-", dir=base)
    try:
        return run(args, work)
    finally:
        if args.keep:
            print(f"kept: {work}")
        else:
            shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
