# SPDX-License-Identifier: LGPL-2.1-or-later
#
# table.py - the results as text: a table a group, ratios, floors, threads
import clone_groups
import fault_scaling
import overhead
import peers
import schema
import stats

RATIO_METRICS = ('total_ms', 'downtime_guest_ms', 'downtime_events_ms', 'udp_silence_ms',
                 'answer_p50_us', 'answer_p99_us', 'answer_max_us', 'stall_total_ms',
                 'stall_p50_us', 'stall_p99_us', 'stall_max_us', 'work_lost_ms', 'cpu_source_s',
                 'cpu_destination_s')
ASIDE = 33              # columns of the labels
THREADS = 4             # of each side are shown


def is_ours(peer):
    return peer['peer'].split(',')[0] in peers.OURS


def cell(peer, name):
    """median (min..max)"""
    s = stats.spread(schema.values(peer, name))
    if s is None:
        return '-'
    mid = schema.shown(name, s.median)
    if s.n == 1:
        return mid
    return f'{mid} ({schema.shown(name, s.low)}..{schema.shown(name, s.high)})'


def metric_rows(group):
    """(label with unit, cell of each peer) of what at least one peer has."""
    rows = []
    for m in schema.METRICS:
        cells = [cell(p, m.name) for p in group['peers']]
        if m.main and any(c != '-' for c in cells):
            rows.append((f'{m.label}{", " + m.unit if m.unit else ""}', cells))
    return rows


def ratio_cell(ours, theirs, name):
    s = stats.ratio(schema.values(ours, name), schema.values(theirs, name))
    if s is None:
        return '-'
    return f'{s.median:.3g}' + (f' ({s.low:.3g}..{s.high:.3g})' if s.n > 1 else '')


def ratio_tables(group):
    """[(our peer, [their names], [(label, cells)])]; the first peer stands in for ours."""
    ours = [p for p in group['peers'] if is_ours(p)] or group['peers'][:1]
    out = []
    for p in ours:
        others = [q for q in group['peers'] if q is not p]
        rows = []
        for name in RATIO_METRICS:
            cells = [ratio_cell(p, q, name) for q in others]
            if any(c != '-' for c in cells):
                rows.append((schema.BY_NAME[name].label, cells))
        if rows:
            out.append((p['peer'], [q['peer'] for q in others], rows))
    return out


def floor_rows(group):
    rows = []
    for name, label, unit in schema.FLOORS:
        s = stats.spread([f.get(name) for f in group['floors']])
        if s:
            rows.append((f'{label}, {unit}', f'{schema.shown(name, s.median)} '
                         f'({schema.shown(name, s.low)}..{schema.shown(name, s.high)})'))
    return rows


def outcome_notes(group):
    """What did not go well, a line each."""
    notes = []
    for p in group['peers']:
        for outcome in ('did not converge', 'failed'):
            runs = [r for r in p['runs'] if r['outcome'] == outcome]
            if runs:
                why = f': {runs[0]["why"]}' if runs[0]['why'] else ''
                moved, lost = (stats.median([r['metrics'].get(n) for r in runs])
                               for n in ('transferred_bytes', 'work_lost_ms'))
                if moved is not None and lost is not None:
                    why += (f'; until then {schema.shown("transferred_bytes", moved)} MiB were '
                            f'transferred, {schema.shown("work_lost_ms", lost)} ms of work lost')
                notes.append(f'{p["peer"]}: {outcome}: {len(runs)} of {len(p["runs"])} runs{why}')
    return notes


def thread_rows(group):
    """(peer, side, 'name 0.123 s, ...'): medians of the threads that used most, without vCPUs."""
    rows = []
    for p in group['peers']:
        for side in ('source', 'destination'):
            names = {n for r in p['runs'] for n in r['threads'].get(side, {})}
            used = {n: stats.median([r['threads'].get(side, {}).get(n, 0) for r in p['runs']])
                    for n in names if not n.startswith('CPU ')}
            best = sorted(used, key=used.get, reverse=True)[:THREADS]
            text = ', '.join(f'{n} {used[n]:.3f}' for n in best if used[n] >= 0.0005)
            if text:
                rows.append((p['peer'], side, text))
    return rows


def lay_out(head, rows):
    widths = [max(len(c) for c in col) + 2
              for col in zip(head, *[cells for _, cells in rows])]
    lines = [' ' * ASIDE + ''.join(h.rjust(w) for h, w in zip(head, widths))]
    for label, cells in rows:
        lines.append(f'  {label}'.ljust(ASIDE) + ''.join(c.rjust(w) for c, w in zip(cells, widths)))
    return lines


def group_lines(group):
    runs = max((len(p['runs']) for p in group['peers']), default=0)
    out = [f'{schema.group_title(group)}: {runs} run{"s" if runs != 1 else ""}'
           f'{"" if runs == 1 else ", median (min..max)"}', '']
    out += lay_out([p['peer'] for p in group['peers']], metric_rows(group))
    for ours, names, rows in ratio_tables(group):
        out += ['', f'  {ours} by the other, pair by pair:', *lay_out(names, rows)]
    if group['floors']:
        out += ['', '  floors: ' + '; '.join(f'{a.strip()} {b}' for a, b in floor_rows(group))]
    threads = thread_rows(group)
    if threads:
        out += ['', '  CPU seconds by thread, vCPUs left out:']
        out += [f'    {peer:14} {side:12} {text}' for peer, side, text in threads]
    out += [f'  NOTE: {n}' for n in outcome_notes(group)]
    return out


def overhead_lines(group):
    return [overhead.title(group), '', *lay_out(overhead.head(group), overhead.rows(group)),
            *(f'  NOTE: {n}' for n in overhead.notes(group))]


def curve_lines(group):
    out = []
    for link in group['links']:
        out += [fault_scaling.title(group, link), '', *lay_out(fault_scaling.head(), fault_scaling.rows(link)),
                *(f'  NOTE: {n}' for n in fault_scaling.notes(group, link)), '']
    return out + ['  floors: ' + '; '.join(f'{a.strip()} {b}' for a, b in floor_rows(group))]


def clone_lines(group):
    return [clone_groups.title(group), '', *lay_out(clone_groups.head(group), clone_groups.rows(group)), '',
            *(f'  {n}' for n in clone_groups.notes(group)),
            '  floors: ' + '; '.join(f'{a.strip()} {b}' for a, b in floor_rows(group))]


def lines(doc):
    out = []
    for group in doc['groups']:
        out += group_lines(group) + ['']
    for group in doc.get('overhead', []):
        out += overhead_lines(group) + ['']
    for group in doc.get('curve', []):
        out += curve_lines(group) + ['']
    for group in doc.get('clone', []):
        out += clone_lines(group) + ['']
    out += [f'SKIP: {s["what"]}: {s["why"]}' for s in doc['skipped']]
    return out
