# SPDX-License-Identifier: LGPL-2.1-or-later
"""abreast.py - some cases of a test program at the same time, for those that mostly wait

    abreast.run(t, [('it waits', lambda t: waits(t, 'kvm')), ...])

Each case is a child process with a Test and a folder of its own, so that names of files are its own,
too; what it prints is printed in one piece when it ends. Nothing that takes what a host has once (huge
pages, fixed ports or paths), and nothing that judges how long something took.
"""
import os
import shutil
import signal
import sys
import tempfile
import traceback

import common
from common import say

AT_ONCE = 3
SKIPPED = 77
HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)


class Running:
    """A case in a child process."""

    def __init__(self, t, number, name, what):
        self.name = name
        self.test = common.Test(os.path.join(t.work, str(number)))
        self.test.kvm = t.kvm
        os.mkdir(self.test.work)
        self.out = tempfile.TemporaryFile()     # pylint: disable=consider-using-with
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._child(what)                   # does not return

    def _child(self, what):
        code = 1
        try:
            for fd in (1, 2):
                os.dup2(self.out.fileno(), fd)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)
            try:
                with self.test.case(self.name):
                    what(self.test)
            finally:
                self.test.at_end.close()
            code = 1 if self.test.failed else SKIPPED if self.test.skipped else 0
        except SystemExit:
            say(f'FAIL  {self.name}: ended from outside')
        except BaseException:                   # pylint: disable=broad-exception-caught
            traceback.print_exc()               # case() has said which one
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def ended(self, t, status):
        """What it printed, and how it ended."""
        self.out.seek(0)
        text = self.out.read().decode(errors='replace')
        self.out.close()
        shutil.rmtree(self.test.work, ignore_errors=True)
        sys.stdout.write(text)
        code = os.waitstatus_to_exitcode(status)
        if code == SKIPPED:
            t.why = text.strip().rpartition('\n')[2].removeprefix('SKIP: ')
        elif code < 0:
            say(f'FAIL  {self.name}: ended by {signal.Signals(-code).name}')
        {0: t.passed, SKIPPED: t.skipped}.get(code, t.failed).append(self.name)
        sys.stdout.flush()


def run(t, cases, at_once=AT_ONCE):
    """cases: (name, function of a Test). Those that run are ended with this, and waited for."""
    todo, running = list(enumerate(cases)), {}
    try:
        while todo or running:
            while todo and len(running) < at_once:
                number, (name, what) = todo.pop(0)
                # nobody is told to end before it is known here
                signal.pthread_sigmask(signal.SIG_BLOCK, HELD)
                try:
                    one = Running(t, number, name, what)
                    running[one.pid] = one
                finally:
                    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)
            pid, status = os.wait()
            running.pop(pid).ended(t, status)
    finally:
        for pid in running:
            os.kill(pid, signal.SIGTERM)
        for pid, one in running.items():
            one.ended(t, os.waitpid(pid, 0)[1])
