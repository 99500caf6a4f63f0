#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# report.py - read what the micro guest wrote to its debug console, and judge it
"""
Reports of the ring-3 micro guest (the format: report.c).

    report.py [--json] [--from-ms A] [--to-ms B] FILE...

Several files are one stream in the order given, as after a migration: a line that began in
the source's file ends in the destination's. A torn first or last line is tolerated (the
file of a forked child begins anywhere); damage in between is not.

As a module:

    log = report.parse("src.log", "dst.log")     -> Log: .lines .events .garbage
    snap = report.snapshot(log.lines)            -> {cpu: its last line}
    win = report.diff(before, after)             -> {cpu: what happened in between}
    tot = report.total(win)                      -> one dict for all CPUs
    report.percentile(tot["hist"], 99)           -> ns
    ok, reasons = report.verdict(log)

A verdict judges what was written, and cannot know that a guest has fallen silent (exited, or
blocked on a page that never came): see that seq and sweeps go on after the event in question.

Exit status of the program: 0 clean, 1 not clean, 2 wrong use.
"""

import argparse
import json
import sys

STALL_NS = 25000
COUNTERS = ("touches", "sweeps", "lost", "stale", "torn", "stalls", "stall_ns")
BAD = ("lost", "stale", "torn")
PERCENTILES = (50, 90, 99, 99.9)


# The histogram: 8 buckets an octave; hist_bucket() in work.c is the same.

def bucket_of(ns):
    if ns < 8:
        return ns
    e = ns.bit_length() - 1
    return (e - 2) * 8 + (ns >> (e - 3) & 7)


def bucket_low(b):
    return b if b < 8 else (8 + b % 8) << (b // 8 - 1)


def bucket_high(b):
    """The largest value in bucket b."""
    return bucket_low(b + 1) - 1


def as_hist(pairs):
    return {int(b): int(n) for b, n in pairs}


def merge(hists):
    out = {}
    for h in hists:
        for b, n in h.items():
            out[b] = out.get(b, 0) + n
    return out


def percentile(hist, p, max_ns=None):
    """The upper edge of the bucket that holds the p-th percentile; never above max_ns.
    None for an empty histogram."""
    count = sum(hist.values())
    if not count:
        return None
    rank, seen = count * p / 100, 0
    for b in sorted(hist):
        seen += hist[b]
        if seen >= rank:
            break
    high = bucket_high(b)
    return high if max_ns is None else min(high, max_ns)


class Log:
    """lines: the periodic reports; events: boot, error, panic; garbage: (line number, bytes);
    torn_head, torn_tail: an incomplete first and last line, or None."""

    def __init__(self):
        self.lines, self.events, self.garbage = [], [], []
        self.torn_head = self.torn_tail = None
        self.rows = 0

    def feed(self, data):
        """More of the stream; any cut will do."""
        rows = ((self.torn_tail or b"") + data).split(b"\n")
        self.torn_tail = rows.pop() or None
        for row in rows:
            self.rows += 1
            if row.strip():
                self._row(row)
        return self

    def _row(self, row):
        try:
            obj = json.loads(row)
            if obj.get("farfork") != "micro":
                raise ValueError
            if "event" not in obj:  # two torn rows may make one that is good JSON
                obj["hist"] = as_hist(obj["hist"])
        except (ValueError, TypeError, KeyError, AttributeError):
            if self.rows == 1 and not row.startswith(b'{"farfork"'):
                self.torn_head = row
            else:
                self.garbage.append((self.rows, row))
            return
        if "event" in obj:
            self.events.append(obj)
        else:
            self.lines.append(obj)


def parse(*paths):
    log = Log()
    for path in paths:
        with open(path, "rb") as f:
            log.feed(f.read())
    return log


def snapshot(lines, until_ms=None):
    """The last line of each CPU; with until_ms the last that is not younger."""
    snap = {}
    for line in lines:
        if until_ms is None or line["uptime_ms"] <= until_ms:
            snap[line["cpu"]] = line
    return snap


def is_ready(lines, min_sweeps=0):
    snap = snapshot(lines)
    return bool(snap) and all(
        cpu in snap and snap[cpu]["ready"] and snap[cpu]["sweeps"] >= min_sweeps
        for cpu in range(next(iter(snap.values()))["ncpu"]))


def diff(before, after):
    """What each CPU did between two snapshots. max_ns is exact when the maximum rose in
    between, else the upper edge of the highest bucket."""
    out = {}
    for cpu, b in after.items():
        a = before.get(cpu)
        if a is None:
            out[cpu] = dict(b)
            continue
        d = {key: b[key] - a[key] for key in COUNTERS}
        d["hist"] = {k: n - a["hist"].get(k, 0) for k, n in b["hist"].items()
                     if n != a["hist"].get(k, 0)}
        high = bucket_high(max(d["hist"])) if d["hist"] else 0
        d["max_ns"] = b["max_ns"] if b["max_ns"] > a["max_ns"] else min(high, b["max_ns"])
        for key in ("cpu", "ncpu", "pages", "ready", "first_bad", "uptime_ms"):
            d[key] = b[key]
        d["span_ms"] = b["uptime_ms"] - a["uptime_ms"]
        out[cpu] = d
    return out


def total(snap):
    """One dict for all CPUs: sums, the merged histogram, the percentiles."""
    rows = list(snap.values())
    t = {key: sum(r[key] for r in rows) for key in COUNTERS + ("pages",)}
    t["max_ns"] = max((r["max_ns"] for r in rows), default=0)
    t["min_sweeps"] = min((r["sweeps"] for r in rows), default=0)
    t["hist"] = merge(r["hist"] for r in rows)
    t["span_ms"] = max((r.get("span_ms", r["uptime_ms"]) for r in rows), default=0)
    for p in PERCENTILES:
        t[f"p{p}_ns"] = percentile(t["hist"], p, t["max_ns"])
    return t


def continuity(lines):
    """What is wrong with the order of the lines: gaps, restarts, counters that fall."""
    reasons, last = [], {}
    for line in lines:
        cpu, prev = line["cpu"], last.get(line["cpu"])
        last[cpu] = line
        if prev is None:
            continue
        if line["seq"] <= prev["seq"]:
            reasons.append(f"cpu {cpu}: seq {line['seq']} after {prev['seq']}: the guest went "
                           "back, or rebooted")
        elif line["seq"] != prev["seq"] + 1:
            reasons.append(f"cpu {cpu}: seq {line['seq']} after {prev['seq']}: lines are missing")
        for key in COUNTERS:
            if line[key] < prev[key]:
                reasons.append(f"cpu {cpu}: {key} fell from {prev[key]} to {line[key]} "
                               f"at seq {line['seq']}")
    return reasons


def describe_bad(line):
    text = f"cpu {line['cpu']}: " + ", ".join(f"{line[k]} {k}" for k in BAD if line[k])
    b = line["first_bad"]
    if b:
        text += (f"; first: page {b['page']} at {b['gpa']}, generation {b['gen']}, {b['kind']}, "
                 f"found by {b['by']} after {b['uptime_ms']} ms, word {b['word']}, "
                 f"saw {' '.join(b['saw'])}")
    return text


def verdict(log, need_ready=True, min_sweeps=0):
    """(ok, reasons). log: a Log, or a plain list of lines."""
    if not isinstance(log, Log):
        lines, log = log, Log()
        log.lines = list(lines)
    reasons = [f"{e['event']}: {e.get('error', '')} {e.get('detail', '')}".strip()
               if e["event"] == "error" else f"panic: {json.dumps(e)}"
               for e in log.events if e["event"] != "boot"]
    if sum(e["event"] == "boot" for e in log.events) > 1:
        reasons.append("booted more than once")
    for number, row in log.garbage:
        reasons.append(f"line {number} is not a report: {row[:60]!r}")
    if not log.lines:
        return False, reasons + ["no reports: the guest did not start, or has no isa-debugcon"]
    snap = snapshot(log.lines)
    ncpu = next(iter(snap.values()))["ncpu"]
    for cpu in range(ncpu):
        if cpu not in snap:
            reasons.append(f"cpu {cpu} of {ncpu} never reported")
            continue
        line = snap[cpu]
        if any(line[key] for key in BAD):
            reasons.append(describe_bad(line))
        if need_ready and not line["ready"]:
            reasons.append(f"cpu {cpu}: not ready ({line['inited']} of {line['pages']} pages)")
        if line["sweeps"] < min_sweeps:
            reasons.append(f"cpu {cpu}: {line['sweeps']} sweeps of {min_sweeps}")
    reasons += continuity(log.lines)
    return not reasons, reasons


def human_ns(ns):
    if ns is None:
        return "-"
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns} ns"


def summary(log, window):
    out = []
    for e in log.events:
        if e["event"] == "boot":
            out.append(f"boot: {e['ncpu']} CPUs, {e['ram_kib'] // 1024} MiB, {e['pages']} pages, "
                       f"TSC {e['tsc_khz']} kHz ({e['clock']}), \"{e['cmdline']}\"")
    for cpu in sorted(window):
        r = window[cpu]
        out.append(f"cpu {cpu}: {r['touches']} touches, {r['sweeps']} sweeps, "
                   f"{r['lost']} lost, {r['stale']} stale, {r['torn']} torn, "
                   f"{r['stalls']} stalls, {human_ns(r['stall_ns'])} stalled")
    if window:
        t = total(window)
        out.append(f"all: {t['span_ms']} ms, {t['touches']} touches, "
                   f"{t['stalls']} of over {STALL_NS // 1000} us, "
                   f"{human_ns(t['stall_ns'])} in all")
        out.append("latency: " + ", ".join(f"p{p} {human_ns(t[f'p{p}_ns'])}" for p in PERCENTILES)
                   + f", max {human_ns(t['max_ns'])}")
    if log.torn_head is not None or log.torn_tail is not None:
        out.append("(an incomplete line at the beginning or end was ignored)")
    return out


def main():
    ap = argparse.ArgumentParser(description="Judge the reports of the micro guest.")
    ap.add_argument("file", nargs="+", help="debugcon output; several: one stream, in order")
    ap.add_argument("--json", action="store_true", help="print one JSON object")
    ap.add_argument("--from-ms", type=int, help="figures from this guest time on")
    ap.add_argument("--to-ms", type=int, help="figures up to this guest time")
    ap.add_argument("--min-sweeps", type=int, default=0,
                    help="not clean before every CPU has swept so often")
    args = ap.parse_args()
    try:
        log = parse(*args.file)
    except OSError as e:
        print(f"report: {e}", file=sys.stderr)
        return 2
    window = snapshot(log.lines, args.to_ms)
    if args.from_ms is not None:
        window = diff(snapshot(log.lines, args.from_ms), window)
    ok, reasons = verdict(log, min_sweeps=args.min_sweeps)
    if args.json:
        print(json.dumps({"ok": ok, "reasons": reasons, "boot": log.events[:1],
                          "total": total(window) if window else None,
                          "cpus": [window[c] for c in sorted(window)]}))
    else:
        for text in summary(log, window):
            print(text)
        for reason in reasons:
            print(f"BAD: {reason}")
        print("verdict: " + ("ok" if ok else "NOT CLEAN"))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
