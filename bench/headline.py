# SPDX-License-Identifier: LGPL-2.1-or-later
#
# headline.py - what the page of the results opens with: one guest, our way, the best of QEMU's own
"""
    h = choose(doc)         # a Headline, or None: no group has a whole pair of moves
    ratios(h.group, h.ours, h.theirs)

The guest with the most memory; rdma-postcopy without options before other ways of ours; of QEMU's
own the first of STRONGEST that is there. A ratio is pair by pair, less is better, 1 is equal.
"""
from collections import namedtuple

import schema
import stats
import table

Headline = namedtuple('Headline', 'group ours theirs others')     # others: the rest of our ways
Ratio = namedtuple('Ratio', 'name label range ours theirs')       # ours, theirs: medians as text

FIRST_OURS = ('rdma-verbs', 'rdma-tcp')
STRONGEST = ('preempt', 'post-copy', 'hybrid', 'multifd', 'pre-copy')
# what a user asks first; of each line the first figure that both have
ASKED = ((('total_ms', 'total time'),),
         (('stall_total_ms', 'guest stalled, in all'), ('answer_p99_us', 'one answer, p99'),
          ('udp_silence_ms', 'longest without an answer')),
         (('downtime_events_ms', 'downtime'), ('downtime_guest_ms', 'downtime, guest')))


def place_in(order, peer):
    """Lower is earlier; options come after none."""
    name, comma, _ = peer['peer'].partition(',')
    return (order.index(name) if name in order else len(order), bool(comma))


def ratios(group, ours, theirs):
    """Up to three."""
    out = []
    for choice in ASKED:
        for name, label in choice:
            s = stats.ratio(schema.values(ours, name), schema.values(theirs, name))
            if s:
                unit = schema.BY_NAME[name].unit
                out.append(Ratio(name, label, s, *(
                    f'{schema.shown(name, stats.median(schema.values(p, name)))} {unit}'
                    for p in (ours, theirs))))
                break
    return out


def our_ways(group):
    return sorted((p for p in group['peers'] if table.is_ours(p)),
                  key=lambda p: place_in(FIRST_OURS, p))


def qemus_ways(group):
    return [p for p in group['peers'] if not table.is_ours(p)]


def of_group(group):
    ours = our_ways(group)
    for a in ours:
        for b in sorted(qemus_ways(group), key=lambda p: place_in(STRONGEST, p)):
            if ratios(group, a, b):
                return Headline(group, a, b, [p for p in ours if p is not a])
    return None


def choose(doc):
    groups = sorted(doc['groups'], key=lambda g: -g['mem_mib'])     # stable
    return next((h for h in map(of_group, groups) if h), None)


def end_s(h):
    """When the longer of the two first moves was over, and the guest at work again."""
    return max([p['runs'][0]['metrics'].get('total_ms') or 0 for p in (h.ours, h.theirs)]) / 1000
