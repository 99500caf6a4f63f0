#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""words.py - no code decides by the words of a message

usage: tests/layout/words.py

A message is for people, and changes. What is compared with one, an error's text, QEMU's "error-desc" or a reason
that was passed on, is found; where there is no code to decide by yet, the function is named here.
"""
import os
import re
import sys

import clocks

FOLDERS = ('base', 'rdma', 'uffd', 'migrate', 'probe', 'clone', 'vm', 'control', 'cli')
COMPARES = re.compile(r'\bstr(?:str|casestr|n?cmp|n?casecmp)\s*\(')
MESSAGE = re.compile(r'\bwhy(?:\.|->)text|\berr(?:\.|->)text|->error\b|"error-desc"|\breason\b|(?<!["-])\berror\b')
# function: why it may
MAY = {('control/move/move_parent.c', 'move_find_here'): 'it says nothing twice',
       ('cli/cmd_doctor.c', 'check_attach'): 'it shows a part'}
COMMENT = re.compile(r'/\*.*?\*/', re.S)


def arguments(text, at):
    """Up to the parenthesis that ends them."""
    depth = 1
    for i in range(at, len(text)):
        depth += {'(': 1, ')': -1}.get(text[i], 0)
        if not depth:
            return text[at:i]
    return text[at:]


def find_wrong(path, text):
    text = COMMENT.sub(clocks.blank, text)
    starts = [(m.end(), m[1]) for m in clocks.FUNCTION.finditer(text)]
    wrong, used = [], set()
    for m in COMPARES.finditer(text):
        if not MESSAGE.search(arguments(text, m.end())):
            continue
        function = ([''] + [name for at, name in starts if at <= m.start()])[-1]
        if (path, function) in MAY:
            used.add((path, function))
            continue
        line = text.count('\n', 0, m.start()) + 1
        wrong.append(f'{path}:{line}: {function}(): decides by the words of a message: return a code, or ask')
    return wrong, used


def check_itself():
    bad = 'int f(void)\n{\n    return rc && !strstr(why->text, "x") && strcmp(text_of(o, "error-desc"), "y");\n}\n'
    good = 'int f(void)\n{\n    return strstr(name, "x") || !*why->text;\n}\n'
    if len(find_wrong('a.c', bad)[0]) != 2 or find_wrong('a.c', good)[0]:
        sys.exit('words.py: does not find what it looks for')


def main():
    check_itself()
    wrong, used, n = [], set(), 0
    for folder in FOLDERS:
        for where, _, names in sorted(os.walk(os.path.join(clocks.TOP, folder))):
            for name in sorted(names):
                path = os.path.relpath(os.path.join(where, name), clocks.TOP)
                if not name.endswith('.c') or path.startswith('control/attach/'):
                    continue
                n += 1
                with open(os.path.join(clocks.TOP, path), encoding='utf-8') as f:
                    found, may = find_wrong(path, f.read())
                wrong += found
                used |= may
    wrong += [f'{path}: {function}() does not any more: take it out of tests/layout/words.py'
              for path, function in sorted(set(MAY) - used)]
    for line in wrong:
        print(line)
    print(f'{n} files: {"decisions by words" if wrong else "nothing is decided by the words of a message"}')
    return 1 if wrong or n < 100 else 0


if __name__ == '__main__':
    sys.exit(main())
