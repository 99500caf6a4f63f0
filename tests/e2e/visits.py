# SPDX-License-Identifier: LGPL-2.1-or-later
"""visits.py - what tests of farfork visit share: the guest at home, its visit, and the guest where it is then

At home it is a distribution's QEMU, and after each visit another one: There in `v.at_home()`.
"""
import contextlib
import glob
import os
import select
import shutil
import signal

import attaching
import report
from common import Failed, say, status, wait_for
from farfork_move import Move, There, listed, pid_there
from forked import LOAD, MIB, alive, kill, processes_of


class Parent(attaching.Parent):
    """As that of a fork."""

    def __init__(self, t, accel, memory='anon', extra=(), **more):
        super().__init__(t, accel, memory, extra, **{'load': LOAD, 'mem_mib': MIB, **more})


class Ledger:
    """What the guest printed, in its order, in whichever QEMUs it has been."""

    def __init__(self, t):
        self.path = os.path.join(t.work, 'stretches')
        self.at = {}
        open(self.path, 'wb').close()   # pylint: disable=consider-using-with

    def leaves(self, guest):
        """What came since it arrived in this QEMU, where it is no more."""
        with open(guest.console, 'rb') as f, open(self.path, 'ab') as out:
            f.seek(self.at.get(guest.console, 0))
            out.write(f.read())
            self.at[guest.console] = f.tell()

    def check(self, guest, sweeps=2):
        swept(guest, sweeps)
        self.leaves(guest)
        ok, reasons = report.verdict(report.parse(self.path))
        if not ok:
            raise Failed(f'{guest.name}: the guest found its memory wrong: {"; ".join(reasons[:5])}')


def swept(guest, sweeps):
    """Here: so often."""
    guest.wait(f'reports of {guest.name}', lambda log: report.is_ready(log.lines), 60)
    guest.wait_sweeps(sweeps, 120)


def reports(guest, lines=2):
    """It says so many lines more."""
    had = len(guest.log().lines)
    guest.wait(f'{lines} more reports', lambda log: len(log.lines) >= had + lines, 60)


class Visit(Move):
    """farfork visit, started."""
    command = 'visit'

    def __init__(self, *args, **how):
        super().__init__(*args, **how)
        self.said = ''

    def __exit__(self, *how):
        if self.proc.poll() is None:    # its command ends when it is no process any more
            self.proc.kill()
            self.proc.wait(30)
            self.proc.communicate(timeout=30)
        super().__exit__(*how)

    def hears(self, text, limit_s=60):
        """The rest of the line of stderr that has this."""
        def look():
            while text not in self.said and select.select([self.proc.stderr], [], [], 0)[0]:
                more = os.read(self.proc.stderr.fileno(), 4096).decode()
                if not more:
                    raise Failed(f'farfork visit has ended without "{text}": {self.said}')
                self.said += more
            return text in self.said
        wait_for(f'"{text}"', limit_s, look)
        self.said = self.said.partition(text)[2]

    def away(self):
        """Until the guest is there."""
        self.hears('it runs on ')
        return self

    def guest(self, t, name='there'):
        return guest_in(t, name, self.folder_there(), pid_there(self))

    def folder_there(self):
        """Beside it is that of the process here."""
        return wait_for('its folder', 10, lambda: [f for f in glob.glob(f'{self.base}/{self.name}/*') if
                                                   os.path.basename(f) != 'source'])[0]

    def sides(self):
        """The processes beside QEMUs, here and there."""
        return [pid for pid, _ in processes_of(self.base) if 'attach\0--' in attaching.cmdline(pid)]

    def folder_home(self):
        """Of the QEMU made anew here, in which it is home."""
        return sorted(glob.glob(f'{self.base}/{self.name[:16]}-home-*/localhost'), key=os.path.getmtime)[-1]

    def pid_home(self):
        name = os.path.basename(os.path.dirname(self.folder_home()))
        return next(k['pid'] for f in listed(self.base) if f['id'] == name for k in f['children'])

    def at_home(self, t, name=None):
        return guest_in(t, name or f'home-{self.name}', self.folder_home(), self.pid_home())


def guest_in(t, name, folder, pid):
    """That of the case before has no console any more."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(t.work, name + '.console'))
    return There(t, name, folder, pid)


def end_homes(base):
    """Guests that are home, with their agents."""
    for f in listed(base):
        if '-home-' in f['id']:
            kill(base, f['id'])


def until(t, name, code=0):
    """(--until, its command; the file by which it ends)"""
    path = os.path.join(t.work, name)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return ('--until', f'until test -e {path} || ! kill -0 $PPID; do sleep 0.05; done; exit {code}'), path


def say_visit(v):
    r = v.result
    say('      ' + ', '.join(f'{k} {x:.1f}' for k, x in r['phases_ms'].items() if x is not None) +
        f' ms; {r["bytes"]["present"] >> 10} KiB there, {r["bytes"]["back"] >> 10} KiB back')


def nothing_there(v):
    """No process and no folder of its visit; what is home is another run's."""
    def left():
        return glob.glob(f'{v.base}/{v.name}') + [p for p in processes_of(f'{v.base}/{v.name}/')]
    wait_for('the end of all that was there', 15, lambda: not left())


def left_there(v):
    """The guest goes with its QEMU, and that which it went from with who holds it."""
    kill(v.base, v.name)
    for side in v.sides():
        with contextlib.suppress(ProcessLookupError):
            os.kill(side, signal.SIGKILL)
    wait_for('the end of those', 10, lambda: not v.sides())
    shutil.rmtree(os.path.join(v.base, v.name), ignore_errors=True)


def is_home(v, t, log, b=None):
    """It ended well: the guest is here, in a QEMU made anew, and nothing is left there. That guest, to be entered."""
    v.end(0, 'home')
    say_visit(v)
    nothing_there(v)
    if not v.result['parent_ended'] or alive(v.result['pid']):
        raise Failed(f'{v.result}')
    if b:
        log.leaves(b)
        if not v.result['bytes']['present'] or not v.result['bytes']['back']:
            raise Failed(f'{v.result}')
    return v.at_home(t)


def goes_on(guest, log=None):
    """It is home, and runs."""
    wait_for('it runs', 10, lambda: status(guest) == 'running')
    if log:
        log.check(guest, sweeps=1)
    else:
        reports(guest)
