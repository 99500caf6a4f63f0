# SPDX-License-Identifier: LGPL-2.1-or-later
#
# procstat.py - what a process uses: CPU time by thread, peak memory
"""
    w = Watch([pid, pid])
    ...
    w.end()              # {pid: Use}

The CPU time of a process is exact, with its threads that have ended. That of a thread is what it
had when it was last looked at, every SAMPLE_S: what short threads used after that is in
ENDED, the difference.
"""
import os
import threading
import time

SAMPLE_S = 0.05
ENDED = '(ended)'
TICKS = os.sysconf('SC_CLK_TCK')


def cpu_clock(pid):
    """Seconds of CPU time, by the process's own clock: clock_getcpuclockid(3) on Linux."""
    return time.clock_gettime((~pid << 3) | 2)


def thread_cpu(pid, tid):
    """(name, seconds) or None if it is gone."""
    try:
        with open(f'/proc/{pid}/task/{tid}/stat', encoding='utf-8', errors='replace') as f:
            text = f.read()
        name, rest = text[text.index('(') + 1:text.rindex(')')], text[text.rindex(')') + 2:].split()
        try:
            with open(f'/proc/{pid}/task/{tid}/schedstat', encoding='ascii') as f:
                return name, int(f.read().split()[0]) / 1e9
        except (OSError, ValueError, IndexError):
            return name, (int(rest[11]) + int(rest[12])) / TICKS
    except (OSError, ValueError):
        return None


def threads(pid):
    """{tid: (name, seconds)}"""
    try:
        tids = os.listdir(f'/proc/{pid}/task')
    except OSError:
        return {}
    found = {int(t): thread_cpu(pid, t) for t in tids}
    return {t: x for t, x in found.items() if x}


def status_kib(pid, key):
    with open(f'/proc/{pid}/status', encoding='ascii', errors='replace') as f:
        for line in f:
            if line.startswith(key + ':'):
                return int(line.split()[1])
    return None


class Use:
    """cpu_s in all; threads: {name: seconds}; rss_mib before; peak_mib."""

    def __init__(self, cpu_s, by_name, rss_mib, peak_mib):
        self.cpu_s, self.threads, self.rss_mib, self.peak_mib = cpu_s, by_name, rss_mib, peak_mib

    def vcpu_s(self):
        return sum(s for n, s in self.threads.items() if n.startswith('CPU '))


def together(uses):
    """Of several processes; threads of one name are one."""
    by_name = {}
    for use in uses:
        for name, seconds in use.threads.items():
            by_name[name] = round(by_name.get(name, 0) + seconds, 6)
    return Use(sum(u.cpu_s for u in uses), by_name, sum(u.rss_mib for u in uses),
               sum(u.peak_mib for u in uses))


class Watch:
    def __init__(self, pids):
        self.start, self.last, self.cpu, self.rss, self.peak = {}, {}, {}, {}, {}
        for pid in pids:
            try:
                with open(f'/proc/{pid}/clear_refs', 'w', encoding='ascii') as f:
                    f.write('5')                # the peak counts from now
            except OSError:
                pass                            # then it counts from the start of the process
            self.rss[pid] = self.peak[pid] = status_kib(pid, 'VmRSS')
            self.start[pid] = threads(pid)
            self.last[pid] = dict(self.start[pid])
            self.cpu[pid] = cpu_clock(pid)
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def add_new(self, pids):
        """Processes that were started since: all that they used counts."""
        for pid in set(pids) - set(self.cpu):
            self.rss[pid] = self.cpu[pid] = self.peak[pid] = 0
            self.start[pid] = {}
            self.last[pid] = threads(pid)

    def look(self):
        for pid, seen in list(self.last.items()):
            seen.update(threads(pid))
            # nothing of a process that has ended: the destination of what was cancelled
            self.peak[pid] = status_kib(pid, 'VmHWM') or self.peak[pid]

    def run(self):
        while not self.stop.wait(SAMPLE_S):
            self.look()

    def cancel(self):
        self.stop.set()
        self.thread.join()

    def use(self, pid):
        total = cpu_clock(pid) - self.cpu[pid]
        by_name = {}
        for tid, (name, seconds) in self.last[pid].items():
            before = self.start[pid].get(tid, (name, 0))[1]
            by_name[name] = by_name.get(name, 0) + seconds - before
        rest = total - sum(by_name.values())
        by_name = {n: round(s, 6) for n, s in by_name.items() if s > 0}
        if rest > 0:
            by_name[ENDED] = round(rest, 6)
        return Use(total, by_name, self.rss[pid] / 1024, self.peak[pid] / 1024)

    def end(self):
        self.cancel()
        self.look()
        return {pid: self.use(pid) for pid in self.last}
