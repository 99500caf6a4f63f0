#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""refuse.py - what cannot work is refused by name, and the guest never stops

Both sides say why; the source's guest runs on throughout (no STOP event) with a clean
ledger, and can still be moved at the end. Limit: 150 s.
"""
import contextlib
import os
import shutil
import socket
import subprocess

import common
import fakepeer
from common import Failed, GuestError, Micro, Skip, check_ledger, check_move, refuses, say

MIB = 64
CAPABILITIES = ('xbzrle', 'multifd', 'postcopy-ram', 'postcopy-preempt', 'release-ram',
                'dirty-bitmaps', 'background-snapshot', 'mapped-ram', 'zero-copy-send',
                'rdma-pin-all', 'x-ignore-shared', 'x-colo', 'validate-uuid')
NEEDS = {'postcopy-preempt': ['postcopy-ram'], 'release-ram': ['postcopy-ram'],
         'zero-copy-send': ['multifd']}


def never_stopped(src):
    if common.status(src) != 'running' or 'STOP' in common.event_names(src):
        raise Failed(f'{src.name}: status {common.status(src)}, events {common.event_names(src)}')


def fails(src, uri, texts, stopped=False):
    """The migration ends as failed, and its reason has all the texts."""
    src.qmp('migrate', uri=uri)
    reason = common.wait_migration(src, 'failed', 40).get('error-desc', '')
    for text in texts:
        if text not in reason:
            raise Failed(f'{src.name}: reason "{reason}", want "{text}" in it')
    say(f'      source: {reason}')
    if not stopped:
        never_stopped(src)


def dies(dst, texts):
    """The destination ends by itself and says all the texts."""
    code = dst.exit_code(20)
    missing = [t for t in texts if t not in dst.tail]
    if code is None or code <= 0 or missing:
        raise Failed(f'{dst.name}: exit code {code}, message "{dst.tail}", want "{missing}"')
    say(f'      destination: {dst.tail}')


def waits(dst, texts):
    """The destination says all the texts, and waits for another source."""
    common.wait_for(f'{dst.name}: says why', 20, lambda: all(t in dst.tail for t in texts))
    if dst.exit_code(0.2) is not None or common.migration(dst)['status'] != 'setup':
        raise Failed(f'{dst.name}: does not wait: {common.migration(dst)}, {dst.tail}')
    say(f'      destination: {dst.tail}')


def differs(t, src, name, texts, mem_mib=MIB, **how):
    """A destination that was started otherwise than the source."""
    with Micro(t, name, src.accel, mem_mib=mem_mib, incoming=True, **how) as dst:
        fails(src, common.listen(dst), texts)
        waits(dst, texts)


def tables(t, src):
    with t.case('RAM size differs'):
        differs(t, src, 'size', ['pc.ram', '0x4000000', '0x6000000'], mem_mib=96)
    with t.case('machine types differ'):
        differs(t, src, 'machine', ['machines differ', 'q35', 'i440fx'], machine='q35')
    with t.case('a device with memory only at the destination'):
        differs(t, src, 'vga', ['vga.vram', 'only at the destination'], extra=['-device', 'VGA'])
    with t.case('memory backend of another name'):
        differs(t, src, 'backend', ['pc.ram', 'only at the source'], memory='memfd')
    with t.case('a device without memory only at the source'):
        # found when the state is loaded: the guest has stopped by then, and goes on
        with Micro(t, 'rng-a', src.accel, mem_mib=MIB, extra=['-device', 'virtio-rng-pci']) as a, \
                Micro(t, 'rng-b', src.accel, mem_mib=MIB, incoming=True) as b:
            a.start_load()
            fails(a, common.listen(b), [], stopped=True)
            dies(b, ['rng'])
            common.check_still_running(a)
    with t.case('page size differs'):
        t.reserve_huge(MIB)
        with Micro(t, 'huge-a', src.accel, 'hugetlb', MIB) as a, \
                Micro(t, 'huge-b', src.accel, 'memfd', MIB, incoming=True) as b:
            a.start_load()
            fails(a, common.listen(b), ['page size differs', '2097152', '4096'])
            waits(b, ['page size differs'])


def set_capability(guest, name, on):
    names = [*NEEDS.get(name, []), name]
    guest.qmp('migrate-set-capabilities',
              capabilities=[{'capability': n, 'state': on} for n in names])


def capabilities(t, src):
    with Micro(t, 'caps', src.accel, mem_mib=MIB, incoming=True) as dst:
        for name in CAPABILITIES:
            with t.case(f'capability {name}'):
                # what it needs is named first, as it is in the way as well
                texts = [name, *NEEDS.get(name, [])]
                for guest, command in ((src, 'migrate'), (dst, 'migrate-incoming')):
                    try:
                        set_capability(guest, name, True)
                    except GuestError as e:
                        raise Skip(f'this QEMU does not have it: {e}') from None
                    port = common.free_port()
                    refuses(guest, texts, command, uri=f'rdma-postcopy:127.0.0.1:{port}')
                    set_capability(guest, name, False)
                never_stopped(src)
        with t.case('parameter tls-creds'):
            src.qmp('migrate-set-parameters', **{'tls-creds': 'creds0'})
            refuses(src, 'tls-creds', 'migrate', uri='rdma-postcopy:127.0.0.1:1')
            src.qmp('migrate-set-parameters', **{'tls-creds': ''})
        with t.case('an address at which it cannot listen'), socket.socket() as taken:
            taken.bind(('127.0.0.1', 0))
            taken.listen()
            for address, text in ((f'127.0.0.1:{taken.getsockname()[1]}', 'in use'),
                                  ('127.0.0.1:1,nonsense=1', 'nonsense')):
                say(f'      {refuses(dst, text, "migrate-incoming", uri="rdma-postcopy:" + address)}')
                if 'status' in common.migration(dst):
                    raise Failed(f'it was refused, and says {common.migration(dst)}')
        with t.case('all off again: it listens'):
            common.listen(dst)


def with_device(t, accel, name, texts, memory, extra):
    """A guest with a device that cannot be moved; it is refused before anything connects."""
    with Micro(t, name, accel, memory, MIB, extra=extra) as src:
        src.start_load()
        say(f'      {refuses(src, texts, "migrate", uri="rdma-postcopy:127.0.0.1:1")}')
        common.check_still_running(src)


def vhost_user(t, accel):
    daemon = shutil.which('qemu-storage-daemon')
    if not daemon:
        raise Skip('no qemu-storage-daemon: install package qemu-utils')
    image, path = os.path.join(t.work, 'vu.raw'), os.path.join(t.work, 'vu.sock')
    with open(image, 'wb') as f:
        f.truncate(1 << 20)
    with subprocess.Popen([daemon, '--blockdev', f'driver=file,node-name=f,filename={image}',
                           '--export', 'type=vhost-user-blk,id=e,node-name=f,writable=on,'
                           f'addr.type=unix,addr.path={path}'], stderr=subprocess.DEVNULL) as p:
        try:
            common.wait_for('vhost-user socket', 10, lambda: os.path.exists(path))
            with_device(t, accel, 'vu', 'vhost-user-blk', 'memfd',
                        ['-chardev', f'socket,id=c,path={path}',
                         '-device', 'vhost-user-blk-pci,chardev=c'])
        finally:
            p.kill()


def pmem(folder, name):
    """Options for a virtio-pmem."""
    path = os.path.join(folder, f'{name}.pmem')
    return ['-m', 'maxmem=1G', '-object',
            f'memory-backend-file,id=pm,mem-path={path},size=2M,share=on', '-device',
            'virtio-pmem-pci,memdev=pm']


@contextlib.contextmanager
def hyperv():
    """Skipped where KVM has no hv-synic."""
    try:
        yield
    except GuestError as e:
        if 'Hyper' not in str(e):
            raise
        raise Skip(f"this host's KVM has no hv-synic: {str(e).splitlines()[-1]}") from None


def hv_balloon(t, accel):
    with hyperv():
        with_device(t, accel, 'hv', '): QEMU does not save its state', 'anon',
                    ['-cpu', 'max,hv-vpindex,hv-synic', '-device', 'vmbus-bridge', '-device', 'hv-balloon'])


def devices(t, accel):
    with t.case('vhost-user-blk'):
        vhost_user(t, accel)
    with t.case('VFIO'):
        if not os.path.isdir('/dev/vfio') or len(os.listdir('/dev/vfio')) < 2:
            raise Skip('no device is bound to vfio-pci on this machine')
        raise Skip('there are VFIO devices, but this test may not take one')
    with t.case('ivshmem peer'):
        with_device(t, accel, 'ivshmem', 'ivshmem', 'anon',
                    ['-object', 'memory-backend-memfd,id=shm,size=1M,share=on',
                     '-device', 'ivshmem-plain,memdev=shm'])
    with t.case('virtio-pmem'):
        with_device(t, accel, 'pmem', '): QEMU does not save its state', 'anon', pmem(t.work, 'pmem'))
    with t.case('hv-balloon'):
        hv_balloon(t, accel)
    with t.case('a job, an export that writes'):
        jobs_and_exports(t, accel)
    with t.case('more memory regions than the wire has numbers for'):
        too_many_regions(t, accel)
    with t.case('a device that cannot be saved'):
        with_device(t, accel, 'nvme', 'nvme', 'anon',
                    ['-blockdev', 'driver=null-co,node-name=n,read-zeroes=on',
                     '-device', 'nvme,drive=n,serial=farfork'])


NULLS = ['-blockdev', 'driver=null-co,size=1073741824,node-name=n,read-zeroes=on', '-device',
         'virtio-blk-pci,drive=n,share-rw=on', '-blockdev', 'driver=null-co,size=1073741824,node-name=copy']


def mirror(src):
    """It takes some billion years."""
    src.qmp('blockdev-mirror', **{'job-id': 'j', 'device': 'n', 'target': 'copy', 'sync': 'full',
                                  'speed': 1})


def end_mirror(src):
    src.qmp('block-job-cancel', device='j', force=True)
    common.wait_for('end of the job', 20, lambda: not src.qmp('query-jobs'))


def jobs_and_exports(t, accel):
    """What writes to a disk beside the guest: refused by id, type and disk, also when it begins late."""
    with Micro(t, 'jobs', accel, mem_mib=MIB, extra=NULLS, faults='source.publish=delay:1500000') as src, \
            Micro(t, 'jobs-to', accel, mem_mib=MIB, extra=NULLS, incoming=True) as dst:
        src.start_load()
        for texts, begin, end in (
                ("job 'j' (mirror) of disk ", lambda: mirror(src), lambda: end_mirror(src)),
                ("export 'e' (nbd) of disk ",
                 lambda: src.qmp('block-export-add', type='nbd', id='e', node_name='n', writable=True),
                 lambda: src.qmp('block-export-del', id='e'))):
            if texts.startswith('export'):
                src.qmp('nbd-server-start', addr={'type': 'unix', 'data': {
                    'path': os.path.join(t.work, 'jobs.nbd')}})
            begin()
            say('      ' + refuses(src, texts, 'migrate', uri='rdma-postcopy:127.0.0.1:1'))
            end()
        common.wait_for('end of the export', 20, lambda: not src.qmp('query-block-exports'))
        src.qmp('block-export-add', type='nbd', id='r', node_name='n')     # a reader
        never_stopped(src)
        src.qmp('migrate', uri=common.listen(dst))
        mirror(src)
        reason = common.wait_migration(src, 'failed', 40).get('error-desc', '')
        if "job 'j' (mirror) of disk " not in reason or 'STOP' not in common.event_names(src):
            raise Failed(f'{src.name}: reason "{reason}", events {common.event_names(src)}')
        end_mirror(src)
        common.check_still_running(src)


def too_many_regions(t, accel):
    """hv-synic has two for each CPU."""
    if accel != 'kvm':
        raise Skip('hv-synic needs kvm')
    with hyperv(), Micro(t, 'synic', accel, mem_mib=MIB, smp=255,
                         extra=['-cpu', 'max,-arch-capabilities,hv-vpindex,hv-synic', '-S']) as src:
        say('      ' + refuses(src, 'hv-synic has two', 'migrate', uri='rdma-postcopy:127.0.0.1:1'))


def does_not_start(t, accel, address, text):
    """A destination with this address ends at once and says why."""
    try:
        with Micro(t, 'addr', accel, mem_mib=MIB, incoming='rdma-postcopy:' + address):
            pass
    except GuestError as e:
        if 'qemu exited with 1' not in str(e) or text not in str(e):
            raise Failed(f'destination with {address}: {e}, want "{text}"') from None
    else:
        raise Failed(f'a destination with {address} starts')


def addresses(t, src):
    bad = {
        'unknown option': ('127.0.0.1:4444,speed=9', 'no such option: speed'),
        'option without value': ('127.0.0.1:4444,window', 'want option=value'),
        'option out of range': ('127.0.0.1:4444,window=99', 'window=99'),
        'link that is not there': ('127.0.0.1:4444,link=pigeon', 'link=pigeon'),
        'no port': ('127.0.0.1', 'want HOST:PORT'),
        'port out of range': ('127.0.0.1:70000', 'PORT=70000'),
        'IPv6 without brackets': ('::1:4444', 'brackets'),
    }
    for name, (address, text) in bad.items():
        with t.case(f'address: {name}'):
            refuses(src, text, 'migrate', uri='rdma-postcopy:' + address)
            does_not_start(t, src.accel, address, text)
            never_stopped(src)
    with t.case('address: port in use'):
        with socket.create_server(('127.0.0.1', 0)) as s:
            does_not_start(t, src.accel, f'127.0.0.1:{s.getsockname()[1]}', 'in use')
    with t.case('address: connection refused'):
        fails(src, f'rdma-postcopy:127.0.0.1:{common.free_port()}', ['refused'])
    with t.case('address: no such host'):
        uri = 'rdma-postcopy:no-such-host.invalid:4444'
        fails(src, uri, ['no-such-host.invalid'])
        never_stopped(src)


NEXT = fakepeer.VERSION + 1     # one that nobody speaks yet


def fake_destinations(t, src):
    replies = {
        'closes at once': (b'', 'closed'),
        'answers rubbish': (b'SSH-2.0-OpenSSH\r\n' * 4, 'not a Farfork peer'),
        'answers a huge length': (b'FFcm\xff\xff\xff\xff', 'length'),
        'answers an unknown message': (fakepeer.frame(b'\x63\0\0\0'), 'type 99'),
        'answers out of turn': (fakepeer.frame(b'\x09\0\0\0'), 'GO'),
        'speaks another version': (fakepeer.welcome(NEXT), f'version {NEXT}'),
        'refuses': (fakepeer.refuse(b'not on a Friday'), 'not on a Friday'),
    }
    for name, (reply, text) in replies.items():
        with t.case(f'the destination {name}'):
            with fakepeer.destination(reply) as port:
                fails(src, f'rdma-postcopy:127.0.0.1:{port}', [text])


def strangers(t, src):
    """What connects to a destination and is no source: it goes on listening."""
    tail = fakepeer.hello()
    sent = {
        'nothing': b'', 'rubbish': b'GET / HTTP/1.0\r\n\r\n' * 9, 'half a hello': tail[:40],
        'a huge length': b'FFcm\xff\xff\xff\xff', 'a wrong message': fakepeer.frame(b'\x09\0\0\0'),
        'a wrong magic': tail.replace(fakepeer.MAGIC, b'FARSPOON'),
        'a region without length': fakepeer.hello(regions=((b'pc.ram', 0, 4096),)),
        'too many regions': tail[:12] + tail[12:].replace(b'\0\0\1\0', b'\0\0\xff\xff', 1),
    }
    with Micro(t, 'strangers', src.accel, mem_mib=MIB, incoming=True) as dst:
        uri = common.listen(dst)
        port = int(uri.rsplit(':', 1)[1])
        for name, data in sent.items():
            with t.case(f'a stranger sends {name}'):
                with fakepeer.connect(port, data) as sock:
                    # a destination that dropped it by now has reset the connection
                    with contextlib.suppress(OSError):
                        sock.shutdown(socket.SHUT_WR)
                    kind, text = fakepeer.answer(sock)
                if dst.exit_code(0.2) is not None:
                    raise Failed(f'the destination ended: {dst.tail}')
                if kind == fakepeer.REFUSE:
                    say(f'      {text.decode()}')
                elif kind is not None:
                    raise Failed(f'answered with message {kind}')
        with t.case('then, behind a stranger that is silent, the source comes'):
            with fakepeer.connect(port, b''):
                src.qmp('migrate', uri=uri)
                common.wait_migration(src, 'completed')
                common.wait_migration(dst, 'completed')
            check_ledger(src, dst)


def one_after_the_other(t, accel):
    """Who sees "failed" can begin another at once: all was released by then, however slowly."""
    with Micro(t, 'slow', accel, mem_mib=MIB, faults='source.free=delay:300000') as src:
        src.start_load()
        for _ in range(3):
            fails(src, f'rdma-postcopy:127.0.0.1:{common.free_port()}', ['refused'])


def other_version(t, accel):
    with Micro(t, 'version', accel, mem_mib=MIB, incoming=True) as dst:
        port = int(common.listen(dst).rsplit(':', 1)[1])
        with fakepeer.connect(port, fakepeer.hello(version=NEXT, oldest=NEXT)) as sock:
            kind, text = fakepeer.answer(sock)
        if kind != fakepeer.REFUSE or f'version {NEXT}..{NEXT}'.encode() not in text:
            raise Failed(f'answer {kind} {text}')
        waits(dst, [f'version {NEXT}..{NEXT}'])


def run(t):
    accel = t.best_accel()
    with Micro(t, 'a', accel, mem_mib=MIB) as src:
        src.accel = accel
        src.start_load()
        tables(t, src)
        capabilities(t, src)
        addresses(t, src)
        fake_destinations(t, src)
        with t.case('the guest never stopped'):
            never_stopped(src)
            common.check_still_running(src)
        strangers(t, src)
    with t.case('one refused migration after the other'):
        one_after_the_other(t, accel)
    devices(t, accel)
    with t.case('a source of another version'):
        other_version(t, accel)


if __name__ == '__main__':
    common.main(run, 150)
