#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""move_library.py - inside the lab: the library moves 32 MiB between the two hosts

usage: move_library.py [TEXT]       all rows, or those whose names contain TEXT

Every memory and landing, pulled and pushed, over verbs, and over tcp for comparison. Four
threads touch the memory all the while; every byte is checked (move_two.c). Prints what it
cost: CPU seconds a GiB of the library's threads at either end, not judged. What soft-RoCE
itself costs is the kernel's, not theirs. FARFORK_MIB=SIZE: other than 32.
"""
import json
import os
import re
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.environ.get('FARFORK_BUILD', os.path.join(HERE, '..', '..', 'build'))
PROGRAM = os.path.join(BUILD, 'tests', 'lab', 'move_two')
HOSTS = os.environ.get('LAB_HOSTS')
ADDRESS = '10.8.0.2' if HOSTS == '2' else '10.7.0.1'
MIB = int(os.environ.get('FARFORK_MIB', '32'))
LIMIT_S = 100           # of one move
PORT = 7300

# memory, landing, what the destination says of it: the rest of the rows is made of these
LANDINGS = (
    ('anon', 'copy', 'copied'),
    ('memfd', 'copy', 'copied'),
    ('memfd', 'continue', 'continued'),
    ('hugetlb', 'copy', 'copied'),
    ('hugetlb', 'continue', 'continued'),
    ('thp', 'move', 'copied'),      # what an adapter has pinned cannot be moved
    ('thp', 'move,odp=on', 'moved'),
    ('memfd', 'continue,odp=on', 'continued'),
)
ROWS = [('verbs', prefill, *x) for prefill in ('pull', 'push') for x in LANDINGS]
ROWS += [('tcp', 'pull', 'anon', 'copy', 'copied'), ('tcp', 'push', 'anon', 'copy', 'copied'),
         ('tcp', 'pull', 'thp', 'move', 'moved')]


class Failed(Exception):
    pass


def on(name, *argv):
    return ['ip', 'netns', 'exec', name, *argv] if HOSTS == '2' else list(argv)


def start(*argv):
    return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)


def finish(process, who, limit_s, said=''):
    """Its last line as JSON. @said: what it has said before."""
    try:
        out = process.communicate(timeout=max(limit_s, 1))[0]
    except subprocess.TimeoutExpired:
        process.kill()
        raise Failed(f'{who}: no end within {LIMIT_S} s: {process.communicate()[0]}') from None
    try:
        if process.returncode == 0:
            return json.loads(out.splitlines()[-1])
    except (ValueError, IndexError):
        pass
    raise Failed(f'{who}: exit code {process.returncode}: {said}{out.strip()}')


def one(link, prefill, memory, landing, how, port):
    """The two lines of a move, the source's first."""
    address = f'{ADDRESS}:{port},link={link},insecure=on'
    end = time.monotonic() + LIMIT_S
    dst = start(*on('hostb', PROGRAM, 'destination',
                    f'{address},prefill={prefill},landing={landing}', memory, str(MIB)))
    src = None
    try:
        said = dst.stdout.readline()
        if said != 'listening\n':
            finish(dst, 'destination', 5, said)
        src = start(*on('hosta', PROGRAM, 'source', address, memory, str(MIB)))
        lines = []
        for process, who in ((src, 'source'), (dst, 'destination')):
            try:
                lines.append(finish(process, who, end - time.monotonic()))
            except Failed as e:
                other = dst if process is src else src
                other.kill()
                raise Failed(f'{e}; the other end: {other.communicate()[0].strip()}') from None
    finally:
        for process in (src, dst):
            if process and process.poll() is None:
                process.kill()
                process.wait()
    if lines[0]['link'] != link or lines[1]['link'] != link:
        raise Failed(f'over {lines[0]["link"]}, not {link}')
    if not lines[1][how]:
        raise Failed(f'nothing was {how}: {lines[1]}')
    left = resources()
    if left:
        raise Failed(f'RDMA resources are left: {"; ".join(left[:6])}')
    return lines


def resources():
    done = subprocess.run(['rdma', 'resource', 'show', 'qp'], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, text=True, timeout=20, check=True)
    return [x.strip() for x in done.stdout.splitlines() if re.search(r'\bpid \d+\b', x)]


def reserve_huge():
    """Both ends are on one machine."""
    path = '/proc/sys/vm/nr_hugepages'
    with open(path, 'w', encoding='ascii') as f:
        f.write(str(MIB + 8))
    with open(path, encoding='ascii') as f:
        got = int(f.read())
    if got < MIB:
        raise Failed(f'only {got} huge pages are to be had for {2 * MIB} MiB: set LAB_MEM higher')


def main():
    if not HOSTS:
        print('needs a kernel with RDMA: run it by `make check-lab`')
        return 77
    wanted = sys.argv[1] if len(sys.argv) > 1 else ''
    failed = done = 0
    reserve_huge()
    print(f'{"":46} {"CPU s a GiB: source":>20} {"destination":>20}\n'
          f'{"link, prefill, memory, landing":36} {"MiB/s":>9} '
          f'{"until GO":>10} {"from then":>9} {"until GO":>10} {"from then":>9}  faults  threads')
    for i, row in enumerate(ROWS):
        name = ' '.join(row[:4])
        if wanted not in name:
            continue
        try:
            src, dst = one(*row, PORT + i)
        except Failed as e:
            failed += 1
            print(f'FAIL  {name}: {e}', flush=True)
            continue
        done += 1
        gib = dst['bytes'] / (1 << 30)
        print(f'{name:36} {dst["bytes"] / dst["took_s"] / (1 << 20):9.0f} '
              f'{src["cpu_setup_s"] / gib:10.2f} {src["cpu_move_s"] / gib:9.2f} '
              f'{dst["cpu_setup_s"] / gib:10.2f} {dst["cpu_move_s"] / gib:9.2f} '
              f'{dst["faults"]:7}  '
              + ' '.join(f'{k.removeprefix("farfork-")}={v / gib:.2f}' for x in (src, dst)
                         for k, v in x['threads'].items() if k.startswith('farfork-')), flush=True)
    print(f'{done} passed, {failed} failed')
    return 1 if failed or not done else 0


if __name__ == '__main__':
    sys.exit(main())
