#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""names.py - a function's name stands once; one that others call says what it is about

usage: tests/layout/names.py [BUILD]

No two files define functions of one name. A function that another file can call has two words, of
which one is its subject. A header's guard is its path, the first line of a C file its name, and a
test reaches code by headers. Definitions are found by this project's layout of code: whatever nm
finds under BUILD/obj has to be among them.
"""
import collections
import os
import re
import subprocess
import sys

TOP = os.environ.get('FARFORK_TOP', '.')
FOLDERS = ('base/', 'rdma/', 'uffd/', 'migrate/', 'probe/', 'clone/', 'vm/', 'control/', 'cli/',
           'bench/', 'qemu-patches/src/')
# As those of the C library that they stand for; and what the C library calls
ONE_WORD = {'main', 'xcalloc', 'xprintf', 'xrealloc', 'xstrdup', 'xvprintf'}
# What stands for functions where QEMU is built without them
STUBS = {'qemu-patches/src/rdma-postcopy.h'}
ATTRIBUTE = re.compile(r'\b(?:__attribute__\(\(.*?\)\)|_Noreturn|G_NORETURN)\s*')
DEFINITION = re.compile(r'^((?:\w+[ \t*]+)+)(\w+)\(([^;{}]*)\)\n\{', re.M)


def definitions(text):
    """[(name, whether it is static)] of a file"""
    return [(m[2], 'static' in m[1].split())
            for m in DEFINITION.finditer(ATTRIBUTE.sub('', text))]


def find_wrong_names(texts):
    """Lines that say what is wrong with the functions of {file: text}"""
    where, wrong = collections.defaultdict(set), []
    for f, text in sorted(texts.items()):
        if f in STUBS:
            continue
        for name, static in definitions(text):
            where[name].add(f)
            if not static and '_' not in name and name not in ONE_WORD:
                wrong.append(f'{f}: {name}(): other files call it: name its subject too')
    wrong += [f'{name}() is defined in {" ".join(sorted(fs))}: make them one, or name them apart'
              for name, fs in sorted(where.items()) if len(fs) > 1 and name != 'main']
    return wrong


def find_wrong_heads(texts):
    wrong = []
    for f, text in sorted(texts.items()):
        if f.startswith('qemu-patches/'):  # as QEMU's files begin
            continue
        name = os.path.basename(f)
        if not text.split('\n')[2].startswith(f' * {name} - '):
            wrong.append(f'{f}: the third line is not " * {name} - what it does"')
        guard = 'FF_' + re.sub(r'\W', '_', f).upper()
        lines = f'\n#ifndef {guard}\n#define {guard}\n'
        if f.endswith('.h') and f.startswith(FOLDERS) and lines not in text:
            wrong.append(f'{f}: its guard is not {guard}')
    return wrong


def find_missed(texts, build):
    """Functions of the objects that definitions() does not find"""
    missed, n = [], 0
    for f, text in sorted(texts.items()):
        obj = os.path.join(build, 'obj', f[:-2] + '.o')
        if not f.endswith('.c') or not os.path.exists(obj):
            continue
        n += 1
        found = {name for name, _ in definitions(text)}
        out = subprocess.run(['nm', obj], check=True, capture_output=True, text=True).stdout
        missed += [f'{f}: {w[-1]}() is not seen by this test'
                   for w in map(str.split, out.splitlines())
                   if w[-2] == 'T' and w[-1] not in found]
    if not n:
        sys.exit(f'{build}/obj has no objects: make lib')
    return missed


def self_test():
    """It finds what is wrong, and nothing where nothing is"""
    one = 'static int a_b(int c,\n               int d)\n{\n    e();\n}\n'
    assert definitions(one) == [('a_b', True)]
    assert definitions('void __attribute__((noreturn)) f(void)\n{\n') == [('f', False)]
    assert len(find_wrong_names({'x.c': one, 'y.c': one})) == 1
    assert len(find_wrong_names({'x.c': 'int serve(void)\n{\n}\n'})) == 1
    assert not find_wrong_names({'x.c': one, 'y.c': 'int main(void)\n{\n}\n'})
    assert len(find_wrong_heads({'vm/b.h': '\n\n * c.h - x\n#ifndef X\n'})) == 2
    assert not find_wrong_heads({'vm/b.h': '/*\n *\n * b.h - x\n */\n#ifndef FF_VM_B_H\n'
                                          '#define FF_VM_B_H\n'})


def main():
    build = sys.argv[1] if len(sys.argv) > 1 else 'build'
    self_test()
    out = subprocess.run(['git', '-C', TOP, 'ls-files', '*.c', '*.h'], check=True,
                         capture_output=True, text=True).stdout
    every = {}
    for f in out.split():
        if os.path.exists(os.path.join(TOP, f)):
            with open(os.path.join(TOP, f), encoding='utf-8') as file:
                every[f] = file.read()
    code = {f: text for f, text in every.items() if f.startswith(FOLDERS)}
    wrong = find_wrong_names(code) + find_wrong_heads(every) + find_missed(code, build)
    wrong += [f'{f}: a test reaches code by a header, not by extern' for f, text in every.items()
              if re.match(r'tests/(?!guests/).*\.c$', f) and re.search(r'^\s*extern\b', text, re.M)]
    print('\n'.join(wrong + [f'{len(code)} files: {len(wrong) or "no"} names that are wrong']))
    sys.exit(1 if wrong else 0)


main()
