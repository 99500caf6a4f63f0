#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""vmclone_linux.py - vmclone forks a Linux guest that writes and checks its disk; limit: 400 s

The guest's disk worker and memory worker go on in the parent and in every child, and each finds
what it wrote itself; farfork-guest gives each child its identity, through fw_cfg.
"""
import contextlib
import glob
import json
import os
import select
import signal
import subprocess
import time

import common
import forked
import guest_identity
import linuxreport
from common import Failed, say, wait_for
from guest_identity import ASK, COMMAND_S, FORK_S, in_background

VMCLONE = os.path.join(common.BUILD, 'bin', 'vmclone')
DISK_BYTES = 64 << 20
VMCLONE_S = 90
NEED = ('mem', 'counter', 'disk')
ANNOUNCE = 'virtio_net_announce_notify'     # QEMU asks the guest to announce itself


def options(t, fmt, fw_cfg=True):
    opts = guest_identity.options(t, fw_cfg=fw_cfg)
    at = opts.index('-append') + 1
    opts[at] = opts[at].replace('farfork.load=off', 'farfork.mem=16 farfork.disk_mib=32')
    disk, report = os.path.join(t.work, f'disk.{fmt}'), os.path.join(t.work, 'parent.report')
    with contextlib.suppress(FileNotFoundError):
        os.unlink(report)       # of the case before
    subprocess.run(['qemu-img', 'create', '-q', '-f', fmt, disk, str(DISK_BYTES)], check=True,
                   timeout=20)
    return opts + ['-chardev', f'file,id=report,path={report},append=on',
                   '-device', 'virtserialport,chardev=report,name=farfork.report',
                   '-drive', f'file={disk},format={fmt},if=none,id=d0',
                   '-device', 'virtio-blk-pci,drive=d0',
                   '-qmp', f'unix:{t.work}/parent.second,server=on,wait=off',
                   '-trace', ANNOUNCE]


class Parent(guest_identity.Linux):
    program, env = forked.QEMU, {**os.environ, **forked.ENVIRON}

    def __init__(self, work, name, opts):
        super().__init__(work, name, [*forked.OPTIONS, *opts])


def vmclone(t, *args, code=0):
    done = subprocess.run([VMCLONE, *args, '--rundir', f'{t.work}/run'], capture_output=True,
                          text=True, timeout=VMCLONE_S, check=False, env=Parent.env)
    if done.returncode != code:
        raise Failed(f'vmclone: exit code {done.returncode}, want {code}: {done.stderr} '
                     f'{done.stdout[-2000:]}')
    return done


class Child(guest_identity.Linux):
    """A child that vmclone started: its console is in the run directory."""

    def __init__(self, row):
        # pylint: disable=super-init-not-called
        folder, k = os.path.dirname(row['qmp']), row['child']
        self.name, self.pid = f'child {k}', row['pid']
        self.paths = {'console': f'{folder}/{k}.parent.console'}
        self.report, self.stderr = f'{folder}/{k}.parent.report', f'{folder}/{k}.log'
        self.qmp_sock = self.proc = self.channel = None
        self.pending, self.events = b'', []
        self.seen, self.marks = b'', 1000
        self.sock_path = row['qmp']
        self.connect('console')

    def cmdline(self):
        with open(f'/proc/{self.pid}/cmdline', encoding='utf-8') as f:
            return f.read()


def behind(overlay):
    done = subprocess.run(['qemu-img', 'info', '-U', '--output=json', overlay], timeout=20,
                          stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)['backing-filename']


def reports_on(path, limit_s=60):
    """Every worker gets on, and nothing was found wrong."""
    base = linuxreport.last(path) or {'seq': 0}
    keys = [k for w in NEED for k in linuxreport.WORKERS[w]]

    def look():
        now = linuxreport.last(path)
        return (now and now['seq'] >= base['seq'] + 8
                and all(now[k] > base.get(k, 0) for k in keys))
    wait_for(f'progress in {path}: {linuxreport.last(path)}', limit_s, look)
    problems = linuxreport.verdict(linuxreport.load(path), NEED, silent_ms=0)
    if problems:
        raise Failed(f'{path}: {"; ".join(problems[:4])}')


def announced(machine):
    with open(machine.stderr, encoding='utf-8') as f:
        return ANNOUNCE in f.read()


def check_quiet(children):
    """No child's guest announced itself: it would have been with the parent's addresses."""
    for c in children:
        if announced(c):
            raise Failed(f'{c.name}: its guest was asked to announce itself')
    # what that left behind must bear a reset of the device, as by a reboot; an announcement shows afterwards
    for c in children:
        c.sh('cd /sys/bus/virtio/drivers/virtio_net; d=$(basename $(readlink /sys/class/net/eth0/device)); '
             'echo $d > unbind; echo $d > bind')
        if forked.ask(c.sock_path, 'query-status')['status'] != 'running':
            raise Failed(f'{c.name}: it does not run any more')
    last = children[-1]
    forked.ask(last.sock_path, 'announce-self',
               {'initial': 50, 'max': 50, 'rounds': 1, 'step': 10})
    if not announced(last):
        raise Failed(f'{last.name} announces itself, and no trace says so')


def fork(t, fmt, n, *args, hosts=(), nbd=None):
    scratch = os.path.join(t.work, 'scratch')
    os.makedirs(scratch, exist_ok=True)
    with contextlib.ExitStack() as stack:
        opts = options(t, fmt)
        parent = guest_identity.boot(t, stack, 'parent', opts, Parent)
        in_background(parent, 'farfork-guest wait > /tmp/wait 2> /tmp/wait.err; '
                              'echo $? >> /tmp/wait')
        reports_on(f'{t.work}/parent.report')
        stack.callback(subprocess.run, [VMCLONE, '--kill', 'f', '--rundir', f'{t.work}/run'],
                       timeout=VMCLONE_S, stderr=subprocess.DEVNULL, check=False)
        more = ['--nbd', nbd] if nbd else []
        done = vmclone(t, '--json', '--id', 'f', '--scratch', scratch, '--ip',
                       '10.77.0.{n+10}/24', '--user-data', 'some "data"', *more, *args,
                       f'{t.work}/parent.second', str(n), *hosts)
        result = json.loads(done.stdout)
        say('      ' + ', '.join(f'{k} {v:.0f}' for k, v in result['phases_ms'].items() if v)
            + ' ms')
        if len(result['disks']) != 1 or not os.path.exists(result['disks'][0]['parent-overlay']):
            raise Failed(f'disks of the parent: {result["disks"]}')
        stack.callback(os.unlink, result['disks'][0]['parent-overlay'])     # the next case's name
        children = [stack.enter_context(contextlib.closing(Child(row)))
                    for row in result['children']]
        for k, c in enumerate(children, 1):
            wait_for(f'{c.name} is itself', FORK_S, lambda c=c: c.sh('cat /tmp/wait') == '0')
            if c.sh('farfork-guest id') != f'f {k} {n}':
                raise Failed(f'{c.name}: {c.sh("farfork-guest id")}')
            wait_for(f'link of {c.name}', COMMAND_S,
                     lambda c=c: c.sh('cat /sys/class/net/eth0/carrier || :') == '1')
            overlay = f'{scratch}/fork-f-{k}-disk0.qcow2'
            if overlay not in c.cmdline():
                raise Failed(f'{c.name}: its disk is not its own: {c.cmdline()}')
            want = f'nbd://{nbd}/disk0' if nbd else result['disks'][0]['frozen']
            if behind(overlay) != want:
                raise Failed(f'{overlay} is over {behind(overlay)}, want {want}')
        guest_identity.check_differ(
            {what: [wait_for(f'{what} in {m.name}', COMMAND_S, lambda m=m, w=what: m.sh(ASK[w]))
                    for m in [parent, *children]] for what in ASK})
        if {c.sh('hostname') for c in children} != {i['hostname'] for i in result['identities']}:
            raise Failed(f'host names are not those of {result["identities"]}')
        check_quiet(children)
        for path in [f'{t.work}/parent.report', *(c.report for c in children)]:
            reports_on(path)
        vmclone(t, '--kill', 'f')
        left = os.listdir(scratch) + glob.glob(f'{t.work}/run/*')
        if left:
            raise Failed(f'left: {left}')
        reports_on(f'{t.work}/parent.report')


def family(t, stack, fork_id):
    """The children of a fork that the guest has asked for; their shell, each."""
    listed = json.loads(vmclone(t, '--list', '--json').stdout)
    rows = sorted((k for f in listed if f['id'] == fork_id for k in f['children']),
                  key=lambda k: k['number'])
    children = [stack.enter_context(contextlib.closing(Child({**r, 'child': r['number']})))
                for r in rows]
    for k, c in enumerate(children, 1):
        wait_for(f'number in {c.name}', FORK_S, lambda c=c, k=k: c.sh('cat /tmp/n') == str(k))
        said, want = c.sh('cat /tmp/n.err; farfork-guest id'), f'{fork_id} {k} {len(rows)}'
        if said != want:
            raise Failed(f'{c.name}: {said}, want {want}')
    return children


class Server:
    """vmclone --serve, and what it reports."""

    def __init__(self, t, stack, parent, *args):
        self.events, self.heard = [], b''
        self.proc = stack.enter_context(subprocess.Popen(
            [VMCLONE, '--serve', parent.paths['channel'], '--rundir', f'{t.work}/run', '--json',
             *args, f'{t.work}/parent.second', '4'], stdout=subprocess.PIPE, env=Parent.env))
        stack.callback(self.proc.kill)
        if not self.line(20).startswith('serving'):
            raise Failed(f'vmclone --serve: exit code {self.proc.wait(10)}')

    def line(self, limit_s):
        end = time.monotonic() + limit_s
        while b'\n' not in self.heard:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.proc.stdout], [], [], left)[0]:
                raise Failed(f'vmclone --serve: nothing within {limit_s} s after {self.events}')
            data = os.read(self.proc.stdout.fileno(), 65536)
            if not data:
                return ''
            self.heard += data
        line, self.heard = self.heard.split(b'\n', 1)
        return line.decode()

    def event(self, limit_s):
        """The next one: (event, child, code); None: it has ended."""
        e = json.loads(self.line(limit_s) or 'null')
        if e:
            self.events.append((e['event'], e.get('child'), e.get('code')))
        return e and self.events[-1]


def ask_for_fork(server, parent, n, fork_id):
    # nothing may be on its way to the parent's shell meanwhile: a child would have half of it
    parent.sh('rm -f /tmp/n')
    in_background(parent, f'farfork-guest fork {n} some \'"data"\' > /tmp/n 2> /tmp/n.err')
    while server.event(VMCLONE_S)[0] != 'forked':
        pass
    said = wait_for('answer in the parent', COMMAND_S, lambda: parent.sh('cat /tmp/n /tmp/n.err'))
    if said != '0':
        raise Failed(f'fork {fork_id}: {said}')
    if parent.sh('farfork-guest id') != f'{fork_id} 0 {n}':
        raise Failed(f'the parent: {parent.sh("farfork-guest id")}')


def exit_by(child, code):
    """Computed there: its number and its fork are its own."""
    child.console.sendall(f'farfork-guest exit $((10 * $(cat /tmp/n) + {code}))\n'.encode())


def joined(parent, *codes):
    """Both forks' children have ended: what join says, to the second one to ask alone."""
    want = [f'{k} {code}' for k, code in codes]
    wait_for('join', COMMAND_S, lambda: parent.sh('cat /tmp/join').split('\n')[-1:] == ['done 1'])
    got = parent.sh('cat /tmp/join').split('\n')[:-1]
    if got != want:
        raise Failed(f'join says {got}, want {want}')
    if parent.sh('farfork-guest join'):     # nobody is left
        raise Failed('children are joined twice')


def served(t):
    """The guest asks for forks itself, by its port alone, and joins their children."""
    scratch = os.path.join(t.work, 'scratch-served')
    with contextlib.ExitStack() as stack:
        parent = guest_identity.boot(t, stack, 'parent', options(t, 'qcow2', fw_cfg=False), Parent)
        parent.channel.close()
        parent.channel = None
        for i in ('s-1', 's-2', 's-3', 's-4', 'u-1'):
            stack.callback(subprocess.run, [VMCLONE, '--kill', i, '--rundir', f'{t.work}/run'],
                           timeout=VMCLONE_S, stderr=subprocess.DEVNULL, check=False)
        server = Server(t, stack, parent, '--id', 's', '--scratch', scratch, '--max-children', '2')
        parent.sh('farfork-guest fork 5 > /tmp/n 2>&1', code=1)
        if '1..4' not in parent.sh('cat /tmp/n'):
            raise Failed(f'5 children, 4 allowed: {parent.sh("cat /tmp/n")}')
        parent.sh('farfork-guest visit -t 20 big > /tmp/n 2>&1', code=1)
        if 'no farfork visit --serve' not in parent.sh('cat /tmp/n'):
            raise Failed(f'a visit: {parent.sh("cat /tmp/n")}')
        parent.sh('farfork-guest fork 2 > /tmp/n 2>&1', code=1)
        said = parent.sh('cat /tmp/n')      # the guest learns nothing of the host's folders
        if 'its log says why' not in said or '/' in said:
            raise Failed(f'there is no {scratch}: {said}')
        server.event(COMMAND_S)
        os.mkdir(scratch)
        ask_for_fork(server, parent, 2, 's-2')
        parent.sh('farfork-guest fork 1 > /tmp/n 2>&1', code=1)     # two are alive
        if 'too many children' not in parent.sh('cat /tmp/n'):
            raise Failed(f'a third child, 2 allowed: {parent.sh("cat /tmp/n")}')
        first = family(t, stack, 's-2')
        for c in first:
            wait_for(f'link of {c.name}', COMMAND_S,
                     lambda c=c: c.sh('cat /sys/class/net/eth0/carrier || :') == '1')
        first[0].sh('farfork-guest join -t 20 > /tmp/n 2>&1', code=1)
        if first[0].sh('cat /tmp/n') != 'farfork-guest: no vmclone --serve serves this machine':
            raise Failed(f'join in a child: {first[0].sh("cat /tmp/n")}')
        exit_by(first[1], 3)
        wait_for('end of a child', 30, lambda: not os.path.exists(f'/proc/{first[1].pid}'))
        in_background(parent, 'farfork-guest join > /tmp/join & echo $! > /tmp/pid')
        wait_for('what is known', COMMAND_S, lambda: parent.sh('cat /tmp/join') == '2 23')
        parent.sh('kill -9 $(cat /tmp/pid)')    # it takes nothing with it
        parent.sh('farfork-guest join -t 1 2> /tmp/join.err', code=3)
        ask_for_fork(server, parent, 1, 's-3')      # while a child of the first one runs
        second = family(t, stack, 's-3')
        # a `failed` that nobody waited for is not the answer to what is asked next
        parent.sh('n=$(grep -l org.farfork.0 /sys/class/virtio-ports/*/name); n=${n%/name}; '
                  'echo nonsense > /dev/${n##*/}')
        in_background(parent, 'farfork-guest join > /tmp/join 2>&1; echo done $? >> /tmp/join')
        wait_for('its first line', COMMAND_S, lambda: parent.sh('cat /tmp/join') == '2 23')
        exit_by(second[0], -10)
        os.kill(first[0].pid, signal.SIGKILL)
        joined(parent, (2, 23), (1, 255), (1, 0))
        wait_for('end of all', 30, lambda: not glob.glob(f'{t.work}/run/*'))
        if os.listdir(scratch):
            raise Failed(f'left: {os.listdir(scratch)}')
        want = [('forked', None, None)] * 3 + [('ended', k, v) for k, v in
                                               ((2, 23), (1, 0), (1, 255))]
        while len(server.events) < len(want) and server.event(30):
            pass
        if sorted(map(str, server.events)) != sorted(map(str, want)):
            raise Failed(f'vmclone --serve said {server.events}, want {want}')
        unserved(t, stack, parent, server, scratch)


def goes_on(t, child):
    """Nobody follows it any more: its agent is alone, and ends with it."""
    wait_for('an agent that was let go', 30, lambda: json.loads(
        vmclone(t, '--list', '--json').stdout)[0]['detached'])
    child.sh('farfork-guest id')
    exit_by(child, 0)
    wait_for('end of all', 30, lambda: not glob.glob(f'{t.work}/run/*'))


def unserved(t, stack, parent, server, scratch):
    """vmclone --serve is killed, another one ends with the parent: children go on."""
    ask_for_fork(server, parent, 2, 's-4')
    left, done = family(t, stack, 's-4')
    exit_by(done, 0)
    in_background(parent, 'farfork-guest join > /tmp/join 2>&1; echo done $? >> /tmp/join')
    wait_for('join', COMMAND_S, lambda: parent.sh('cat /tmp/join') == '2 20')
    server.proc.kill()
    goes_on(t, left)
    wait_for('end of join', COMMAND_S, lambda: 'done 1' in parent.sh('cat /tmp/join'))
    if 'no vmclone --serve is there' not in parent.sh('cat /tmp/join'):
        raise Failed(f'join: {parent.sh("cat /tmp/join")}')
    server = Server(t, stack, parent, '--id', 'u', '--scratch', scratch)
    ask_for_fork(server, parent, 1, 'u-1')
    left = family(t, stack, 'u-1')[0]
    parent.qmp('quit')
    while server.event(30):
        pass
    if server.proc.wait(30):
        raise Failed(f'vmclone --serve ended with {server.proc.returncode}')
    goes_on(t, left)


def run(t):
    common.need_files(VMCLONE, common.VMLINUX, common.INITRD)
    t.lan = guest_identity.Lan(os.path.join(t.work, 'lan'))
    t.at_end.callback(t.lan.close)
    t.lan.start()
    with t.case('qcow2, same host'):
        fork(t, 'qcow2', 2)
    with t.case('one child, which starts beside the export'):
        fork(t, 'raw', 1)
    with t.case('asked for by the guest'):
        served(t)
    with t.case('raw, two hosts by NBD'):
        fork(t, 'raw', 2, '--launcher', 'env FF_HOST={host} {cmd}',
             hosts=['h1=127.0.0.1', 'h2=127.0.0.1'], nbd=f'127.0.0.1:{common.free_port()}')


if __name__ == '__main__':
    common.main(run, 400)
