# SPDX-License-Identifier: LGPL-2.1-or-later
#
# labplace.py - the end-to-end tests' guests inside the lab: two hosts, RDMA verbs between them
"""
    import labplace

    def run(t):
        with t.case('plain'):       # RDMA resources are checked at its end
            ...

    labplace.main(run, limit_s=200)

What tests/e2e/common.py offers works as it is: sources run on hosta, destinations on hostb,
and they talk over verbs. With a kernel that has one host both are there, and what needs a
network between them is skipped as a part.
"""
import contextlib
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(TOP, 'tests', 'e2e'), os.path.join(TOP, 'lab')]
# pylint: disable=wrong-import-position
import common                               # noqa: E402
from common import Failed, Skip, wait_for   # noqa: E402
from labvm import KNOWN                     # noqa: E402

HOSTS = int(os.environ.get('LAB_HOSTS', '0'))
MIB = 32                # a guest's memory: what a lab under TCG moves in seconds
RESOURCES = ('qp', 'mr', 'cq', 'pd')


class Lab(common.Place):
    host = '10.8.0.2' if HOSTS == 2 else '10.7.0.1'
    source_host = '10.8.0.1' if HOSTS == 2 else '10.7.0.1'
    options = ',link=verbs,insecure=on'
    load = 'report_ms=400 rate=6000 sweep=1'   # a QEMU below TCG has little to give
    accels = ['tcg']
    patience = 3

    def argv(self, argv, incoming):
        on = ['ip', 'netns', 'exec', 'hostb' if incoming else 'hosta']
        return argv if HOSTS == 1 else on + argv

    def after_case(self):
        """Ended processes and ended moves hold nothing; a queue pair may take a moment to go."""
        try:
            wait_for('end of RDMA resources', 5, lambda: not resources())
        except Failed:
            left = resources()
            raise Failed(f'{len(left)} RDMA resources are left: {"; ".join(left[:6])}') from None


def need_two_hosts():
    if HOSTS != 2:
        raise Skip('kernel 7.2 has two hosts with a network between them, this one has one')


def net(*args):
    """What happens to the network: delay, loss, clear, down, up."""
    need_two_hosts()
    done = subprocess.run(['net', *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=60, check=False)
    if done.returncode:
        raise Failed(f'net {" ".join(args)}: {done.stdout.strip()}')


@contextlib.contextmanager
def bad_network(*args):
    net(*args)
    try:
        yield
    finally:
        net('clear')


@contextlib.contextmanager
def outage():
    net('down')
    try:
        yield
    finally:
        net('up')


def soft_roce_complained():
    """Its known fault (lab/labvm.py) has been seen since this lab was booted."""
    log = subprocess.run(['dmesg'], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                         errors='replace', timeout=20, check=True).stdout
    return bool(KNOWN.search(log))


# --- RDMA resources ---

def resources():
    """What user processes hold, each as the line that `rdma resource show` has for it."""
    lines = []
    for kind in RESOURCES:
        done = subprocess.run(['rdma', 'resource', 'show', kind], stdout=subprocess.PIPE,
                              stdin=subprocess.DEVNULL, text=True, timeout=20, check=True)
        lines += [f'{kind}: {x.strip()}' for x in done.stdout.splitlines()
                  if re.search(r'\bpid \d+\b', x)]
    return lines


def need_lab():
    if not HOSTS:
        raise Skip('needs a kernel with RDMA: run it by `make check-lab`')


def main(run, limit_s):
    common.place = Lab()
    common.main(run, limit_s, need_lab)
