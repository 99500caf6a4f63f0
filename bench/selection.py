# SPDX-License-Identifier: LGPL-2.1-or-later
#
# selection.py - which guests and links are measured: by default, with --full, as asked for
import itertools

import client_view
import testbed

KEYS = ('workload', 'mem', 'smp', 'memory', 'net')
# what --full varies, one thing at a time; the first of each is the usual
LINKS = [f'{rate}gbit,{rtt}ms{loss}' for rate in (1, 10, 25) for rtt in (0.05, 0.2, 1)
         for loss in ('', ',0.1%')]
FULL = {
    'workload': ['random', 'idle', 'seq', 'chase', 'zipf', 'read', 'write', 'linux', 'redis'],
    'mem': [1024, 256, 4096, 8192],
    'smp': [1, 4],
    'memory': ['anon', 'memfd', 'thp', 'hugetlb'],
    'net': [testbed.LOOPBACK, '1gbit', '10gbit', '25gbit', *LINKS],
}
# more of it: several things at a time
FULL_MORE = [
    *({'workload': 'write', 'mem': 256, 'net': net} for net in ('1gbit', '10gbit')),
    *({'workload': w, 'mem': 256, 'net': '1gbit'} for w in client_view.CLIENTS),
    {'smp': 4, 'memory': 'memfd'}, {'smp': 4, 'memory': 'hugetlb'},
    {'mem': 8192, 'memory': 'memfd'}, {'mem': 8192, 'memory': 'hugetlb'},
    {'mem': 256, 'memory': 'memfd'}, {'mem': 256, 'memory': 'hugetlb'},
    {'workload': 'chase', 'memory': 'hugetlb'},
]
# without --full and with nothing chosen; the last: a guest that writes faster than the link is
USUAL = {'workload': ['random'], 'mem': [256, 1024], 'smp': [1], 'memory': ['anon'],
         'net': [testbed.LOOPBACK]}
LAB_USUAL = {**USUAL, 'mem': [32]}
USUAL_MORE = [{'workload': 'write', 'mem': 256, 'net': '1gbit'}]
# while nothing moves
IDLE = {'workload': ['random', 'redis'], 'mem': [256], 'smp': [1], 'memory': ['anon', 'thp'],
        'net': [testbed.LOOPBACK]}
# of forks: memory of the parent, children; up to so many sweep all of their memory
FORKED = ('anon', 'thp', 'memfd', 'hugetlb')
CHILDREN, VERIFIED = (1, 20, 50), 1


def product(chosen):
    return [dict(zip(KEYS, values)) for values in itertools.product(*(chosen[k] for k in KEYS))]


def combinations(o, usual):
    """Every combination of what was asked for, or else is usual."""
    return product({k: getattr(o, k) or usual[k] for k in KEYS})


def moves(o, in_lab):
    """The moves that are measured, without repetitions."""
    chosen = {k: getattr(o, k) for k in KEYS}
    if not o.full:
        out = combinations(o, LAB_USUAL if in_lab else USUAL)
        if not in_lab and not any(chosen.values()):
            out += [{**out[0], **more} for more in USUAL_MORE]
        return out
    usual = {k: (chosen[k] or FULL[k])[0] for k in KEYS}
    out = [usual, *({**usual, k: value} for k in KEYS for value in (chosen[k] or FULL[k])[1:])]
    for more in FULL_MORE:
        if all(not chosen[k] or value in chosen[k] for k, value in more.items()):
            out.append({**usual, **more})
    return [g for i, g in enumerate(out) if g not in out[:i]]


def idle(o, in_lab):
    """What is measured while nothing moves."""
    return combinations(o, LAB_USUAL if in_lab else IDLE)


def forks(o):
    """Pauses of a parent, unless children alone are asked for; then children, busy and idle."""
    out = []
    if o.children is None or not o.children or o.memory:
        out += [{'memory': memory, 'mem': mem} for mem in o.mem or (512, 1536)
                for memory in o.memory or FORKED]
    children = CHILDREN if o.children is None else o.children
    mem = (o.mem or [512])[0]
    out += [{'children': n, 'mem': mem, 'load': 'busy', 'verify': o.verify or n <= VERIFIED} for n in children]
    if o.children is None:
        out += [{'children': CHILDREN[-1], 'mem': mem, 'load': 'idle', 'verify': False}]
    return out
