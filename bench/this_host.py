# SPDX-License-Identifier: LGPL-2.1-or-later
#
# this_host.py - what the figures were measured on
import os
import platform
import re
import subprocess

import common

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def read(path):
    try:
        with open(path, encoding='ascii', errors='replace') as f:
            return f.read()
    except OSError:
        return ''


def output(*argv):
    try:
        return subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=20,
                              stderr=subprocess.DEVNULL, text=True, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return 'unknown'


def meminfo_mib(key):
    m = re.search(rf'^{key}: +(\d+) kB', read('/proc/meminfo'), re.M)
    return int(m[1]) // 1024 if m else 0


def load_average():
    return [float(x) for x in read('/proc/loadavg').split()[:3]]


def thp():
    m = re.search(r'\[(\w+)\]', read('/sys/kernel/mm/transparent_hugepage/enabled'))
    return m[1] if m else 'none'


def facts(qemus):
    """qemus: the programs that are used."""
    cpu = re.search(r'^model name\s*: (.*)', read('/proc/cpuinfo'), re.M)
    versions = {q: output(q, '--version').split('\n')[0] for q in qemus}
    commit = 'unknown'
    if os.path.exists(os.path.join(TOP, '.git')):
        commit = output('git', '-C', TOP, 'describe', '--always', '--dirty', '--tags')
    return {
        'cpu': cpu[1] if cpu else platform.machine(), 'cpus': len(os.sched_getaffinity(0)),
        'kernel': platform.release(), 'memory_mib': meminfo_mib('MemTotal'), 'thp': thp(),
        'qemu': versions, 'farfork': output(common.FARFORK, 'version'), 'commit': commit,
        'load_before': load_average(), 'load_after': [],
    }
