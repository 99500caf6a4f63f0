#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""names_exist.py - files and functions that the documentation names exist

In PAGES each `path/of/a/file` and each `file.c` exists, and each `function()` is defined: in C, in a
shell script, or, for one of QEMU's, in the patches or in our calls. Where a line of a table or of a
numbered list names functions together with files, each of these functions is defined in one of
these files: so a walk in CONTRIBUTING.md leads to its place.

Exit code    0 all exist, 1 something does not
"""
import os
import re
import subprocess
import sys

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..')
PAGES = ('docs/architecture.md', 'docs/invariants.md', 'docs/failures.md', 'CONTRIBUTING.md')
WALKS = ('CONTRIBUTING.md', 'How to find your way', 5)
FILE = r'[A-Za-z0-9_.-]+\.(?:c|h|py|mk|md|map|patch)'
# Of the C library and the kernel
OTHERS = {'fork', '_exit', 'main', 'mlockall', 'mincore', 'madvise', 'memcpy', 'poll'}
problems = []


def differ(text):
    problems.append(text)


def read(path):
    with open(os.path.join(TOP, path), encoding='utf-8', errors='replace') as f:
        return f.read()


def all_files():
    out = subprocess.run(['git', '-C', TOP, 'ls-files', '--cached', '--others', '--exclude-standard'],
                         check=True, capture_output=True, text=True).stdout
    return [f for f in out.splitlines() if os.path.isfile(os.path.join(TOP, f))]


def functions(files):
    """{function: the files that define it}; '' stands for QEMU"""
    found = {}
    for f in files:
        if f.endswith(('.c', '.h')):
            # no call, no prototype: the type is in the first column, and no ';' ends the line
            begins = r'^[A-Za-z_]' if f.endswith('.c') else r'^static inline '
            names = re.findall(begins + r'[^;=#{}\n]*?\b(\w+)\([^;\n]*$', read(f), re.M)
            if f.startswith('qemu-patches/src/'):
                for name in re.findall(r'\b(\w+)\(', read(f)):
                    found.setdefault(name, set()).add('')
        elif f.startswith('guest/'):
            names = re.findall(r'^(\w+)\(\) *\{', read(f), re.M)
        elif f.endswith('.patch'):
            for name in re.findall(r'\b(\w+)\(', read(f)):
                found.setdefault(name, set()).add('')
            continue
        else:
            continue
        for name in names:
            found.setdefault(name, set()).add(f)
    return found


def check_path(page, token, files, folders):
    """Whether @token, which looks like a path, is one"""
    path = token.rstrip('/')
    if '*' in path:
        pattern = re.compile(re.escape(path).replace(r'\*', '[^/]*') + '$')
        known = any(map(pattern.match, files))
    elif '/' in token:
        known = path in files or path in folders
    else:
        known = any(os.path.basename(f) == path for f in files)
    if not known:
        differ(f'{page}: no such file: {token}')


def check_line(page, line, where):
    """A line of a table or list: its functions are in its files"""
    named = [t for t in re.findall(r'`([^`\s]+)`', line) if '/' in t and '()' not in t]
    for name in re.findall(r'`(\w+)\(\)`', line):
        if named and not where.get(name, set()) & set(named):
            differ(f'{page}: {name}() is not in {", ".join(named)}, but in '
                   f'{", ".join(sorted(where.get(name, ["no file"])))}')


def check_page(page, files, folders, where):
    text = re.sub(r'^    .*$', '', read(page), flags=re.M) if page != 'docs/invariants.md' \
        else read(page)
    tops = {f.split('/')[0] for f in folders}
    paths = calls = 0
    for token in re.findall(r'`([^`]+)`', text):  # words of a command may stand on two lines
        token = re.sub(r'\s+', ' ', token)
        call = re.fullmatch(r'(\w+)\(\)', token)
        is_path = re.fullmatch(r'[A-Za-z0-9_./*-]+', token) and \
            (token.split('/')[0] in tops and '/' in token or re.fullmatch(FILE, token))
        if call:
            calls += 1
            if call[1] not in where and call[1] not in OTHERS:
                differ(f'{page}: no such function: {token}')
        elif is_path:
            paths += 1
            check_path(page, token, files, folders)
    for line in text.splitlines():
        if re.match(r'\||\d+\. `', line):
            check_line(page, line, where)
    print(f'{page}: {paths} paths, {calls} functions')
    return paths + calls


def check_walks(page, heading, wanted):
    part = read(page).partition(f'## {heading}\n')[2].split('\n## ')[0]
    walks = [r for r in part.splitlines() if re.match(r'\| .*`', r)]
    for walk in walks:
        if not re.search(r'`\w+\(\)`', walk) or not re.search(r'`\w[^`]*/[^`]*`', walk):
            differ(f'{page}: a walk without a function or a file: {walk}')
    if len(walks) < wanted:
        differ(f'{page}: "{heading}" has {len(walks)} walks, not {wanted}')


def main():
    files = set(all_files())
    folders = {f[:m.start()] for f in files for m in re.finditer('/', f)}
    where = functions(sorted(files))
    if not sum(check_page(p, files, folders, where) for p in PAGES):
        differ('no names found at all')
    check_walks(*WALKS)
    for p in problems:
        print(f'DIFFERS: {p}')
    return 1 if problems else 0


if __name__ == '__main__':
    sys.exit(main())
