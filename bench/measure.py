# SPDX-License-Identifier: LGPL-2.1-or-later
#
# measure.py - one move of the micro guest, and everything that is measured of it
"""
    peer = Peer('rdma-tcp,prefill=push')
    run = one_move(t, guest, peer, number, times)      # a run of the schema, never a Failed

Picture (host's clock)     ready   before_s    migrate      completed   after_s
                             |------------------|-----------------|-----------|
    time line (guest)        |##################|__::::::::::::::#|###########|
    stalls, CPU, memory, bytes:                 |-----------------|     (stalls: whole slots)
The move begins just after a report, so that a short one is over before the next.
"""
import os
import tempfile
import time

import common
import procstat
import report
import stats
from beside import second_monitor
from common import Failed, Micro
from peers import ATTACH
from qemu import GuestError

SLOT_MS = 100
REPORT_MS = 2000        # each costs the guest tens of ms where exits are slow
PASS_S = 60             # of one round of pre-copy, at most
POLL_S = 0.02
PAUSE_S = 330           # a side of our transport waits 300 s for another link
SETTLE_S = 120          # until a destination has made memory ready, at most
WORKLOADS = {
    'random': 'mode=random first=mix',
    'write': 'mode=random first=write',
    'read': 'mode=readonly',
    'seq': 'mode=seq first=mix',
    'chase': 'mode=chase',
    'zipf': 'mode=zipf first=mix',
    'idle': 'mode=random rate=1000 wss=1',
}
OUTSIDE = ('linux', 'redis')    # Linux guests, measured from outside: client_view.py
PAGER = {'fault-p50': 'pager_p50_us', 'fault-p90': 'pager_p90_us', 'fault-p99': 'pager_p99_us',
         'fault-p999': 'pager_p999_us', 'fault-max': 'pager_max_us'}


class Guest:
    """What is moved: workload, memory, CPUs, accelerator."""

    def __init__(self, workload, mem_mib, smp, memory, accel):
        self.workload, self.mem_mib, self.smp = workload, mem_mib, smp
        self.memory, self.accel = memory, accel

    def load(self):
        name, _, rate = self.workload.partition('@')
        work = WORKLOADS[name] + (f' rate={rate}' if rate else '')
        return (f'{work} fill=100 sweep=0 report_ms={REPORT_MS} '
                f'slot_ms={SLOT_MS}')

    def backend(self):
        return 'anon' if self.memory == 'thp' else self.memory

    def start(self, t, name, qemu, **more):
        return Micro(t, name, self.accel, self.backend(), self.mem_mib, self.smp, self.load(),
                     qemu=qemu, extra=['-name', f'{name},debug-threads=on',
                                       *second_monitor(t.work, name)], **more)


def check_workload(text):
    name, at, rate = text.partition('@')
    if text in OUTSIDE:
        return text
    if name not in WORKLOADS or (at and not rate.isdigit()):
        raise ValueError(f'no workload {text!r}: there are {", ".join(OUTSIDE)}, and '
                         f'{", ".join(WORKLOADS)}, each of these with @RATE for so many touches '
                         'a second')
    return text


class Times:
    """before_s, after_s: of the time line; limit_s: for a pre-copy that does not converge."""

    def __init__(self, before_s, after_s, limit_s):
        self.before_s, self.after_s, self.limit_s = before_s, after_s, limit_s


class Clock:
    """When the guest's clock was 0 by the host's monotonic one: from reports as they come. A report
    has the time at which its writing began; how long that takes, the one before tells."""

    def __init__(self):
        self.zero_s, self.seen = None, 0

    def observe(self, log):
        now = time.monotonic()
        for line in log.lines[self.seen:]:
            at = now - line['uptime_ms'] / 1000 - line['report_us'] / 1e6
            self.zero_s = at if self.zero_s is None else min(at, self.zero_s)
        self.seen = len(log.lines)

    def guest_ms(self, host_s):
        return (host_s - self.zero_s) * 1000


def watch_for(guest, clock, seconds):
    """Let the guest run so long, and then until every CPU reports once more."""
    end = time.monotonic() + seconds
    fresh, had = None, 0

    def done(log):
        nonlocal fresh, had
        clock.observe(log)
        if time.monotonic() < end:
            return False
        if fresh is None:
            fresh, had = set(), len(log.lines)
        fresh.update(line['cpu'] for line in log.lines[had:])
        had = len(log.lines)
        return log.lines and len(fresh) == log.lines[-1]['ncpu']
    guest.wait('a report', done, seconds + 60 * common.place.patience)


def settle(dst):
    """A destination may make memory ready while it waits: until it has."""
    page, last, since = os.sysconf('SC_PAGESIZE'), 0, time.monotonic()
    end = since + SETTLE_S
    while time.monotonic() < min(since + 0.2, end):
        with open(f'/proc/{dst.pid}/statm', encoding='ascii') as f:
            rss = int(f.read().split()[1]) * page
        if abs(rss - last) > 1 << 20:
            last, since = rss, time.monotonic()
        time.sleep(0.05)


def listen(t, src, dst, peer):
    """A destination waits for its source: how to begin."""
    way = peer.listen(t, src, dst)
    settle(dst)
    return way


def wait_end(guest, end_s):
    """query-migrate once its migration has ended, or by that time. A link of our transport that breaks ends
    nothing: another one is waited for, and how long that takes does not count."""
    last_s, looked_s = end_s + PAUSE_S * common.place.patience, time.monotonic()
    while True:
        info = common.migration(guest)
        paused = info.get('status') == 'postcopy-paused' and 'x-rdma-postcopy' in info
        if info.get('status') in common.ENDED and not paused:
            return info
        now = time.monotonic()
        end_s = min(end_s + (now - looked_s if paused else 0), last_s)
        if now > end_s:
            return info
        looked_s = now
        time.sleep(POLL_S)


class Move:
    """From `migrate` to the end on both sides; use: by side, that of a farfork beside it with its QEMU's."""

    def __init__(self, t, src, dst, peer, limit_s, way=None):
        way = way or listen(t, src, dst, peer)
        self.src, self.dst, self.peer, self.way = src, dst, peer, way
        self.outcome, self.infos = 'completed', [None, None]
        self.marks = [len(src.events), len(dst.events)]
        watching = procstat.Watch([src.pid, dst.pid, *way.pids()])
        try:
            self.start_s, self.start_wall = time.monotonic(), time.time()
            way.begin(src)
            watching.add_new(way.pids())
            if peer.name == 'hybrid':
                self.one_round()
            if peer.starts_postcopy():
                if common.wait_migration(src, ('active', 'completed'))['status'] == 'active':
                    src.qmp('migrate-start-postcopy')
            self.wait(limit_s)
            self.end_s = time.monotonic()
            uses = watching.end()
        finally:
            watching.cancel()
            way.close()
        ours = way.pids()
        self.use = {'source': procstat.together([uses[p] for p in (src.pid, *ours[1:])]),
                    'destination': procstat.together([uses[p] for p in (dst.pid, *ours[:1])])}
        self.source_rss_mib = uses[src.pid].rss_mib
        # collects what has come; the destination of a move that was cancelled ends
        for g in (src, dst) if self.outcome == 'completed' else (src,):
            if peer.name == ATTACH and g is src:
                g.collect()     # it stands still
            else:
                g.qmp('query-name')

    def one_round(self):
        """Pre-copy until all memory was sent once. QEMU counts the dirty log's first reading, at
        the beginning, and one at the end of each round."""
        end = time.monotonic() + PASS_S * common.place.patience
        while time.monotonic() < end:
            info = common.migration(self.src)
            if (info.get('ram', {}).get('dirty-sync-count', 0) >= 2
                    or info.get('status') in ('completed', *common.ENDED)):
                return
            time.sleep(0.002)
        raise Failed(f'{self.src.name}: no end of the first round of pre-copy within {PASS_S} s')

    def wait(self, limit_s):
        """Until both have completed. A pre-copy that does not end is cancelled."""
        end = self.start_s + limit_s * common.place.patience
        if self.peer.name == ATTACH:
            self.way.wait(end)
            self.infos = [{}, {}]
            return
        for i, g in enumerate((self.src, self.dst)):
            info = self.infos[i] = wait_end(g, end)
            if info.get('status') == 'completed':
                continue
            if info.get('status') in common.ENDED:
                raise Failed(f'{g.name}: migration {info["status"]}: '
                             f'{info.get("error-desc", "no reason given")}; {g.tail}')
            if self.peer.postcopy() or i:
                raise Failed(f'{g.name}: not complete within {limit_s} s: {info.get("status")}')
            self.cancel()
            return

    def cancel(self):
        self.outcome = 'did not converge'
        self.src.qmp('migrate_cancel')
        common.wait_for('end of the cancelled migration', 30,
                        lambda: common.migration(self.src).get('status')
                        in ('cancelled', 'completed', 'failed'))

    def event_s(self, side, match):
        """Host's wall clock of the events of a side that match."""
        g = (self.src, self.dst)[side]
        return [e['timestamp']['seconds'] + e['timestamp']['microseconds'] / 1e6
                for e in g.events[self.marks[side]:] if match(e)]

    def ended_wall(self, side):
        """When that side had completed, or None."""
        ends = self.event_s(side, lambda e: e['event'] == 'MIGRATION' and e['data']['status'] == 'completed')
        return self.way.ended_s(side) or (ends[-1] if ends else None)

    def total_ms(self):
        ends = [self.ended_wall(side) for side in (0, 1)]
        if not all(ends):
            return (self.end_s - self.start_s) * 1000
        return (max(ends) - self.start_wall) * 1000

    def postcopy_ms(self):
        """From the guest's first instruction at the destination to the end there."""
        resumes, end = self.event_s(1, lambda e: e['event'] == 'RESUME'), self.ended_wall(1)
        return (end - resumes[0]) * 1000 if resumes and end else None

    def event_downtime_ms(self):
        stops = self.event_s(0, lambda e: e['event'] == 'STOP')
        resumes = self.event_s(1, lambda e: e['event'] == 'RESUME')
        return (resumes[0] - stops[-1]) * 1000 if stops and resumes else None


# --- figures ---

def metrics_of_move(move):
    """From QEMU's own figures, its events, and the processes."""
    src_info, out = move.infos[0], {}
    if move.outcome == 'completed':
        out['total_ms'] = move.total_ms()
        out['total_qemu_ms'] = src_info.get('total-time')
        out['downtime_qemu_ms'] = src_info.get('downtime')
        out['downtime_events_ms'] = move.event_downtime_ms()
    ram = src_info.get('ram', {})
    x = move.way.numbers(move.infos[1])
    if x:
        out['faults'] = x['faults']
        for theirs, ours in PAGER.items():
            out[ours] = x[theirs] / 1000
        for stage in x['fault-stages']:
            for p in ('p50', 'p99'):
                out[f'stage_{stage["name"]}_{p}_us'] = stage[p] / 1000
        out['postcopy_ms'] = move.postcopy_ms()
        for name in ('prefill', 'fault', 'zero', 'duplicated'):
            out[f'{name}_bytes'] = x[f'{name}-bytes']
        out['transferred_bytes'] = x['prefill-bytes'] + x['fault-bytes'] + x['duplicated-bytes']
        if x['breaks']:
            out['breaks'], out['paused_ms'] = x['breaks'], x['paused-time'] / 1e6
        if x['pass-time']:
            out['pass_ms'] = x['pass-time'] / 1e6
            out['precopied_bytes'], out['discarded_bytes'] = (x['precopied-bytes'],
                                                              x['discarded-bytes'])
    else:
        if move.peer.postcopy():
            out['faults'] = ram.get('postcopy-requests')
        out['transferred_bytes'] = ram.get('transferred')
    if out.get('total_ms') and out.get('transferred_bytes') is not None:
        out['throughput_mib_s'] = out['transferred_bytes'] / (1 << 20) / out['total_ms'] * 1000
    for side, use in move.use.items():
        out[f'cpu_{side}_vcpu_s'] = use.vcpu_s()
        out[f'cpu_{side}_s'] = max(0, use.cpu_s - use.vcpu_s())
        # what the source had before the move is what the guest needs, on either side
        if side == 'source' or move.outcome == 'completed':
            out[f'peak_{side}_mib'] = use.peak_mib - move.source_rss_mib
    return out


def metrics_of_link(metrics, bits, floor):
    """By the link's rate, bits a second, and by its round trip in the floors of this round."""
    out = {}
    if bits and metrics.get('postcopy_ms'):
        carried = bits / 8 * metrics['postcopy_ms'] / 1000
        background = metrics['prefill_bytes'] + metrics['duplicated_bytes']
        out['prefill_by_line'] = background / carried
        out['traffic_by_line'] = (background + metrics['fault_bytes']) / carried
        if floor.get('tcp_mib_s'):
            by_stream = bits / 8 / (1 << 20) / floor['tcp_mib_s']
            out['prefill_by_stream'] = out['prefill_by_line'] * by_stream
            out['traffic_by_stream'] = out['traffic_by_line'] * by_stream
    elif bits and metrics.get('total_ms') and metrics.get('transferred_bytes') is not None:
        carried = bits / 8 * metrics['total_ms'] / 1000
        out['traffic_by_line'] = metrics['transferred_bytes'] / carried
    for name in ('stall_p99', 'pager_p99'):
        if metrics.get(f'{name}_us') and floor.get('tcp_round_trip_p50_us'):
            out[f'{name}_by_round_trip'] = metrics[f'{name}_us'] / floor['tcp_round_trip_p50_us']
    return {k: round(v, 4) for k, v in out.items()}


def slots_of(lines):
    """{cpu: its slots}, in order."""
    found = {}
    for line in lines:
        found.setdefault(line['cpu'], []).extend(line.get('slots', []))
    return found


def metrics_of_guest(move, clock, log):
    """(metrics, histogram of stalls, time line) from the guest's reports."""
    slots, out = slots_of(log.lines), {}
    start, end = clock.guest_ms(move.start_s), clock.guest_ms(move.end_s)
    hist = stats.stall_hist(slots, SLOT_MS, start, end)
    out['stalls'] = sum(hist.values())
    for name, p in (('p50', 50), ('p90', 90), ('p99', 99), ('p999', 99.9), ('max', 100)):
        ns = report.percentile(hist, p)
        out[f'stall_{name}_us'] = ns / 1000 if ns else 0
    line = stats.line_up(slots, SLOT_MS, start)
    during = [row for row in line if -SLOT_MS < row[0] < end - start]
    out['stall_total_ms'] = sum(row[3] for row in during) / 1000
    usual = [row[3] for row in line if row[0] + SLOT_MS <= 0]
    if usual:
        out['stall_usual_ms_s'] = sum(usual) / len(usual) / SLOT_MS
    if move.outcome == 'completed':
        gap = stats.longest_gap(slots, SLOT_MS, start, end)
        out['downtime_guest_ms'] = None if gap is None else gap / 1000
    out['work_lost_ms'], out['touches_per_s'] = stats.work_lost(line, SLOT_MS, end - start)
    return out, hist, line


def move_and_measure(t, guest, peer, qemu, number, times):
    name = f'{number}'
    with guest.start(t, f'{name}a', qemu) as src, \
            guest.start(t, f'{name}b', qemu, incoming=True) as dst:
        src.wait_ready(120 * common.place.patience + guest.mem_mib / 20)
        way = listen(t, src, dst, peer)
        clock, lines = Clock(), src.log().lines
        clock.seen = len(lines)         # of these it is not known when they came
        begin_ms = max(line['uptime_ms'] for line in lines)
        watch_for(src, clock, times.before_s)
        time.sleep(1.5 * SLOT_MS / 1000)    # the report is in no slot of the move
        limit_s = times.limit_s if not peer.postcopy() else 60 + guest.mem_mib / 20
        move = Move(t, src, dst, peer, limit_s, way)
        last = dst if move.outcome == 'completed' else src
        watch_for(last, Clock(), times.after_s)
        log = report.parse(src.console, *([dst.console] if last is dst else []))
        good, reasons = report.verdict(log)
    out, hist, line = metrics_of_guest(move, clock, log)
    out.update(metrics_of_move(move))
    line = [x for x in line if x[0] >= begin_ms - clock.guest_ms(move.start_s)]
    return as_run(move, out, hist, line, [] if good else reasons)


def as_run(move, metrics, hist, line, problems):
    """A run of the schema, but for its round."""
    return {
        'outcome': move.outcome, 'why': '',
        'metrics': {k: round(v, 4) if isinstance(v, float) else v for k, v in metrics.items()},
        'threads': {side: use.threads for side, use in move.use.items()},
        'hist': sorted([b, n] for b, n in hist.items()), 'timeline': line,
        'ledger': '; '.join(problems[:3]) if problems else 'ok',
        'link': (move.way.numbers(move.infos[1]) or {}).get('link-detail', ''),
    }


def one_move(t, guest, peer, qemu, number, times, measure=move_and_measure):
    """A run of the schema; what goes wrong is its outcome."""
    try:
        run = measure(t, guest, peer, qemu, number, times)
    except (Failed, GuestError, OSError) as e:
        run = {'outcome': 'failed', 'why': str(e), 'metrics': {},
               'threads': {'source': {}, 'destination': {}}, 'hist': [], 'timeline': [],
               'ledger': 'unknown', 'link': ''}
    if run['ledger'] not in ('ok', 'unknown'):
        run.update(outcome='failed', why=f'the guest found its memory wrong: {run["ledger"]}')
    for x in 'ab':
        for suffix in ('console', 'stderr', 'qmp', 'second', 'stream'):
            path = os.path.join(t.work, f'{number}{x}.{suffix}')
            if os.path.exists(path):
                os.unlink(path)
    return run
