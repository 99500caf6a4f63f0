#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""failures_are_shown.py - the tests that docs/failures.md names exist, and so do their cases

Each table of the page has a last column `test`. A cell has parts, which semicolons separate: a test
and perhaps its case, `tests/e2e/quit.py`: the source quits; words may stand before it. Or it says
"no test". The case is what a string of the file begins with. That the words in quotes are those of
the code: man_matches_help.py.

Exit code    0 all exist, 1 something does not
"""
import os
import re
import sys

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..')
PAGE = 'docs/failures.md'
PART = re.compile(r'[^`]*`(tests/[^`]+)`(?:: (.+))?')


def read(path):
    with open(os.path.join(TOP, path), encoding='utf-8') as f:
        return f.read()


def cells(row):
    return [c.strip() for c in row.strip().strip('|').split('|')]


def problems_of(cell):
    for part in cell.split('; '):
        m = PART.fullmatch(part)
        if 'no test' in part:
            continue
        if not m:
            yield f'neither a test nor "no test": {part}'
        elif not os.path.isfile(os.path.join(TOP, m[1])):
            yield f'no such test: {m[1]}'
        elif m[2] and not re.search('["\']' + re.escape(m[2]), read(m[1])):
            yield f'{m[1]} has no case "{m[2]}"'


def main():
    problems, shown, unshown, head = [], 0, 0, None
    for line in read(PAGE).splitlines():
        if not line.startswith('|'):
            head = None
            continue
        row = cells(line)
        if head is None:
            head = row
            if row[-1] != 'test':
                problems.append(f'a table without tests: {line}')
        elif not set(line) <= set('|-'):
            if len(row) != len(head):
                problems.append(f'{len(row)} cells, not {len(head)}: {line[:60]}')
            unshown += row[-1] == 'no test'
            shown += row[-1] != 'no test'
            problems += [f'{row[0]}: {p}' for p in problems_of(row[-1])]
    print(f'{PAGE}: {shown} failures with tests, {unshown} without')
    if not shown:
        problems.append('no failures found')
    for p in problems:
        print(f'DIFFERS: {p}')
    return 1 if problems else 0


if __name__ == '__main__':
    sys.exit(main())
