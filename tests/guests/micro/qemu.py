# SPDX-License-Identifier: LGPL-2.1-or-later
#
# qemu.py - start a QEMU with the micro guest, and talk QMP to it
"""
    with Guest(qemu="...", elf="micro.elf", accel="kvm", work=DIR, firmware=[DIR...]) as g:
        g.wait_ready(60)
        g.qmp("stop")

Every wait has a limit; a guest that dies or complains while waited for raises GuestError.
"""

import json
import os
import socket
import subprocess
import time

import report

POLL_S = 0.02


class GuestError(Exception):
    pass


def cpu_model(accel):
    # kvm: without arch-capabilities, which nested hosts may lack
    return "max,-arch-capabilities" if accel == "kvm" else "max"


class Sweeps:
    """Whether every CPU of a guest has swept its pages so many times more.

    On a busy host a sweep takes long, and that is no fault: a CPU that touches not one page for
    limit_s is.
    """

    def __init__(self, name, log, more, limit_s):
        self.name, self.more, self.limit_s = name, more, limit_s
        self.start = report.snapshot(log.lines)
        self.last = {c: line["touches"] for c, line in self.start.items()}
        self.since = dict.fromkeys(self.last, time.monotonic())

    def done(self, log):
        now, clock = report.snapshot(log.lines), time.monotonic()
        for cpu in self.start:
            if now[cpu]["touches"] != self.last[cpu]:
                self.last[cpu], self.since[cpu] = now[cpu]["touches"], clock
            elif clock - self.since[cpu] > self.limit_s:
                raise GuestError(f"{self.name}: cpu {cpu} has touched nothing for {self.limit_s} s; "
                                 f"sweeps {now[cpu]['sweeps']}, at the start "
                                 f"{self.start[cpu]['sweeps']}")
        # one more: the sweep that was under way at the start does not count
        return self.start and all(now[c]["sweeps"] >= self.start[c]["sweeps"] + self.more + 1
                                  for c in self.start)


class Guest:
    pass_fds = ()           # descriptors that its command line names

    def __init__(self, qemu, elf, accel, work, name="guest", firmware=(), smp=1, mem_mib=64,
                 machine="pc", options="", bios=None, shared=False, extra=(), env=None):
        self.name = name
        self.env = {**os.environ, **(env or {})}
        self.console = os.path.join(work, name + ".console")
        self.stderr = os.path.join(work, name + ".stderr")
        self.ram = os.path.join(work, name + ".ram") if shared else None
        self.sock_path = os.path.join(work, name + ".qmp")
        self.qmp_sock = self.proc = None
        self.pending = b""
        self.events = []
        self._log = report.Log()
        self._log_at = 0
        self.argv = [qemu]
        for d in firmware:
            self.argv += ["-L", d]
        if bios:
            self.argv += ["-bios", bios]
        opts = ""
        if shared:
            opts = ",memory-backend=ram"
            self.argv += ["-object", f"memory-backend-file,id=ram,size={mem_mib}M,share=on,"
                          f"mem-path={self.ram}"]
        self.argv += ["-nodefaults", "-display", "none", "-no-reboot",
                      "-machine", machine + opts, "-accel", accel, "-cpu", cpu_model(accel),
                      "-smp", str(smp), "-m", f"{mem_mib}M", "-kernel", elf, "-append", options,
                      "-debugcon", "file:" + self.console,
                      "-qmp", f"unix:{self.sock_path},server=on,wait=off", *extra]

    def __enter__(self):
        with open(self.stderr, "wb") as err:
            self.proc = subprocess.Popen(self.argv, stdin=subprocess.DEVNULL, stdout=err,
                                         stderr=err, env=self.env, pass_fds=self.pass_fds)
        try:
            self._connect(60)             # in the lab, under TCG, it takes 10 s on a busy host
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc):
        self.close()

    def close(self):
        if self.qmp_sock:
            self.qmp_sock.close()
            self.qmp_sock = None
        if self.proc and self.proc.poll() is None:
            self.proc.kill()
        if self.proc:
            self.proc.wait()    # it was killed: it ends once this machine lets it

    def complaint(self):
        try:
            with open(self.stderr, errors="replace") as f:
                return f.read().strip()[-500:]
        except OSError:
            return ""

    def _end(self):
        try:
            return f"qemu exited with {self.proc.wait(5)}"
        except subprocess.TimeoutExpired:
            return "qemu is still there"

    def _connect(self, limit_s):
        end = time.monotonic() + limit_s
        while True:
            if self.proc.poll() is not None:
                raise GuestError(f"{self.name}: qemu exited with {self.proc.returncode}: "
                                 f"{self.complaint()}")
            sock = socket.socket(socket.AF_UNIX)
            try:
                sock.connect(self.sock_path)
                break
            except OSError:
                sock.close()
                if time.monotonic() > end:
                    raise GuestError(f"{self.name}: no QMP socket after {limit_s} s")
                time.sleep(POLL_S)
        sock.settimeout(30)
        self.qmp_sock = sock
        # QEMU may send an event (RESUME) ahead of the greeting: its monitor is connected and
        # not yet negotiating for a moment
        while "QMP" not in (message := self._message()):
            self.events.append(message)
        self.qmp("qmp_capabilities")

    def _message(self):
        while b"\n" not in self.pending:
            try:
                data = self.qmp_sock.recv(65536)
            except socket.timeout:
                raise GuestError(f"{self.name}: QMP silent for 30 s")
            except ConnectionError:
                data = b""
            if not data:
                raise GuestError(f"{self.name}: QMP closed: {self._end()}: {self.complaint()}")
            self.pending += data
        row, self.pending = self.pending.split(b"\n", 1)
        return json.loads(row)

    def qmp(self, command, **args):
        msg = {"execute": command}
        if args:
            msg["arguments"] = {k.replace("_", "-"): v for k, v in args.items()}
        try:
            self.qmp_sock.sendall(json.dumps(msg).encode() + b"\n")
        except ConnectionError:
            pass        # why it is gone: _message() finds out
        while True:
            reply = self._message()
            if "event" in reply:
                self.events.append(reply)
            elif "error" in reply:
                raise GuestError(f"{self.name}: {command}: {reply['error']['desc']}")
            else:
                return reply["return"]

    def collect(self):
        """Events that have come, also of a QEMU that stands still."""
        self.qmp_sock.setblocking(False)
        try:
            while True:
                self.events.append(self._message())
        except BlockingIOError:
            pass
        finally:
            self.qmp_sock.settimeout(30)

    def log(self):
        """What the console holds by now; the same object each time, only longer."""
        if os.path.exists(self.console):
            with open(self.console, "rb") as f:
                f.seek(self._log_at)
                data = f.read()
            self._log_at += len(data)
            self._log.feed(data)
        return self._log

    def boot_event(self):
        return next((e for e in self.log().events if e["event"] == "boot"), None)

    def wait(self, what, condition, limit_s):
        """Until condition(log) is true; returns the log."""
        end = time.monotonic() + limit_s
        while True:
            log = self.log()
            for event in log.events:
                if event["event"] != "boot":
                    raise GuestError(f"{self.name}: {json.dumps(event)}")
            if condition(log):
                return log
            if self.proc.poll() is not None:
                raise GuestError(f"{self.name}: qemu exited with {self.proc.returncode} while "
                                 f"waiting for {what}: {self.complaint()}")
            if time.monotonic() > end:
                last = [{k: v for k, v in x.items() if k != "hist"} for x in log.lines[-1:]]
                raise GuestError(f"{self.name}: no {what} within {limit_s} s; last: {last}")
            time.sleep(POLL_S)

    def wait_ready(self, limit_s):
        return self.wait("ready", lambda log: report.is_ready(log.lines), limit_s)

    def wait_sweeps(self, more, limit_s):
        """Until every CPU has swept all of its pages @more times from now on; see Sweeps."""
        return self.wait(f"{more} sweeps", Sweeps(self.name, self.log(), more, limit_s).done,
                         10 * limit_s)
