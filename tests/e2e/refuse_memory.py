#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""refuse_memory.py - memory that others use or reach is never emptied or mapped anew

What is in the way is refused by name before anything happens to the memory. Limit: 100 s.
"""
import os
import socket
import struct
import subprocess
import threading

import common
from common import Failed, Micro, Skip, check_ledger, check_move, refuses, say

MIB = 64
PAGE = 4096
ANY = 'rdma-postcopy:127.0.0.1:0'
QUEUES = 64     # before the one that counts


def with_backend(t, name, accel, backend, incoming=True):
    return Micro(t, name, accel, mem_mib=MIB, machine='pc,memory-backend=ram', incoming=incoming,
                 extra=['-object', f'{backend},id=ram,size={MIB}M'])


def another_s_file(t, accel):
    """A private mapping of the file in which another guest runs."""
    path = os.path.join(t.work, 'template.ram')
    file = f'memory-backend-file,mem-path={path}'
    with with_backend(t, 'user', accel, file + ',share=on', incoming=False) as user, \
            with_backend(t, 'named', accel, file + ',share=off') as named, \
            with_backend(t, 'unlinked', accel, file + ',share=off') as unlinked:
        user.start_load()
        say(f'      {refuses(named, "private mapping of a file", "migrate-incoming", uri=ANY)}')
        os.unlink(path)         # it is another's all the same
        refuses(unlinked, 'private mapping of a file', 'migrate-incoming', uri=ANY)
        common.check_still_running(user)


def own_file(t, name, accel, backend):
    """A file that nobody else can have is emptied."""
    with Micro(t, f'{name}-a', accel, 'memfd', MIB) as src, \
            with_backend(t, f'{name}-b', accel, backend) as dst:
        src.start_load()
        check_move(common.move(src, dst))
        check_ledger(src, dst)


def pin(guest):
    """As a driver does that pins or exports memory (libblkio, vdpa), which no build here has."""
    symbols = subprocess.run(['nm', common.QEMU], stdout=subprocess.PIPE, text=True, check=True)
    at = next(int(row.split()[0], 16) for row in symbols.stdout.splitlines()
              if row.endswith(' ram_block_discard_disabled_cnt'))
    qemu = os.path.realpath(common.QEMU)
    with open(f'/proc/{guest.pid}/maps', encoding='ascii') as f:
        base = next(int(row.split('-')[0], 16) for row in f if row.rstrip().endswith(qemu))
    try:
        with open(f'/proc/{guest.pid}/mem', 'r+b', buffering=0) as f:
            f.seek(base + at)
            f.write(struct.pack('=I', 1))
    except PermissionError as e:
        raise Skip(f'{e}: run as root') from None


def pinned(t, accel):
    with Micro(t, 'pinned', accel, mem_mib=MIB, incoming=True) as dst:
        pin(dst)
        say(f'      {refuses(dst, "has pinned", "migrate-incoming", uri=ANY)}')


def pinned_meanwhile(t, accel):
    """A device that comes while the destination waits."""
    with Micro(t, 'late-a', accel, mem_mib=MIB) as src, \
            Micro(t, 'late-b', accel, mem_mib=MIB, incoming=True) as dst:
        src.start_load()
        uri = common.listen(dst)
        pin(dst)
        src.qmp('migrate', uri=uri)
        common.wait_migration(src, 'failed', 40)
        if dst.exit_code(20) != 1 or 'has pinned' not in dst.tail:
            raise Failed(f'{dst.name}: exit code {dst.proc.returncode}: {dst.tail}')
        common.check_still_running(src)


class Backend(threading.Thread):
    """As much of a vhost-user network backend as QEMU needs to start."""
    REPLIES = {1: 1 << 32 | 1 << 30 | 1 << 26,      # GET_FEATURES: VERSION_1, protocol, LOG_ALL
               15: 1 << 1}                          # GET_PROTOCOL_FEATURES: LOG_SHMFD

    def __init__(self, path):
        super().__init__(daemon=True)
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(path)
        self.server.listen(1)

    def run(self):
        with self.server, self.server.accept()[0] as sock:
            while len(head := sock.recv(12, socket.MSG_WAITALL)) == 12:
                request, _, size = struct.unpack('=III', head)
                sock.recv(size, socket.MSG_WAITALL)
                if request in self.REPLIES:
                    sock.sendall(struct.pack('=IIIQ', request, 5, 8, self.REPLIES[request]))


def many_queues(t, accel):
    """A netdev that is refused, behind as many as an array once had room for."""
    path = os.path.join(t.work, 'vhost.sock')
    backend = Backend(path)
    backend.start()
    extra = [x for i in range(QUEUES) for x in ('-netdev', f'hubport,id=h{i},hubid={i}')]
    extra += ['-chardev', f'socket,id=c,path={path}', '-netdev', 'vhost-user,id=last,chardev=c']
    with Micro(t, 'queues', accel, mem_mib=MIB, extra=extra) as src:
        src.start_load()
        say(f'      {refuses(src, "netdev last", "migrate", uri=ANY)}')
        common.check_still_running(src)
    backend.join(10)


# A /dev with a udmabuf: QEMU opens it, and that is all that it does before a guest has a blob
WITH_UDMABUF = '''set -e
mount -t tmpfs none "$1"
for f in null zero random urandom kvm; do
    [ ! -e /dev/$f ] || { : > "$1/$f"; mount --bind /dev/$f "$1/$f"; }
done
: > "$1/udmabuf"
mkdir "$1/shm"
mount --bind /dev/shm "$1/shm"
mount --move "$1" /dev
shift
exec "$@"
'''


def blobs(t, accel):
    if os.geteuid():
        raise Skip('a /dev of its own needs root')
    dev = os.path.join(t.work, 'dev')
    os.mkdir(dev)
    with_gpu = Micro(t, 'blob', accel, 'memfd', MIB,
                     extra=['-device', 'virtio-gpu-pci,blob=on,romfile='])
    with_gpu.argv = ['unshare', '-m', 'sh', '-c', WITH_UDMABUF, 'sh', dev, *with_gpu.argv]
    with with_gpu as src:
        src.start_load()
        say(f'      {refuses(src, "blob=on", "migrate", uri=ANY)}')
        common.check_still_running(src)


def check_poisoned(moved):
    check_move(moved)
    if moved.dst_info['x-rdma-postcopy']['poisoned-bytes'] != PAGE:
        raise Failed(f'{moved.dst.name}: {moved.dst_info}')


def poisoned(t, accel):
    """A page that the source cannot read: its file has been cut. The file of the destination has a
    hole there, and another move must not show zeros."""
    memfd = 'memory-backend-memfd,share=on'
    with with_backend(t, 'poison-a', accel, memfd + ',seal=off', incoming=False) as src, \
            with_backend(t, 'poison-b', accel, memfd) as dst, \
            with_backend(t, 'poison-c', accel, memfd) as last:
        src.start_load()
        folder = f'/proc/{src.pid}/fd'
        fd = next(fd for fd in os.listdir(folder)
                  if 'memory-backend-memfd' in os.readlink(f'{folder}/{fd}'))
        os.truncate(f'{folder}/{fd}', (MIB << 20) - PAGE)
        check_poisoned(common.move(src, dst))
        check_ledger(src, dst)
        check_poisoned(common.move(dst, last))
        check_ledger(src, dst, last)


def run(t):
    accel = t.best_accel()
    with t.case('a private mapping of a file that others use'):
        another_s_file(t, accel)
    with t.case('a file that QEMU made for itself'):
        own_file(t, 'folder', accel, f'memory-backend-file,mem-path={t.work},share=off')
    with t.case('a memfd that is not shared'):
        own_file(t, 'memfd', accel, 'memory-backend-memfd,share=off')
    with t.case('memory that is pinned'):
        pinned(t, accel)
    with t.case('memory that is pinned while the destination waits'):
        pinned_meanwhile(t, accel)
    with t.case(f'vhost-user behind {QUEUES} queues'):
        many_queues(t, accel)
    with t.case('virtio-gpu with blob=on'):
        blobs(t, accel)
    with t.case('memory that came with poisoned pages is moved on'):
        poisoned(t, accel)


if __name__ == '__main__':
    common.main(run, 100)
