# SPDX-License-Identifier: LGPL-2.1-or-later
"""labvm.py - one run of the lab: start QEMU, carry the output out, end it

Picture     QEMU --pipe--> out, err: to our stdout, stderr, byte by byte as they come
                 --pipe--> ctl: lines of lab/guest; the last one has the exit code
                 --file--> kernel.log, console.log, qemu.err in a folder of this run
Ownership   The folder $BUILD/lab/run-* is ours as long as we hold the lock on its file `lock`:
            the next lab removes those of labs that were killed. QEMU dies with us (setpriv
            --pdeathsig), also when we are killed.
Invariants  1. What the guest has written is complete once the line rc is there: a write to a
               serial port returns when QEMU has passed it on, and `cat` inside has ended. So
               QEMU needs no orderly end, and the pipes are read until they are empty.
            2. Every wait has a limit: boot, command (kept by the guest, which then says what
               hung), and a last one in case that the guest says nothing any more.
"""
import base64
import contextlib
import fcntl
import os
import re
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from labkernel import locked

APPEND = ('console=ttyS0 quiet loglevel=4 panic=-1 random.trust_cpu=on mitigations=off '
          'cryptomgr.notests audit=0 apparmor=0 net.ifnames=0')
# Under TCG a second CPU doubles the CPU time of a boot (6.2 s against 3.6 s: waits for the other
# CPU in every step): lab/guest starts the others when the hosts are there.
TCG_APPEND = 'tsc=reliable no_timer_check lpj=4000000 maxcpus=1'
GRACE_S = 20            # beyond LAB_TIMEOUT, for the guest to say what hung
TROUBLE = re.compile(r'\b(BUG:|WARNING:|Oops\b|general protection fault|kernel panic|'
                     r'soft lockup|blocked for more than|KASAN|refcount_t:|INFO: rcu)', re.I)
# soft-RoCE of Linux 7.2: an ACK that a busy host repeats in the middle of a READ, on a queue pair
# with READs and WRITEs, makes the next response look broken; the queue pair ends, nothing else.
KNOWN = re.compile(r'WARNING: .*\brxe_comp\.c:\d+\b.*\brxe_completer\b')
BLOCK_LINES = 30        # of the log, shown after a line with trouble


class LabError(Exception):
    """The lab did not come up or fell over."""


class Interrupted(Exception):
    def __init__(self, number):
        super().__init__(number)
        self.signal = number


def catch_signals():
    def stop(number, _frame):
        raise Interrupted(number)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)


def comma(path):
    """As QEMU's options want it."""
    return path.replace(',', ',,')


def tail(path, lines=20):
    try:
        with open(path, errors='replace', encoding='utf-8') as f:
            return ''.join(f'  | {x.rstrip()}\n' for x in f.readlines()[-lines:])
    except OSError:
        return ''


def panic(console):
    """What a kernel that fell over said first, and where it was; or nothing."""
    lines = console.splitlines()
    first = next((i for i, x in enumerate(lines)
                  if TROUBLE.search(x) or 'sysrq: Trigger a crash' in x), None)
    return '' if first is None else ''.join(f'  | {x.rstrip()}\n' for x in lines[first:first + 25])


def klog_lines(text):
    """Lines of `dmesg -r` without their priority."""
    return [re.sub(r'^<\d+>', '', x) for x in text.splitlines()]


def klog_trouble(lines):
    """Each BUG, WARNING or Oops with the lines after it up to the end of its trace, but the one
    that is KNOWN."""
    found, i = [], 0
    while i < len(lines):
        if not TROUBLE.search(lines[i]) or KNOWN.search(lines[i]):
            i += 1
            continue
        end = i + 1
        while end < len(lines) and end - i < BLOCK_LINES:
            end += 1
            if 'end trace' in lines[end - 1]:
                break
        traced = 'end trace' in lines[end - 1]
        if not traced:      # no trace: the line alone, and a few of context
            end = min(i + 5, len(lines))
        found += lines[i:end]
        i = end
    return found


class Run:
    """with Run(settings, command) as run: code = run.go()"""

    def __init__(self, s, command):
        self.s = s
        self.command = command
        self.quiet = s.get('quiet', False)
        self.process = None
        self.stages = []
        self.notes = []
        self.ctl = b''
        self.end = None             # the guest's last word: ('rc', N), ('timeout',), ('fail', why)
        self.lost_reader = False
        self.start = time.monotonic()

    def __enter__(self):
        with locked(self.s['state'], 'runs'):   # or else a sweep might take a folder just made
            self.sweep()
            self.folder = tempfile.mkdtemp(prefix='run-', dir=self.s['state'])
            # pylint: disable-next=consider-using-with
            self.lock = open(os.path.join(self.folder, 'lock'), 'w', encoding='ascii')
            fcntl.flock(self.lock, fcntl.LOCK_EX)
        return self

    def __exit__(self, *_):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            with contextlib.suppress(ValueError):
                signal.signal(number, signal.SIG_IGN)       # nothing may interrupt the end
        self.kill()
        if self.s['keep']:
            os.unlink(self.path('lock'))
            print(f'lab: logs are in {self.folder}', file=sys.stderr)
        else:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.lock.close()
        if self.quiet:
            catch_signals()

    def sweep(self):
        """Remove the folders of labs that were killed; those kept on purpose have no lock file."""
        for entry in os.scandir(self.s['state']):
            if not entry.name.startswith('run-'):
                continue
            with contextlib.suppress(OSError):
                with open(os.path.join(entry.path, 'lock'), encoding='ascii') as f:
                    fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(entry.path, ignore_errors=True)

    def path(self, name):
        return os.path.join(self.folder, name)

    # --- start ---

    def write_inputs(self):
        values = dict(self.s['env'])
        lines = [f'export {k}={shlex.quote(v)}\n' for k, v in sorted(values.items())]
        for k, v in (('LAB_CWD', self.s['cwd']), ('LAB_KERNEL_DIR', self.s['kernel_dir']),
                     ('LAB_LIMIT_S', str(self.s['limit_s']))):
            lines.append(f'{k}={shlex.quote(v)}\n')
        with open(self.path('env'), 'w', encoding='utf-8', errors='surrogateescape') as f:
            f.writelines(lines)
        with open(self.path('cmd'), 'w', encoding='utf-8', errors='surrogateescape') as f:
            f.write(self.command + '\n')

    def append(self):
        run = base64.b64encode(os.fsencode(self.folder)).decode()
        words = [APPEND, f'lab.run={run}']
        if self.s['accel'] == 'tcg':
            words.append(TCG_APPEND)
            if self.s['tsc_khz']:
                words.append(f'tsc_early_khz={self.s["tsc_khz"]}')
        return ' '.join(words + [os.environ.get('LAB_APPEND', '')])

    def argv(self, fds):
        s = self.s
        if s['accel'] == 'kvm':
            accel = ['-accel', 'kvm', '-cpu', 'max,-arch-capabilities']
        else:
            accel = ['-accel', 'tcg,thread=multi', '-cpu', 'max,la57=off']
        a = ['setpriv', '--pdeathsig', 'KILL', s['qemu'], *accel,
             '-M', 'microvm,rtc=on,pic=on,pit=on,isa-serial=on,x-option-roms=off',
             '-global', 'virtio-mmio.force-legacy=false',
             '-smp', str(s['smp']), '-m', str(s['mem_mib']),
             '-bios', 'qboot.rom', '-nodefaults', '-no-user-config', '-no-reboot',
             '-display', 'none',
             '-serial', f'file:{self.path("console.log")}',
             '-kernel', s['kernel'], '-initrd', s['initrd'], '-append', self.append(),
             '-fsdev', 'local,id=root,path=/,security_model=none,readonly=on,multidevs=remap',
             '-device', 'virtio-9p-device,fsdev=root,mount_tag=labroot',
             '-fsdev',
             f'local,id=out,path={comma(s["out"])},security_model=none,multidevs=remap',
             '-device', 'virtio-9p-device,fsdev=out,mount_tag=labout',
             '-device', 'virtio-serial-device']
        for i, (name, fd) in enumerate(fds.items()):
            # a pipe (not stdio): stdio with an empty input would block the machine for ever
            a += ['-add-fd', f'fd={fd},set={i}',
                  '-chardev', f'file,id={name},path=/dev/fdset/{i},append=on',
                  '-device', f'virtserialport,chardev={name},name={name}']
        a += ['-chardev', f'file,id=log,path={comma(self.path("kernel.log"))}',
              '-device', 'virtserialport,chardev=log,name=log']
        return a

    def launch(self):
        self.write_inputs()
        readers, writers = {}, {}
        for name in ('out', 'err', 'ctl'):
            readers[name], writers[name] = os.pipe()
        try:
            with open(self.path('qemu.err'), 'wb') as err:
                # a session of its own: the terminal's Ctrl-C is for us
                self.process = subprocess.Popen(     # pylint: disable=consider-using-with
                    self.argv(writers), stdin=subprocess.DEVNULL, stdout=err, stderr=err,
                    pass_fds=list(writers.values()), start_new_session=True)
        except OSError as e:
            raise LabError(f'start QEMU: {e.strerror} (package util-linux has setpriv)') from None
        finally:
            for fd in writers.values():
                os.close(fd)
        return readers

    def cpu_s(self):
        """CPU seconds that QEMU has used: where the machine is busy, more telling than time."""
        try:
            with open(f'/proc/{self.process.pid}/stat', encoding='utf-8') as f:
                fields = f.read().rpartition(')')[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK')
        except OSError:
            return 0.0

    def kill(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
        if self.process:
            self.process.wait()

    # --- carry on ---

    def on_ctl(self, data):
        self.ctl += data
        while b'\n' in self.ctl:
            line, self.ctl = self.ctl.split(b'\n', 1)
            word, _, rest = line.decode(errors='replace').partition(' ')
            if word == 'stage':
                self.stages.append((rest, time.monotonic(), self.cpu_s()))
            elif word == 'note':
                self.notes.append(rest)
            elif word == 'rc':
                self.end = ('rc', int(rest))
            elif word in ('timeout', 'fail'):
                self.end = (word, rest)

    def pass_on(self, name, data):
        if self.quiet or self.lost_reader:
            return
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(1 if name == 'out' else 2, view):]
        except BrokenPipeError:
            self.lost_reader = True

    def carry(self, readers):
        """Until the guest has said its last word, or QEMU is gone, or the limit has passed."""
        sel = selectors.DefaultSelector()
        for name, fd in readers.items():
            sel.register(fd, selectors.EVENT_READ, name)
        running = False
        until = time.monotonic() + self.s['boot_s']
        while sel.get_map() and not self.lost_reader:
            if not running and any(x[0] == 'run' for x in self.stages):
                running = True
                until = time.monotonic() + self.s['limit_s'] + GRACE_S
            if self.end and self.process.returncode is None:
                self.kill()
            left = until - time.monotonic()
            if left <= 0 and not self.end:
                return 'hang' if running else 'boot'
            for key, _ in sel.select(left if not self.end else None):
                data = os.read(key.fd, 65536)
                if not data:
                    sel.unregister(key.fd)
                    os.close(key.fd)
                elif key.data == 'ctl':
                    self.on_ctl(data)
                else:
                    self.pass_on(key.data, data)
        return 'done'

    # --- judge ---

    def report(self):
        """Notes, timing and what the kernel complained about; true if it did."""
        for note in self.notes:
            print(f'lab: {note}', file=sys.stderr)
        if self.s['verbose']:
            parts, before, used = [], self.start, 0.0
            for name, at, cpu in self.stages:
                parts.append(f'{name} +{at - before:.2f} (cpu {cpu - used:.2f})')
                before, used = at, cpu
            print(f'lab: {self.s["release"]}, {self.s["accel"]}, '
                  f'{time.monotonic() - self.start:.2f} s: {", ".join(parts)}', file=sys.stderr)
        try:
            with open(self.path('kernel.log'), errors='replace', encoding='utf-8') as f:
                found = klog_trouble(klog_lines(f.read()))
        except OSError:
            found = []
        if found:
            print('lab: the kernel complained:', file=sys.stderr)
            print(''.join(f'  | {x}\n' for x in found), end='', file=sys.stderr)
        return bool(found)

    def why_not(self, what):
        """Why there is no last word of the guest."""
        with open(self.path('qemu.err'), errors='replace', encoding='utf-8') as f:
            qemu = f.read().strip()
        with open(self.path('console.log'), 'a+', errors='replace', encoding='utf-8') as f:
            f.seek(0)
            console = f.read()
        told = re.findall(r'^LAB-FAIL (.*)', console, re.M)
        stage = self.stages[-1][0] if self.stages else 'start of the kernel'
        if told:
            return told[-1].strip()
        if what == 'boot':
            return (f'did not come up within {self.s["boot_s"]} s ({self.s["accel"]}, last seen: '
                    f'{stage}); a busy machine needs LAB_BOOT=SECONDS; console:\n'
                    + tail(self.path('console.log')))
        if 'not a valid device model' in qemu or 'fsdev' in qemu:
            return (f'{self.s["qemu"]} lacks what the lab needs ({qemu.splitlines()[0]}): '
                    'make qemu, or set LAB_QEMU=PROGRAM with 9p (virtfs)')
        if not self.stages and qemu:
            return f'QEMU did not start: {qemu}'
        return (f'the machine went away (last seen: {stage}; QEMU: {qemu or "silent"}); console:\n'
                + (panic(console) or tail(self.path('console.log'))))

    def go(self):
        readers = self.launch()
        what = self.carry(readers)
        self.kill()
        if self.lost_reader:
            return 128 + signal.SIGPIPE
        if self.quiet and not (self.end and self.end[0] == 'rc'):
            raise LabError(f'no result within {self.s["boot_s"]} s')
        complained = False if self.quiet else self.report()
        if what == 'hang':
            print(f'lab: time-out after {self.s["limit_s"]} s (LAB_TIMEOUT), and the machine says '
                  f'nothing any more; console:\n{tail(self.path("console.log"))}', end='',
                  file=sys.stderr)
            return 124
        if not self.end:
            raise LabError(self.why_not(what))
        word, rest = self.end
        if word == 'timeout':
            print(f'lab: time-out: the command was killed after {self.s["limit_s"]} s '
                  '(LAB_TIMEOUT)', file=sys.stderr)
            return 124
        if word == 'fail':
            raise LabError(rest)
        if complained and rest == 0 and self.s['klog_fails']:
            print('lab: exit code 1 instead of 0, for what the kernel said (LAB_KLOG=fail)',
                  file=sys.stderr)
            return 1
        return rest
