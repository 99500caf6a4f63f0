# SPDX-License-Identifier: LGPL-2.1-or-later
#
# html_report.py - the results as one page that needs no other file
import base64
import html
import os

import fault_scaling
import overhead
import schema
import table

STYLE = '''
body { font: 15px/1.45 system-ui, sans-serif; max-width: 1100px; margin: 2em auto; padding: 0 1em;
       color: #1a1a1a; background: #fff }
h1 { font-size: 1.6em } h2 { font-size: 1.2em; margin-top: 2em; border-bottom: 1px solid #ccc }
h3 { font-size: 1em } .wide { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px }
th, td { text-align: right; padding: 2px 10px; border-bottom: 1px solid #e4e4e4;
         white-space: nowrap }
th:first-child, td:first-child { text-align: left } tr:hover { background: #f6f6f6 }
img { max-width: 100%; height: auto } .note { color: #a03000 } .ours { background: #eef6ff }
'''


def esc(text):
    return html.escape(str(text))


def rows_table(head, rows, marked=()):
    """rows: (label, cells); columns whose head is in marked are tinted."""
    tint = [' class="ours"' if h in marked else '' for h in head]
    out = ['<div class="wide"><table><tr><th></th>'
           + ''.join(f'<th{t}>{esc(h)}</th>' for h, t in zip(head, tint)) + '</tr>']
    for label, cells in rows:
        out.append(f'<tr><td>{esc(label)}</td>'
                   + ''.join(f'<td{t}>{esc(c)}</td>' for c, t in zip(cells, tint)) + '</tr>')
    return out + ['</table></div>']


def image(folder, name, title):
    with open(os.path.join(folder, name + '.png'), 'rb') as f:
        data = base64.b64encode(f.read()).decode('ascii')
    return f'<p><img alt="{esc(title)}" src="data:image/png;base64,{data}"></p>'


def host_rows(doc):
    h = doc['host']
    qemu = '; '.join(sorted(set(h['qemu'].values())))
    return [('started', [doc['started']]), ('ended', [doc['ended']]),
            ('CPU', [f'{h["cpu"]}, {h["cpus"]} CPUs']), ('kernel', [h['kernel']]),
            ('memory', [f'{h["memory_mib"]} MiB, transparent huge pages: {h["thp"]}']),
            ('QEMU', [qemu]), ('Farfork', [f'{h["farfork"]}, commit {h["commit"]}']),
            ('load average', [f'{h["load_before"]} before, {h["load_after"]} after']),
            ('command', ['farfork bench ' + ' '.join(doc['command'])])]


def group_part(group, images):
    ours = [p['peer'] for p in group['peers'] if table.is_ours(p)]
    out = [f'<h2>{esc(schema.group_title(group))}</h2>']
    out += [f'<p class="note">{esc(n)}</p>' for n in table.outcome_notes(group)]
    out += rows_table([p['peer'] for p in group['peers']], table.metric_rows(group), ours)
    for name, others, rows in table.ratio_tables(group):
        out += [f'<h3>{esc(name)} divided by the other, pair by pair (median, min..max)</h3>',
                *rows_table(others, rows)]
    if group['floors']:
        out += ['<h3>What this machine can do at best</h3>',
                *rows_table(['median (min..max)'], [(a, [b]) for a, b in table.floor_rows(group)])]
    threads = table.thread_rows(group)
    if threads:
        out += ['<h3>CPU seconds by thread, vCPUs left out</h3>',
                *rows_table(['side', 'threads'], [(p, [s, t]) for p, s, t in threads])]
    return out + images


def write(path, doc, folder, drawn):
    """drawn: what plots.draw() returned."""
    images = {name: image(folder, name, title) for title, name in drawn}
    out = ['<!DOCTYPE html>', '<html lang="en"><head><meta charset="utf-8">',
           '<meta name="viewport" content="width=device-width">',
           f'<title>Farfork: what a move costs</title><style>{STYLE}</style></head><body>',
           '<h1>Farfork: what a move costs</h1>',
           '<p>Medians with the smallest and the largest value. All ways to move ran one after '
           'the other, round by round. A stall is a touch of memory that took over 25 us by the '
           'guest\'s own clock.</p>']
    if not doc['complete']:
        out.append('<p class="note">Interrupted: not everything was measured.</p>')
    out += rows_table([''], host_rows(doc))
    for i, group in enumerate(doc['groups']):
        out += group_part(group, [x for name, x in images.items() if name.startswith(f'{i:02d}-')])
    out += [x for name, x in images.items() if name.startswith('memory-')]
    for group in doc.get('overhead', []):
        out += [f'<h2>{esc(overhead.title(group))}</h2>',
                *rows_table(overhead.head(group), overhead.rows(group)),
                *(f'<p class="note">{esc(n)}</p>' for n in overhead.notes(group))]
    for i, group in enumerate(doc.get('curve', [])):
        for link in group['links']:
            out += [f'<h2>{esc(fault_scaling.title(group, link))}</h2>',
                    *rows_table(fault_scaling.head(), fault_scaling.rows(link)),
                    *(f'<p class="note">{esc(n)}</p>' for n in fault_scaling.notes(group, link))]
        out += [*rows_table(['median (min..max)'],
                            [(a, [b]) for a, b in table.floor_rows(group)]),
                *(x for name, x in images.items() if name.startswith(f'curve-{i:02d}-'))]
    out += [f'<p class="note">Skipped: {esc(s["what"])}: {esc(s["why"])}</p>'
            for s in doc['skipped']]
    out.append('</body></html>')
    with open(path, 'w', encoding='utf-8') as f:
        f.write('\n'.join(out) + '\n')
