# SPDX-License-Identifier: LGPL-2.1-or-later
#
# peers.py - the ways to move that are compared, and how each begins and ends
"""
    peer = Peer('rdma-tcp,prefill=push')
    way = peer.listen(t, src, dst)      # the destination waits
    way.begin(src)                      # the clock runs from here
    ...                                 # until both QEMUs have completed; of attach: way.wait()
    way.close()
"""
import os
import subprocess
import tempfile
import time

import common
from beside import Beside
from common import Failed
from stocks import qemu_of

STOCK = {'pre-copy': 'precopy', 'multifd': 'multifd', 'post-copy': 'postcopy',
         'preempt': 'preempt', 'hybrid': 'preempt'}
ATTACH = 'attach'
RDMA = {'rdma-tcp': 'tcp', 'rdma-verbs': 'verbs'}
OURS = {ATTACH: 'tcp', **RDMA}
PEERS = [*STOCK, *OURS]
USUAL = [*(p for p in PEERS if p not in ('hybrid', 'rdma-verbs')), 'rdma-tcp,key']
POLL_S = 0.005


def has_transport(qemu):
    """It is patched: it moves by its own transport."""
    said = subprocess.run([qemu, '-machine', 'none', '-nodefaults', '-display', 'none', '-qmp', 'stdio'],
                          input='{"execute":"qmp_capabilities"}{"execute":"query-commands"}{"execute":"quit"}',
                          capture_output=True, text=True, timeout=60, check=False)
    return '"x-rdma-postcopy-' in said.stdout


def program_of(name):
    """A QEMU by its path, or one of Debian's that the tests download by its name: stock-qemu."""
    return name if os.sep in name or os.path.exists(name) else qemu_of(name)


class Peer:
    """A way to move: NAME[,qemu=PROGRAM][,key][,OPTION=VALUE...]; options are of rdma-postcopy."""

    def __init__(self, text):
        self.text = text
        self.name, *options = text.split(',')
        if self.name not in PEERS:
            raise ValueError(f'no peer {self.name!r}: there are {", ".join(PEERS)}')
        self.qemu = next((program_of(o[5:]) for o in options if o.startswith('qemu=')), None)
        rest = [o for o in options if not o.startswith('qemu=')]
        if rest and self.name in STOCK:
            raise ValueError(f'{text}: {self.name} takes no option but qemu=')
        if 'key' in rest:
            # as long as the peer is there; none but this user may read it
            self.key = tempfile.NamedTemporaryFile('w', prefix='farfork-bench-', encoding='ascii')
            self.key.write(os.urandom(32).hex())
            self.key.flush()
            rest[rest.index('key')] = f'key-file={self.key.name}'
        if not any(o.startswith('link=') for o in rest):
            rest.insert(0, f'link={OURS.get(self.name)}')
        self.options = ''.join(f',{o}' for o in ['insecure=on', *rest])

    def patched(self):
        """It needs Farfork's QEMU."""
        return self.name in RDMA

    def postcopy(self):
        return self.name not in ('pre-copy', 'multifd')

    def starts_postcopy(self):
        """Only when QEMU is told to."""
        return self.name in STOCK and self.postcopy()

    def listen(self, t, src, dst):
        """Let dst wait for src."""
        if self.name == ATTACH:
            return ByAttaching(t, dst, self.options)
        if self.name in STOCK:
            return ByQemu(common.stock_listen(src, dst, STOCK[self.name], common.place.host))
        common.place.options = self.options
        return ByQemu(common.listen(dst))


class ByQemu:
    """The two QEMUs alone."""

    def __init__(self, uri):
        self.uri = uri

    def begin(self, src):
        src.qmp('migrate', uri=self.uri)

    @staticmethod
    def pids():
        return []

    @staticmethod
    def numbers(info):
        """What Farfork counts, in what QEMU says of its migration."""
        return (info or {}).get('x-rdma-postcopy')

    @staticmethod
    def ended_s(_side):
        """None: the QEMUs' own events say when they had completed."""

    def close(self):
        pass


class ByAttaching:
    """A farfork beside each QEMU: the source's is started when the move begins."""

    def __init__(self, t, dst, options):
        self.t, self.options, self.ended = t, options, {}
        self.beside = [Beside(t, dst, 'destination', f'{common.place.host}:0{options}')]
        self.port = self.beside[0].wait('listening')['port']

    def begin(self, src):
        self.beside.append(Beside(self.t, src, 'source', f'{common.place.host}:{self.port}{self.options}'))

    def pids(self):
        """The destination's first, the source's if it has begun."""
        return [p.p.pid for p in self.beside]

    def wait(self, end_s):
        """Until both have ended. Nobody collects them before it was seen what they used."""
        while len(self.ended) < len(self.beside):
            for p in self.beside:
                if p.side in self.ended:
                    continue
                gone = os.waitid(os.P_PID, p.p.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
                if gone and not gone.si_status:
                    self.ended[p.side] = time.time()
                elif gone or time.monotonic() > end_s:
                    raise Failed(f'attach: {p.side}: {f"exit {gone.si_status}" if gone else "not complete"}: {p.told()}')
            time.sleep(POLL_S)

    def ended_s(self, side):
        return self.ended.get(('source', 'destination')[side])

    def close(self):
        """What they counted, if they have ended by themselves."""
        for p in self.beside:
            p.close()

    def numbers(self, _info):
        return (self.beside[0].find('ended') or {}).get('engine')
