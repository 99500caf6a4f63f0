# SPDX-License-Identifier: LGPL-2.1-or-later
#
# html_report.py - the results as one page that needs no other file
"""
The answer comes first: three ratios and the guest's time line (headline.py). Then each guest with
the figures of SHORT; what is longer is folded. Our own ways are the first columns, so that they are
in view on any screen; tests/bench/page_test.py looks at that in a browser.
"""
import base64
import html
import os
import re

import clone_groups
import fault_scaling
import forks
import headline
import overhead
import plots
import schema
import table

STYLE = '''
body { font: 15px/1.45 system-ui, sans-serif; max-width: 1100px; margin: 1em auto; padding: 0 1em;
       color: #1a1a1a; background: #fff; overflow-wrap: break-word }
h1 { font-size: 1.5em; margin: .5em 0 } h3 { font-size: 1em }
h2 { font-size: 1.2em; margin-top: 2em; border-bottom: 1px solid #ccc }
.wide { overflow-x: auto } summary { cursor: pointer; padding: .3em 0; color: #0050a0 }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px }
th, td { text-align: right; vertical-align: top; padding: 2px 10px; border-bottom: 1px solid #e4e4e4;
         white-space: nowrap }
th { min-width: 5.2em; max-width: 9em; white-space: normal; overflow-wrap: anywhere }
th:first-child, td:first-child { text-align: left; white-space: normal; background: #fff;
         position: sticky; left: 0; min-width: 6em; max-width: min(16em, 36vw) }
td small { display: block; color: #666; font-size: 11px }
.text td { text-align: left; white-space: normal; overflow-wrap: anywhere }
img { max-width: 100%; height: auto } .note { color: #a03000 } .ours { background: #eef6ff }
.ratios { display: flex; flex-wrap: wrap; gap: 12px }
.ratio { flex: 1 1 200px; padding: 8px 14px; border: 1px solid #ccc; border-radius: 6px }
.ratio b { display: block; font-size: 2.2em; line-height: 1.2 } .ratio small { display: block }
.less b { color: #006040 } .more b { color: #a03000 }
'''
# of each guest at first sight: what it felt, and what it took
SHORT = (('total_ms', 'total time, ms'), ('downtime_events_ms', 'downtime, STOP to RESUME, ms'),
         ('downtime_guest_ms', 'downtime, guest, ms'),
         ('udp_silence_ms', 'longest without an answer, ms'),
         ('answer_p99_us', 'one answer in the move, p99, us'),
         ('stall_total_ms', 'guest stalled, in all, ms'), ('stall_p50_us', 'one stall, p50, us'),
         ('stall_p99_us', 'one stall, p99, us'), ('cpu_source_s', 'CPU, source, s'),
         ('cpu_destination_s', 'CPU, destination, s'))
LONG = 14               # a table with more rows is folded
SPREAD = re.compile(r'(\S+) \((\S+)\)')


def esc(text):
    return html.escape(str(text))


def cell(text):
    """The spread under its median, so that a column is narrow."""
    m = SPREAD.fullmatch(str(text))
    return f'{esc(m[1])}<small>{esc(m[2])}</small>' if m else esc(text)


def rows_table(head, rows, marked=(), text=False):
    """rows: (label, cells); columns whose head is in marked are tinted; text: cells wrap."""
    tint = [' class="ours"' if h in marked else '' for h in head]
    out = ['<div class="wide"><table class="text">' if text else '<div class="wide"><table>']
    if any(head):
        out += ['<tr><th></th>'
                + ''.join(f'<th{t}>{esc(h)}</th>' for h, t in zip(head, tint)) + '</tr>']
    for label, cells in rows:
        out.append(f'<tr><td>{esc(label)}</td>'
                   + ''.join(f'<td{t}>{cell(c)}</td>' for c, t in zip(cells, tint)) + '</tr>')
    return out + ['</table></div>']


def folded(title, lines):
    return ['<details>', f'<summary>{esc(title)}</summary>', *lines, '</details>'] if lines else []


def perhaps_folded(title, head, rows, marked=()):
    lines = rows_table(head, rows, marked)
    return folded(title, lines) if len(rows) > LONG else lines


def data_url(folder, name):
    with open(os.path.join(folder, name + '.png'), 'rb') as f:
        return 'data:image/png;base64,' + base64.b64encode(f.read()).decode('ascii')


def image(folder, name, title):
    img = f'<img alt="{esc(title)}" src="{data_url(folder, name)}">'
    if name == plots.ANSWER:
        img = (f'<picture><source media="(max-width: 600px)" srcset="'
               f'{data_url(folder, name + ".narrow")}">{img}</picture>')
    return f'<p>{img}</p>'


def host_rows(doc):
    h = doc['host']
    qemu = '; '.join(sorted(set(h['qemu'].values())))
    return [('started', [doc['started']]), ('ended', [doc['ended']]),
            ('CPU', [f'{h["cpu"]}, {h["cpus"]} CPUs']), ('kernel', [h['kernel']]),
            ('memory', [f'{h["memory_mib"]} MiB, transparent huge pages: {h["thp"]}']),
            ('QEMU', [qemu]), ('Farfork', [f'{h["farfork"]}, commit {h["commit"]}']),
            ('load average', [f'{h["load_before"]} before, {h["load_after"]} after']),
            ('command', ['farfork bench ' + ' '.join(doc['command'])])]


# --- the answer ---

def ratio_box(r):
    runs = f'{r.range.n} pair{"s" if r.range.n != 1 else ""}'
    between = f', {r.range.low:.2f} to {r.range.high:.2f}' if r.range.n > 1 else ''
    side = 'less' if r.range.high < 1 else 'more' if r.range.low > 1 else 'even'
    return (f'<div class="ratio {side}">'
            f'<b>{r.range.median:.2f}</b>{esc(r.label)}'
            f'<small>{esc(r.ours)} against {esc(r.theirs)}</small><small>{runs}{between}</small></div>')


def answer_part(doc, images):
    h = headline.choose(doc)
    if not h:
        return ['<p>No way of ours and way of QEMU\'s own both moved a guest: no ratios.</p>'] \
            if doc['groups'] else []
    ours, theirs = h.ours['peer'], h.theirs['peer']
    out = ['<section id="answer">',
           f'<p><b>{esc(ours)}</b> divided by <b>{esc(theirs)}</b>, QEMU\'s own, for this guest: '
           f'{esc(schema.group_title(h.group))}. Below 1, {esc(ours)} costs less.</p>',
           '<div class="ratios">', *map(ratio_box, headline.ratios(h.group, h.ours, h.theirs)),
           '</div>']
    for p in h.others:
        found = headline.ratios(h.group, p, h.theirs)
        if found:
            out.append(f'<p>{esc(p["peer"])}: ' + '; '.join(
                f'{esc(r.label)} {r.range.median:.2f}' for r in found) + '.</p>')
    return out + images + ['</section>']


def glance_part(doc):
    """The same of every guest, if there are several."""
    chosen = list(filter(None, map(headline.of_group, doc['groups'])))
    if len(chosen) < 2:
        return []
    found = [{r.label: f'{r.range.median:.2f}' for r in headline.ratios(h.group, h.ours, h.theirs)}
             for h in chosen]
    head = [label for choice in headline.ASKED for _, label in choice
            if any(label in f for f in found)]
    rows = [(schema.group_title(h.group), [*(f.get(label, '-') for label in head),
                                           f'{h.ours["peer"]} by {h.theirs["peer"]}'])
            for h, f in zip(chosen, found)]
    return ['<h2>Every guest</h2>', *perhaps_folded(f'{len(rows)} guests', [*head, 'compared'],
                                                    rows)]


# --- a guest ---

def group_part(group, images):
    """images: {name: image}"""
    group = {**group, 'peers': headline.our_ways(group) + headline.qemus_ways(group)}
    names = [p['peer'] for p in group['peers']]
    ours = [p['peer'] for p in headline.our_ways(group)]
    short = [(label, [table.cell(p, name) for p in group['peers']]) for name, label in SHORT]
    out = [f'<h2>{esc(schema.group_title(group))}</h2>']
    out += [f'<p class="note">{esc(n)}</p>' for n in table.outcome_notes(group)]
    out += rows_table(names, [r for r in short if any(c != '-' for c in r[1])], ours)
    out += [x for name, x in images.items() if name.endswith('-timeline')]
    out += folded('Other plots', [x for name, x in images.items()
                                  if not name.endswith('-timeline')])
    out += folded('All figures', rows_table(names, table.metric_rows(group), ours))
    for name, others, rows in table.ratio_tables(group):
        out += folded(f'{name} divided by the others, pair by pair (median, min..max)',
                      rows_table(others, rows, ours))
    if group['floors']:
        out += folded('What this machine can do at best', floor_table(group))
    threads = table.thread_rows(group)
    if threads:
        out += folded('CPU seconds by thread, vCPUs left out',
                      rows_table(['side', 'threads'], [(p, [s, t]) for p, s, t in threads],
                                 text=True))
    return out


def floor_table(group):
    return rows_table(['median (min..max)'], [(a, [b]) for a, b in table.floor_rows(group)])


def notes(lines):
    return [f'<p class="note">{esc(n)}</p>' for n in lines]


def curve_part(group, images):
    out = []
    for link in group['links']:
        out += [f'<h2>{esc(fault_scaling.title(group, link))}</h2>',
                *rows_table(fault_scaling.head(), fault_scaling.rows(link)),
                *notes(fault_scaling.notes(group, link))]
    return out + folded('What this machine can do at best', floor_table(group)) + images


def clone_part(group):
    def is_stock(way):
        return bool(way['way'] in forks.BY_NAME and forks.BY_NAME[way['way']].stock)

    group = {**group, 'ways': sorted(group['ways'], key=is_stock)}
    ours = [w['way'] for w in group['ways'] if not is_stock(w)]
    return [f'<h2>{esc(clone_groups.title(group))}</h2>', *notes(clone_groups.notes(group)),
            *perhaps_folded('All figures', clone_groups.head(group), clone_groups.rows(group), ours)]


def write(path, doc, folder, drawn):
    """drawn: what plots.draw() returned."""
    images = {name: image(folder, name, title) for title, name in drawn}

    def of(prefix):
        return {name: x for name, x in images.items() if name.startswith(prefix)}

    out = ['<!DOCTYPE html>', '<html lang="en"><head><meta charset="utf-8">',
           '<meta name="viewport" content="width=device-width, initial-scale=1">',
           f'<title>Farfork: what a move costs</title><style>{STYLE}</style></head><body>',
           '<h1>Farfork: what a move costs</h1>']
    if not doc['complete']:
        out += notes(['Interrupted: not everything was measured.'])
    out += answer_part(doc, list(of(plots.ANSWER).values()))
    out += folded(f'Measured {doc["started"][:10]} on {doc["host"]["cpu"]}, '
                  f'Linux {doc["host"]["kernel"]}; how', [
                      '<p>Medians with the smallest and the largest value. All ways to move ran one '
                      'after the other, round by round. A stall is a touch of memory that took over '
                      '25 us by the guest\'s own clock.</p>',
                      *rows_table([''], host_rows(doc), text=True)])
    out += glance_part(doc)
    for i, group in enumerate(doc['groups']):
        out += group_part(group, of(f'{i:02d}-'))
    out += list(of('memory-').values())
    for group in doc.get('overhead', []):
        out += [f'<h2>{esc(overhead.title(group))}</h2>',
                *rows_table(overhead.head(group), overhead.rows(group)),
                *notes(overhead.notes(group))]
    for i, group in enumerate(doc.get('curve', [])):
        out += curve_part(group, list(of(f'curve-{i:02d}-').values()))
    for group in doc.get('clone', []):
        out += clone_part(group)
    out += notes(f'Skipped: {s["what"]}: {s["why"]}' for s in doc['skipped'])
    out.append('</body></html>')
    with open(path, 'w', encoding='utf-8') as f:
        f.write('\n'.join(out) + '\n')
