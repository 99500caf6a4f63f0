# SPDX-License-Identifier: LGPL-2.1-or-later
#
# compare.py - farfork bench compare OLD NEW: what changed beyond noise
import argparse
import sys

import schema
import stats


def floor_values(group, name):
    return [f.get(name) for f in group['floors']]


def text(name, c):
    factor = f'x{c.factor:.2f}' if c.factor is not None else ''
    p = f', p={c.p:.3f}' if c.p is not None else ''
    return (f'{schema.shown(name, c.old.median)} -> {schema.shown(name, c.new.median)} '
            f'{factor} ({c.how}{p}; {c.old.n} and {c.new.n} runs)')


def compare_peer(where, old, new):
    """Rows (verdict, line) of every figure of a peer that is better or worse."""
    rows, looked = [], 0
    for m in schema.METRICS:
        if m.less is None:
            continue
        c = stats.change(schema.values(old, m.name), schema.values(new, m.name), m.less)
        if c is None:
            continue
        looked += 1
        if c.verdict != 'same':
            unit = f' {m.unit}' if m.unit else ''
            rows.append((c.verdict, f'{c.verdict:6} {where}: {m.label.strip()} [{m.name}]{unit}: '
                         f'{text(m.name, c)}'))
    for outcome in ('did not converge', 'failed'):
        a, b = (sum(r['outcome'] == outcome for r in p['runs']) for p in (old, new))
        whole = len(old['runs']), len(new['runs'])
        if whole[0] and whole[1] and a * whole[1] != b * whole[0]:
            verdict = 'worse' if b * whole[0] > a * whole[1] else 'better'
            rows.append((verdict, f'{verdict:6} {where}: {outcome}: {a} of {whole[0]} runs -> '
                         f'{b} of {whole[1]}'))
    return rows, looked


def beside(doc):
    """{(what, figure): (values, less is better)} of what is measured beside moves."""
    found = {}
    for g in doc.get('overhead', []):
        for way in g['ways']:
            found[f'nothing moves: {schema.group_title(g)}: {way["way"]}', 'work_per_s'] = \
                ([r['work_per_s'] for r in way['runs']], False)
    for g in doc.get('curve', []):
        for link in g['links']:
            for point in link['points']:
                where = (f'threads that fault: {g["net"]}, {g["mib"]} MiB, {link["link"]}, '
                         f'{point["threads"]}')
                for name, less in (('faults_per_s', False), ('p50_us', True), ('p99_us', True)):
                    found[where, name] = [r[name] for r in point['runs']], less
    return found


def compare_beside(old, new):
    """As compare_peer(), of what both have."""
    rows, looked, was = [], 0, beside(old)
    for (where, name), (values, less) in beside(new).items():
        c = stats.change(was.get((where, name), ([], less))[0], values, less)
        looked += c is not None
        if c and c.verdict != 'same':
            rows.append((c.verdict, f'{c.verdict:6} {where}: [{name}]: {text(name, c)}'))
    return rows, looked


def compare(old, new):
    """(lines to print, number of figures that are worse)."""
    out, worse, looked, changed = [], 0, 0, 0
    for key in ('cpu', 'kernel', 'memory_mib'):
        if old['host'].get(key) != new['host'].get(key):
            out.append(f'NOTE   other machine: {key} {old["host"].get(key)} -> '
                       f'{new["host"].get(key)}')
    for who, doc in (('old', old), ('new', new)):
        if not doc['complete']:
            out.append(f'NOTE   the {who} results are of a run that was interrupted')
    groups = {schema.group_key(g): g for g in old['groups']}
    common = [g for g in new['groups'] if schema.group_key(g) in groups]
    for g in common:
        was, title = groups[schema.group_key(g)], schema.group_title(g)
        for name, label, unit in schema.FLOORS:
            c = stats.change(floor_values(was, name), floor_values(g, name))
            if c and c.verdict != 'same':
                out.append(f'FLOOR  {title}: {label.strip()} [{name}] {unit}: {text(name, c)}: '
                           'the machine itself was different')
        peers = {p['peer']: p for p in was['peers']}
        for p in g['peers']:
            if p['peer'] not in peers:
                continue
            rows, n = compare_peer(f'{title}: {p["peer"]}', peers[p['peer']], p)
            looked += n
            changed += len(rows)
            worse += sum(v == 'worse' for v, _ in rows)
            out += [line for _, line in rows]
    rows, n = compare_beside(old, new)
    looked += n
    changed += len(rows)
    worse += sum(v == 'worse' for v, _ in rows)
    out += [line for _, line in rows]
    if not common and not n:
        out.append('nothing in common: no group of the two has the same guest, memory and network')
    out.append(f'{looked} figures compared in {len(common)} groups: {changed - worse} better, '
               f'{worse} worse, the rest within noise')
    if looked:
        out.append(f'(changed: rank test with p <= {stats.ALPHA} from {stats.MIN_RUNS} runs a side '
                   'on, with fewer: ranges further apart than wide; with so many figures some '
                   'differ by chance, about one in twenty at most)')
    return out, worse


def main(argv):
    p = argparse.ArgumentParser(prog='farfork bench compare',
                                description='Say what changed between two results, beyond noise.')
    p.add_argument('old', metavar='OLD.json')
    p.add_argument('new', metavar='NEW.json')
    p.add_argument('--fail-on-regression', action='store_true',
                   help='exit code 1 when a figure is worse')
    o = p.parse_args(argv)
    try:
        lines, worse = compare(schema.load(o.old), schema.load(o.new))
    except schema.Bad as e:
        print(f'farfork bench compare: {e}', file=sys.stderr)
        return 2
    print('\n'.join(lines))
    return 1 if worse and o.fail_on_regression else 0
