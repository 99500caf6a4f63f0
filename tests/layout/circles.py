#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""circles.py - no two files need each other, no file name stands twice

usage: tests/layout/circles.py [BUILD]

A file needs another that it includes, or that defines a function or variable which it uses: that
is read from the objects under BUILD/obj. Files that need each other, directly or around, are a
circle. QEMU's side is built elsewhere: of it only includes are looked at.
"""
import collections
import os
import re
import subprocess
import sys

TOP = os.environ.get('FARFORK_TOP', '.')
FOLDERS = ('base', 'rdma', 'uffd', 'migrate', 'probe', 'clone', 'vm', 'control', 'cli', 'include',
           'qemu-patches/src')
# What has to be called so: a folder's own page, and what QEMU's build looks for
TWICE = {'README.md', 'run', 'meson.build'}
# Each version of QEMU has a series of its own, of the same patches
SERIES = re.compile(r'qemu-patches/[0-9.]+/')


def git_files():
    out = subprocess.run(['git', '-C', TOP, 'ls-files'], check=True, capture_output=True, text=True)
    return [f for f in out.stdout.split('\n') if f and os.path.exists(os.path.join(TOP, f))]


def find_circles(needs):
    """Tarjan's strongly connected components of {name: {name: why}}, those of two and more"""
    index, low, stack, on, circles = {}, {}, [], set(), []

    def visit(v):
        index[v] = low[v] = len(index)
        stack.append(v)
        on.add(v)
        for w in needs.get(v, ()):
            if w not in index:
                visit(w)
                low[v] = min(low[v], low[w])
            elif w in on:
                low[v] = min(low[v], index[w])
        if low[v] == index[v]:
            circle = []
            while not circle or circle[-1] != v:
                circle.append(stack.pop())
                on.discard(circle[-1])
            if len(circle) > 1:
                circles.append(sorted(circle))

    sys.setrecursionlimit(10000)
    for v in sorted(needs):
        if v not in index:
            visit(v)
    return circles


def includes(files):
    """{file: {file: '#include'}}, by names, which stand once"""
    at = {os.path.basename(f): f for f in files}
    needs = collections.defaultdict(dict)
    for f in files:
        with open(os.path.join(TOP, f)) as text:
            for name in re.findall(r'^#include "([^"]+)"', text.read(), re.M):
                if name in at and at[name] != f:
                    needs[f][at[name]] = '#include'
    return needs


def calls(files, build):
    """{object: {object: names}}"""
    defines, uses = {}, {}
    for f in files:
        obj = os.path.join(build, 'obj', f[:-2] + '.o')
        if not f.endswith('.c') or not os.path.exists(obj):
            continue
        uses[f] = set()
        out = subprocess.run(['nm', obj], check=True, capture_output=True, text=True).stdout
        for line in out.splitlines():
            word = line.split()
            if word[-2] in 'TDBRCVW':
                defines[word[-1]] = f
            elif word[-2] == 'U':
                uses[f].add(word[-1])
    needs = collections.defaultdict(dict)
    for f, names in uses.items():
        for n in sorted(names):
            if defines.get(n, f) != f:
                needs[f].setdefault(defines[n], n)
    return needs, len(uses)


def report(what, needs):
    circles = find_circles(needs)
    for circle in circles:
        print(f'circle of {what}: {" ".join(circle)}')
        for a in circle:
            for b in circle:
                if b in needs.get(a, ()):
                    print(f'    {a} needs {b}: {needs[a][b]}')
    return len(circles)


def self_test():
    """It finds a circle that there is, and none where there is none"""
    circle = {'a': {'b': 'x'}, 'b': {'c': 'y'}, 'c': {'a': 'z'}, 'd': {'a': 'w'}}
    assert find_circles(circle) == [['a', 'b', 'c']]
    assert find_circles({'a': {'b': 'x', 'c': 'y'}, 'b': {'c': 'z'}}) == []


def main():
    build = sys.argv[1] if len(sys.argv) > 1 else 'build'
    self_test()
    every = git_files()
    files = [f for f in every if f.endswith(('.c', '.h')) and f.startswith(tuple(d + '/' for d in FOLDERS))]
    wrong = report('includes', includes(files))
    needs, n = calls(files, build)
    if not n:
        sys.exit(f'{build}/obj has no objects: make lib')
    wrong += report('functions', needs)
    for name, k in sorted(collections.Counter(os.path.basename(f) for f in every
                                              if not SERIES.match(f)).items()):
        if k > 1 and name not in TWICE:
            places = ' '.join(f for f in every if os.path.basename(f) == name)
            print(f'a name that stands {k} times: {places}')
            wrong += 1
    print(f'{len(files)} files, {n} objects: {wrong or "no"} circles and names that stand twice')
    sys.exit(1 if wrong else 0)


main()
