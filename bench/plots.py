# SPDX-License-Identifier: LGPL-2.1-or-later
#
# plots.py - results as plots, PNG and SVG, by gnuplot
"""
draw(doc, folder) -> [(title, name)]: of each there is folder/name.png and folder/name.svg; of
ANSWER, what the page opens with, also NARROW, which a phone shows.
Scripts are made from numbers and from titles that quote() cleans; gnuplot's text markup is off.
"""
import os
import shutil
import subprocess

import fault_scaling
import headline
import measure
import schema
import stats
from common import report

SIZE = {'png': ('pngcairo', '900,480'), 'svg': ('svg', '900,480')}
ANSWER, NARROW = 'answer', {'narrow.png': ('pngcairo', '380,380')}
COLOURS = {'pre-copy': '#bbbbbb', 'multifd': '#808080', 'post-copy': '#e6a500',
           'preempt': '#d55e00', 'hybrid': '#aa4499',
           'attach': '#56b4e9', 'rdma-tcp': '#0072b2', 'rdma-verbs': '#009e73'}
MORE = ['#cc79a7', '#117733', '#332288', '#882255']     # of peers that differ in options alone
CURVE_COLOURS = [['#0072b2', '#d55e00', '#009e73'], ['#56b4e9', '#e6a500', '#88d8b0']]
BARS = [('total_ms', 'total time'), ('downtime_guest_ms', 'downtime, guest'),
        ('udp_silence_ms', 'no answer'),
        ('stall_total_ms', 'stalled in all'), ('work_lost_ms', 'work lost')]
LIMIT_S = 60


class NoGnuplot(Exception):
    """There is none, or it failed."""


def quote(text):
    return '"' + ''.join(c for c in text if c.isprintable() and c not in '"\\`$') + '"'


def colours(group):
    """{peer: colour}"""
    out, more = {}, list(MORE)
    for p in group['peers']:
        own = COLOURS.get(p['peer'].split(',')[0], '#000000')
        if own in out.values() and more:
            own = more.pop(0)
        out[p['peer']] = own
    return out


def data(name, rows):
    return [f'${name} << END', *[' '.join(f'{x:.6g}' for x in row) for row in rows], 'END']


def lines_plot(title, xlabel, ylabel, series, extra=(), how='lines'):
    """series: [(name, [(x, y), ...], colour)]"""
    out, parts = [], []
    for i, (name, rows, colour) in enumerate(series):
        out += data(f'd{i}', rows)
        parts.append(f'$d{i} using 1:2 with {how} linewidth 2 '
                     f'linecolor rgb "{colour}" title {quote(name)}')
    return [*out, f'set title {quote(title)}', f'set xlabel {quote(xlabel)}',
            f'set ylabel {quote(ylabel)}', 'set grid', 'set key below', *extra,
            'plot ' + ', '.join(parts)]


def stall_cdf(group):
    series = []
    for p in group['peers']:
        hist = report.merge(report.as_hist(r['hist']) for r in p['runs']
                            if r['outcome'] == 'completed')
        total, seen, rows = sum(hist.values()), 0, []
        for b in sorted(hist):
            seen += hist[b]
            rows.append((report.bucket_high(b) / 1000, seen / total))
        if rows:
            series.append((f'{p["peer"]} ({total})', rows, colours(group)[p['peer']]))
    if not series:
        return None
    return lines_plot('How long the guest waited for a page', 'us, one stall (stalls in all runs)',
                      'part of all stalls', series, ['set logscale x', 'set yrange [0:1.02]'])


def time_line(group, shown=None, extra=()):
    """Of the first round: it has the longest time around. shown: of these peers alone."""
    series = []
    for p in shown or group['peers']:
        rows = [(row[0] / 1000, row[1] * 1000 / group['slot_ms']) for r in p['runs'][:1]
                for row in r['timeline']]
        if rows:
            series.append((p['peer'], rows, colours(group)[p['peer']]))
    if not series:
        return None
    return lines_plot('What the guest got done (first round)', 's after the command to move',
                      'answers per second' if group['workload'] in measure.OUTSIDE
                      else 'touches per second', series,
                      ['set yrange [0:*]', 'set format y "%.0s%c"', *extra], 'steps')


def answer(doc):
    """[(title, file name, script)]: the time line of two moves, from near."""
    h = headline.choose(doc)
    script = h and time_line(h.group, [h.theirs, h.ours],
                             [f'set xrange [-1:{headline.end_s(h) + 1.5:.2f}]'])
    return [(f'{schema.group_title(h.group)}: time line', ANSWER, script)] if script else []


def by_slot(group, column, title):
    """Likewise: us of each slot, as ms."""
    series = []
    for p in group['peers']:
        rows = [(row[0] / 1000, row[column] / 1000) for r in p['runs'][:1]
                for row in r['timeline'] if row[column]]
        if rows:
            series.append((p['peer'], rows, colours(group)[p['peer']]))
    if not series:
        return None
    return lines_plot(f'{title} (first round)', 's after the command to move', 'ms', series,
                      ['set logscale y'])


def waits(group):
    what = 'an answer' if group['workload'] in measure.OUTSIDE else 'a touch'
    return by_slot(group, 2, f'Longest time without {what}')


def medians(group):
    return by_slot(group, 3, 'Median answer') if group['workload'] == 'redis' else None


def bars(group):
    rows = []
    for p in group['peers']:
        row = []
        for name, _ in BARS:
            s = stats.spread(schema.values(p, name))
            # a logarithmic axis has no place for 0 and less
            row += [max(x, 0.01) for x in (s.median, s.low, s.high)] if s else [0.01] * 3
        rows.append(row)
    if not any(x > 0.01 for row in rows for x in row):
        return None
    out, parts = [], []
    for i, row in enumerate(rows):
        out += data(f'd{i}', [[k, *row[3 * k:3 * k + 3]] for k in range(len(BARS))])
        title = group['peers'][i]['peer']
        colour = colours(group)[title]
        at = f'($1+{(i + 0.5) / len(rows) * 0.8 - 0.4:.4f})'
        parts += [f'$d{i} using {at}:2:({0.72 / len(rows):.4f}) with boxes '
                  f'linecolor rgb "{colour}" title {quote(title)}',
                  f'$d{i} using {at}:2:3:4 with yerrorbars linecolor rgb "black" '
                  'pointtype 0 notitle']
    tics = ', '.join(f'{quote(label)} {k}' for k, (_, label) in enumerate(BARS))
    return [*out, f'set title {quote("What a move costs: median, from min to max")}',
            'set ylabel "ms"', 'set logscale y', 'set style fill solid 0.8', 'set grid ytics',
            'set key below', f'set xtics ({tics})',
            f'set xrange [-0.6:{len(BARS) - 0.4}]',
            'plot ' + ', '.join(parts)]


def by_memory(groups, metric, title):
    """Cost against the guest's memory; None with fewer than two sizes."""
    series = []
    for name, colour in colours(groups[0]).items():
        rows = []
        for g in sorted(groups, key=lambda g: g['mem_mib']):
            value = stats.median([v for p in g['peers'] if p['peer'] == name
                                  for v in schema.values(p, metric)])
            if value is not None:
                rows.append((g['mem_mib'], value))
        if len(rows) > 1:
            series.append((name, rows, colour))
    if not series:
        return None
    return lines_plot(title, 'MiB of guest memory', 'ms', series,
                      ['set logscale x 2', 'set logscale y'])


def by_threads(group, figures, title, ylabel, extra):
    """Of the threads that fault; figures: [(name, suffix of the title, 0 or 1: dark or light)]"""
    series = []
    for i, link in enumerate(group['links']):
        for name, suffix, shade in figures:
            rows = [(p['threads'], stats.median(fault_scaling.values(p, name))) for p in link['points']]
            rows = [r for r in rows if r[1] is not None]
            if rows:
                series.append((link['link'] + suffix, rows, CURVE_COLOURS[shade][i % 3]))
    if not series:
        return None
    return lines_plot(title, 'threads that fault', ylabel, series, ['set logscale x 2', *extra])


def curve_plots(doc):
    out = []
    for i, g in enumerate(doc.get('curve', [])):
        for name, script in (
                ('rate', by_threads(g, [('faults_per_s', '', 0)], 'Page faults served',
                                    'faults per second', ['set yrange [0:*]'])),
                ('latency', by_threads(g, [('p50_us', ' p50', 0), ('p99_us', ' p99', 1)],
                                       'How long a fault took', 'us', ['set logscale y']))):
            if script:
                out.append((f'threads that fault, {g["net"]}: {name}', f'curve-{i:02d}-{name}',
                            script))
    return out


def plan(doc):
    """[(title, file name, script without terminal)]"""
    out, alike = answer(doc), {}
    for i, g in enumerate(doc['groups']):
        for name, make in (('bars', bars), ('stalls', stall_cdf), ('timeline', time_line),
                           ('waits', waits), ('medians', medians)):
            script = make(g)
            if script:
                out.append((f'{schema.group_title(g)}: {name}', f'{i:02d}-{name}', script))
        key = tuple(g[k] for k in schema.GROUP_KEY if k != 'mem_mib')
        alike.setdefault(key, []).append(g)
    for i, groups in enumerate(g for g in alike.values() if len(g) > 1):
        for metric, what in (('total_ms', 'Total time'), ('stall_total_ms', 'Guest stalled'),
                             ('downtime_events_ms', 'Downtime')):
            title = f'{what} against memory'
            script = by_memory(groups, metric, title)
            if script:
                g = groups[0]
                out.append((f'{g["workload"]}, {g["memory"]}, {g["net"]}: {title}',
                            f'memory-{i:02d}-{metric}', script))
    return out + curve_plots(doc)


def draw(doc, folder):
    return draw_each(plan(doc), folder)


def draw_each(plots, folder):
    """plots: (title, name, gnuplot's lines); returns as draw() does"""
    if not shutil.which('gnuplot'):
        raise NoGnuplot('install package gnuplot-nox (`make bench` does)')
    drawn, script = [], []
    for title, name, body in plots:
        for kind, (terminal, size) in {**SIZE, **(NARROW if name == ANSWER else {})}.items():
            script += ['reset',
                       f'set terminal {terminal} size {size} noenhanced background "white"',
                       f'set output {quote(os.path.join(folder, name + "." + kind))}', *body,
                       'unset output']
        drawn.append((title, name))
    done = subprocess.run(['gnuplot'], input='\n'.join(script) + '\n', stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        raise NoGnuplot(f'gnuplot: {done.stdout.strip()[-300:]}')
    return drawn
