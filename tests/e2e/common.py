# SPDX-License-Identifier: LGPL-2.1-or-later
#
# common.py - what the end-to-end tests share: guests, moves, checks, and an end
"""
    import common
    from common import Failed, Micro, move

    def run(t):                                  # t: Test
        with t.case('anon, kvm'):                # one line of output; a failure ends the case only
            with Micro(t, 'a', accel='kvm') as a, Micro(t, 'b', accel='kvm', incoming=True) as b:
                a.start_load()
                common.check_move(move(a, b))
                common.check_ledger(a, b)

    common.main(run, limit_s=120)

Environment  FARFORK_BUILD (default: build), QEMU_BIN, FARFORK_FULL=1 for the longer variants.
Exit code    0 passed, 1 failed, 77 nothing of it can run here (the reason is printed).
Files        all in one folder in a tmpfs, removed at the end, also on Ctrl-C and SIGTERM.
"""
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
GUESTS = os.path.join(HERE, '..', 'guests')
sys.path[:0] = [os.path.join(GUESTS, 'micro'), os.path.join(GUESTS, 'linux')]
# pylint: disable=wrong-import-position
import linuxguest                       # noqa: E402
import linuxreport                      # noqa: E402
import report                           # noqa: E402
from counted import check_ram, check_stats      # noqa: E402
from linuxguest import Failed, Skip     # noqa: E402
from qemu import Guest, GuestError, cpu_model      # noqa: E402

BUILD = os.environ.get('FARFORK_BUILD', 'build')
QEMU = os.environ.get('QEMU_BIN', os.path.join(BUILD, 'bin', 'qemu-system-x86_64'))
FARFORK = os.path.join(BUILD, 'bin', 'farfork')
MICRO_ELF = os.path.join(BUILD, 'guests', 'micro.elf')
VMLINUX = os.path.join(BUILD, 'guests', 'vmlinux')
INITRD = os.path.join(BUILD, 'guests', 'initrd.img')
FULL = os.environ.get('FARFORK_FULL') == '1'
HUGE = '/sys/kernel/mm/hugepages/hugepages-2048kB'
PAGE = 4096
ENDED = ('completed', 'failed', 'cancelled', 'postcopy-paused')
# report_ms: a report costs tens of ms under KVM; sweep: every 4th touch, for quick full sweeps
LOAD = 'report_ms=400 sweep=4'


class Place:
    """Where QEMUs run and how they reach each other: here; tests/lab has a place of its own."""
    host = '127.0.0.1'          # of destinations
    source_host = '127.0.0.1'   # where sources are
    options = ''                # of both addresses
    load = LOAD
    accels = None               # None: find out
    patience = 1                # how many times as long as here it may take

    def argv(self, argv, _incoming):
        return argv

    def after_case(self):
        """Fails the case if something is wrong with the place."""


place = Place()


def say(text):
    print(text, flush=True)


def wait_for(what, limit_s, condition):
    limit_s *= place.patience
    end = time.monotonic() + limit_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise Failed(f'no {what} within {limit_s} s')
        time.sleep(0.02)


# --- the test program ---

class Test:
    def __init__(self, work):
        self.work = work
        self.passed, self.failed, self.skipped = [], [], []
        self.at_end = contextlib.ExitStack()
        self.why = 'nothing was run'
        self.kvm = None             # '' when it works, else the reason

    @contextlib.contextmanager
    def case(self, name):
        """One case: a failure or a skip ends it, the next one goes on."""
        start = time.monotonic()
        try:
            yield
            place.after_case()
            self.passed.append(name)
            say(f'ok    {name} ({time.monotonic() - start:.1f} s)')
        except Skip as e:
            self.skipped.append(name)
            self.why = str(e)
            say(f'SKIP: {name}: {e}')
        except (Failed, GuestError, OSError) as e:
            self.failed.append(name)
            say(f'FAIL  {name}: {e}')
        except Exception as e:
            say(f'FAIL  {name}: {e!r}, a fault of the test itself')
            raise

    def kvm_reason(self):
        """'' if the micro guest boots under KVM, else why it does not."""
        if self.kvm is None:
            self.kvm = ''
            if not os.access('/dev/kvm', os.R_OK | os.W_OK):
                self.kvm = 'no access to /dev/kvm: load kvm_intel or kvm_amd, or run as root'
            else:
                try:
                    with Micro(self, 'probe', mem_mib=32) as g:
                        g.wait_ready(60)
                except GuestError as e:
                    self.kvm = f'the micro guest does not boot under KVM: {e}'
        return self.kvm

    def need(self, accel):
        if accel == 'kvm' and self.kvm_reason():
            raise Skip(self.kvm_reason())
        return accel

    def accels(self):
        """What there is; says once what there is not."""
        if place.accels:
            return place.accels
        if self.kvm_reason():
            say(f'SKIP: everything under kvm: {self.kvm_reason()}')
            return ['tcg']
        return ['kvm', 'tcg']

    def best_accel(self):
        return self.accels()[0]

    def reserve_huge(self, mib):
        """Huge pages for so much guest memory, given back at the end of the test."""
        files = [os.path.join(HUGE, n) for n in ('nr_hugepages', 'free_hugepages')]
        want = (mib + 1) // 2
        try:
            total, free = (int(open(f, encoding='ascii').read()) for f in files)
            if free >= want:
                return
            with open(files[0], 'w', encoding='ascii') as f:
                f.write(str(total + want - free))
        except (OSError, ValueError) as e:
            raise Skip(f'no huge pages: {e}; as root: sysctl vm.nr_hugepages={want}') from None
        self.at_end.callback(write_file, files[0], str(total))
        free = int(open(files[1], encoding='ascii').read())
        if free < want:
            raise Skip(f'only {free} of {want} huge pages can be reserved: free some memory, or '
                       'reserve them at boot')


def write_file(path, text):
    with open(path, 'w', encoding='ascii') as f:
        f.write(text)


# 1 by Debian's libvirt-daemon-driver-qemu: QEMU 7.2 without CAP_SYS_PTRACE has no post-copy else
UNPRIVILEGED = '/proc/sys/vm/unprivileged_userfaultfd'


def allow_userfaultfd(t):
    """What that file says, given back at the end of the test."""
    with open(UNPRIVILEGED, encoding='ascii') as f:
        had = f.read().strip()
    if had != '1':
        t.at_end.callback(write_file, UNPRIVILEGED, had)
        write_file(UNPRIVILEGED, '1')


def need_files(*paths):
    for path in paths:
        if not os.path.exists(path):
            raise Skip(f'no {path}: run make')


def on_signal(number, _):
    sys.exit(128 + number)          # through every finally


def alarm(*_):
    raise Failed('the whole test took longer than its limit')


def need_userfaultfd():
    need_files(FARFORK)
    out = subprocess.run([FARFORK, 'doctor'], stdout=subprocess.PIPE, text=True, timeout=20,
                         check=False).stdout
    for line in out.splitlines():
        if line.startswith('NO ') and ' userfaultfd ' in line:
            raise Skip(' '.join(line[3:].split()))


def run_program(run, limit_s, needs=need_userfaultfd):
    """Run a test program in a folder of its own; its Test. All is removed at the end."""
    for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(s, on_signal)
    base = '/dev/shm' if os.access('/dev/shm', os.W_OK) else None
    work = tempfile.mkdtemp(prefix='ffe2e-', dir=base)
    t = Test(work)
    signal.signal(signal.SIGALRM, alarm)
    signal.alarm(limit_s)
    try:
        need_files(QEMU, MICRO_ELF)
        needs()
        run(t)
    except Skip as e:
        t.skipped.append('all')
        t.why = str(e)
        say(f'SKIP: {e}')
    except (Failed, GuestError) as e:
        t.failed.append('all')
        say(f'FAIL  {e}')
    finally:
        signal.alarm(0)
        t.at_end.close()
        shutil.rmtree(work, ignore_errors=True)
    return t


def main(run, limit_s, needs=need_userfaultfd):
    """Run the cases of a test program; does not return."""
    start = time.monotonic()
    t = run_program(run, limit_s, needs)
    say(f'{len(t.passed)} passed, {len(t.failed)} failed, {len(t.skipped)} skipped in '
        f'{time.monotonic() - start:.0f} s (limit {limit_s} s)')
    if t.failed or t.passed:
        sys.exit(1 if t.failed else 0)
    say(f'SKIP: {t.why}')               # tests/run shows the last line
    sys.exit(77)


# --- guests ---

def backend(memory, mem_mib):
    """(machine options, QEMU arguments) for a kind of memory."""
    kinds = {
        'anon': None,
        'memfd': 'memory-backend-memfd,share=on',
        'hugetlb': 'memory-backend-memfd,hugetlb=on,hugetlbsize=2M,share=on',
    }
    if kinds[memory] is None:
        return '', []
    return ',memory-backend=ram', ['-object', f'{kinds[memory]},id=ram,size={mem_mib}M']


class Micro(Guest):
    """A QEMU with the micro guest; incoming=True waits for `migrate-incoming`.

    at_source: on which host; None: where sources are, or destinations, by `incoming`.
    """

    def __init__(self, test, name, accel='kvm', memory='anon', mem_mib=256, smp=1, load=None,
                 incoming=False, faults=None, machine='pc', extra=(), qemu=None,
                 at_source=None, env=None):
        machine_opts, more = backend(memory, mem_mib)
        if incoming:
            more = more + ['-incoming', 'defer' if incoming is True else incoming]
        env = {**(env or {}), **({'FARFORK_FAILPOINTS': faults} if faults else {})} or None
        super().__init__(qemu or QEMU, MICRO_ELF, accel, test.work, name=name, smp=smp, mem_mib=mem_mib,
                         machine=machine + machine_opts, options=load or place.load,
                         bios='qboot.rom', extra=more + list(extra), env=env)
        at_source = not incoming if at_source is None else at_source
        self.argv = place.argv(self.argv, not at_source)
        self.mem_mib = mem_mib

    def __enter__(self):
        super().__enter__()
        watch_events(self)
        return self

    def start_load(self, sweeps=0):
        """Until every page was written, and swept so often."""
        self.wait_ready(120)
        if sweeps:
            self.wait_sweeps(sweeps, 120)

    @property
    def pid(self):
        return self.proc.pid

    @property
    def tail(self):
        return self.complaint()

    def exit_code(self, limit_s):
        """None if it is still there."""
        try:
            return self.proc.wait(limit_s * place.patience)
        except subprocess.TimeoutExpired:
            return None

    def progress(self):
        """Lines of report so far, all CPUs."""
        return len(self.log().lines)

    def wait_progress(self, lines, limit_s):
        """It reports so many lines more."""
        had = self.progress()
        self.wait(f'{lines} more reports', lambda log: len(log.lines) >= had + lines, limit_s)


class Linux(linuxguest.Qemu):
    """A QEMU with the Linux guest; faults as in Micro."""

    def start(self, incoming=False, faults=None):
        self.launch('defer' if incoming is True else incoming or None,
                    {'FARFORK_FAILPOINTS': faults} if faults else None)
        watch_events(self)
        return self

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    @property
    def pid(self):
        return self.process.pid

    @property
    def tail(self):
        return self.describe()


def linux_settings(t, name, accel='tcg', memory='anon', mem_mib=192, smp=1, append='', qemu=None,
                   machine='q35', disk_format='raw', **more):
    """What the QEMUs of one Linux guest have in common; its files in a folder of its own."""
    need_files(VMLINUX, INITRD)
    work = os.path.join(t.work, name)
    os.mkdir(work)
    disk = os.path.join(work, 'disk.' + disk_format)
    subprocess.run(['qemu-img', 'create', '-q', '-f', disk_format, disk, '64M'], check=True,
                   timeout=20)
    machine_opts, extra = backend(memory, mem_mib)
    more['disk_format'] = disk_format
    return linuxguest.Settings(qemu or QEMU, VMLINUX, INITRD, work, machine=machine + machine_opts,
                               accel=accel, cpu=cpu_model(accel), memory_mib=mem_mib, smp=smp,
                               disk=disk, append=append, extra=extra, **more)


def linux_boot(guest, limit_s=60):
    """Until its first report."""
    try:
        return wait_for('first report', limit_s, lambda: linuxreport.last(guest.s.report))
    except Failed as e:
        raise Failed(f'{e}; {guest.tail}') from None


def linux_progress(settings, need, reports=4, limit_s=60):
    """Until there are so many reports more, and each worker of need got on."""
    base = linuxreport.last(settings.report) or {'seq': 0}
    keys = [k for w in need for k in linuxreport.WORKERS[w]]

    def look():
        now = linuxreport.last(settings.report)
        return (now and now['seq'] >= base['seq'] + reports
                and all(now[k] > base.get(k, 0) for k in keys) and now)
    try:
        return wait_for(f'progress of {", ".join(need)}', limit_s, look)
    except Failed as e:
        raise Failed(f'{e}; last report: {linuxreport.last(settings.report)}') from None


def linux_check(settings, need, silent_ms=linuxreport.SILENT_MS):
    problems = linuxreport.verdict(linuxreport.load(settings.report), need, silent_ms)
    if problems:
        raise Failed(f'the guest found: {"; ".join(problems[:5])}')


def watch_events(guest):
    guest.qmp('migrate-set-capabilities', capabilities=[{'capability': 'events', 'state': True}])


def hmp(guest, command):
    return guest.qmp('human-monitor-command', **{'command-line': command})


def status(guest):
    return guest.qmp('query-status')['status']


def event_names(guest):
    """In order; a MIGRATION event as its state."""
    guest.qmp('query-name')         # collects what has come
    return [e['data']['status'] if e['event'] == 'MIGRATION' else e['event']
            for e in guest.events]


# --- moving ---

def free_port(host='127.0.0.1', family=socket.AF_INET):
    with socket.socket(family) as s:
        s.bind((host, 0))
        return s.getsockname()[1]


def listen(dst, host=None, options=''):
    """Let a destination wait for a source; returns the source's URI."""
    host = place.host if host is None else host
    dst.qmp('migrate-incoming', uri=f'rdma-postcopy:{host}:0{place.options}{options}')
    port = migration(dst)['socket-address'][0]['port']
    return f'rdma-postcopy:{host or "127.0.0.1"}:{port}{place.options}'


def migration(guest):
    return guest.qmp('query-migrate')


def wait_migration(guest, states, limit_s=60):
    """query-migrate once its status is one of states; Failed if it ends otherwise."""
    states = (states,) if isinstance(states, str) else states

    def look():
        m = migration(guest)
        now = m.get('status')
        if now in states:
            return m
        if now in ENDED:
            raise Failed(f'{guest.name}: migration {now}, want {"/".join(states)}: '
                         f'{m.get("error-desc", "no reason given")}; {guest.tail}')
        return None
    return wait_for(f'{guest.name}: migration {"/".join(states)}', limit_s, look)


def reason_of(guest):
    """What a side shows of its migration, also when it cannot be asked any more."""
    try:
        m = migration(guest)
    except (Failed, OSError) as e:
        return f'{e}; {guest.tail}'
    return f'{m.get("status")}: {m.get("error-desc", "no reason given")}'


class Moved:
    """A move that is complete on both sides: query-migrate of each, and how long it took."""

    def __init__(self, src, dst, start, limit_s=60):
        self.src, self.dst = src, dst
        try:
            self.src_info = wait_migration(src, 'completed', limit_s)
        except Failed as e:     # the other end may know better why
            raise Failed(f'{e}; {dst.name}: {reason_of(dst)}') from e
        self.dst_info = wait_migration(dst, 'completed', limit_s)
        self.took_s = time.monotonic() - start

    @property
    def stats(self):
        return self.dst_info['x-rdma-postcopy']

    def line(self):
        x, s = self.stats, self.src_info
        return (f'{s["total-time"]} ms, downtime {s["downtime"]} ms, {x["faults"]} faults '
                f'(p50 {x["fault-p50"] // 1000} p99 {x["fault-p99"] // 1000} '
                f'max {x["fault-max"] // 1000} us), MiB by prefill {x["prefill-bytes"] >> 20} '
                f'fault {x["fault-bytes"] >> 20} zero {x["zero-bytes"] >> 20}')


def move(src, dst, host=None, options=''):
    """Move the guest and wait for the end; options are the destination's."""
    uri = listen(dst, host, options)
    start = time.monotonic()
    src.qmp('migrate', uri=uri)
    return Moved(src, dst, start)


def stock_listen(src, dst, kind, host='127.0.0.1'):
    """As listen(), for a transport that QEMU always had: precopy, multifd, postcopy, preempt."""
    caps = {'postcopy-ram': kind in ('postcopy', 'preempt'),
            'postcopy-preempt': kind == 'preempt', 'multifd': kind == 'multifd'}
    for g in (src, dst):
        g.qmp('migrate-set-capabilities',
              capabilities=[{'capability': c, 'state': on} for c, on in caps.items()])
        g.qmp('migrate-set-parameters', **{'max-bandwidth': 0, 'downtime-limit': 300})
    dst.qmp('migrate-incoming', uri=f'tcp:{host}:0')
    return f'tcp:{host}:{migration(dst)["socket-address"][0]["port"]}'


def stock_move(src, dst, kind, host='127.0.0.1', limit_s=60):
    """As move(), by a transport of stock_listen()."""
    uri = stock_listen(src, dst, kind, host)
    start = time.monotonic()
    src.qmp('migrate', uri=uri)
    if kind in ('postcopy', 'preempt'):
        if wait_migration(src, ('active', 'completed'), limit_s)['status'] == 'active':
            src.qmp('migrate-start-postcopy')
    return Moved(src, dst, start, limit_s)


def break_link(guest):
    """As if the network failed, at this side."""
    guest.qmp('yank', instances=[{'type': 'migration'}])


def in_order(got, want, who):
    at = 0
    for name in got:
        if at < len(want) and name == want[at]:
            at += 1
    if at < len(want):
        raise Failed(f'{who}: events {got}: {want[at]} is missing or out of order (want {want})')


def refuses(guest, texts, command, **args):
    """The command fails, and its error has the text, or one of them; the error."""
    texts = (texts,) if isinstance(texts, str) else texts
    try:
        guest.qmp(command, **args)
    except (GuestError, Failed) as e:
        if not any(text in str(e) for text in texts):
            raise Failed(f'{guest.name}: {command} is refused with "{e}", want '
                         f'"{" or ".join(texts)}"') from None
        return str(e)
    raise Failed(f'{guest.name}: {command} is not refused')


def check_given_away(src):
    """The source of a move does not run its guest, and cannot be made to."""
    if src.qmp('query-status')['running']:
        raise Failed(f'{src.name}: the source runs')
    # the second is QEMU's own, of a guest in state finish-migrate
    refuses(src, ('runs on the destination', 'not finalized'), 'cont')
    if src.qmp('query-status')['running']:
        raise Failed(f'{src.name}: the source runs after a refused cont')


def check_move(moved, paused=False):
    """What holds after every complete move."""
    src, dst = moved.src, moved.dst
    for info, who in ((moved.src_info, src.name), (moved.dst_info, dst.name)):
        check_stats(info, who)
    # each side knows of its own CPU time and link, the destination of stages; the rest is the
    # destination's count
    own = ('source-cpu-time', 'link-detail', 'fault-stages')
    theirs, ours = ({k: v for k, v in i['x-rdma-postcopy'].items() if k not in own}
                    for i in (moved.src_info, moved.dst_info))
    if theirs != ours:
        raise Failed(f'the two sides differ: {moved.src_info}, {moved.dst_info}')
    check_ram(moved.src_info)
    if not paused and moved.src_info.get('downtime', -1) < 0:
        raise Failed(f'no downtime in {moved.src_info}')
    if 'setup-time' not in moved.src_info or moved.src_info.get('total-time', 0) <= 0:
        raise Failed(f'no times in {moved.src_info}')
    # QEMU says completed a moment before
    wait_for(f'{src.name}: status postmigrate', 20, lambda: status(src) == 'postmigrate')
    check_given_away(src)
    want = 'paused' if paused else 'running'
    if status(dst) != want:
        raise Failed(f'{dst.name}: status {status(dst)}, want {want}')
    run = [] if paused else ['RESUME']
    stop = [] if paused == 'source' else ['STOP']
    in_order(event_names(src), ['setup', 'active', *stop, 'device', 'postcopy-active',
                                'completed'], src.name)
    in_order(event_names(dst), ['setup', 'active', 'postcopy-active', *run, 'completed'],
             dst.name)


# --- the guest's own verdict ---

def ledger(*guests):
    """(ok, reasons) of the joined logs of the QEMUs that ran the micro guest, in order."""
    return report.verdict(report.parse(*[g.console for g in guests]))


def check_ledger(*guests, sweeps=2, limit_s=120):
    """The guest, now in the last of these, sweeps all of its memory and finds it right."""
    last = guests[-1]
    if sweeps:
        last.wait(f'reports of {last.name}', lambda log: report.is_ready(log.lines), limit_s)
        last.wait_sweeps(sweeps, limit_s)
    ok, reasons = ledger(*guests)
    if not ok:
        raise Failed(f'{last.name}: the guest found its memory wrong: {"; ".join(reasons[:5])}')


def check_still_running(src, sweeps=1):
    """The guest was never stopped for good: it runs at the source, its memory right."""
    # QEMU says failed or cancelled a moment before it resumes the guest
    wait_for(f'{src.name}: status running', 20, lambda: status(src) == 'running')
    check_ledger(src, sweeps=sweeps)
