#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""man_matches_help.py - the documentation says what the programs do, both ways

Commands and options: farfork --help against farfork(1), vmclone --help against vmclone(1). Address options and values: what the
library accepts against farfork-rdma-postcopy(7) and README.md. Statistics: QEMU's schema
against (7). Public functions: include/*.h against farfork.map and the library. Metrics: metrics_text.c against
docs/operations.md. Messages: wire.h against docs/wire.md. Error messages: the sources (and libibverbs, librdmacm, libc) against
what docs/operations.md and farfork-rdma-postcopy(7) quote. Links between the Markdown files. Manual pages: mandoc, if it is there.

Environment  FARFORK_BUILD (default: build)
Exit code    0 all agree, 1 something differs, 77 the library is not built
"""
import ctypes
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..')
BUILD = os.path.join(TOP, os.environ.get('FARFORK_BUILD', 'build'))  # absolute: taken as it is
LIMIT_S = 20
problems = []


def differ(text):
    problems.append(text)


def read(*path):
    with open(os.path.join(TOP, *path), encoding='utf-8') as f:
        return f.read()


def same(what, a, name_a, b, name_b):
    for x in sorted(set(a) - set(b)):
        differ(f'{what} {x}: in {name_a}, not in {name_b}')
    for x in sorted(set(b) - set(a)):
        differ(f'{what} {x}: in {name_b}, not in {name_a}')
    if not a or not b:
        differ(f'{what}: found none in {name_a if not a else name_b}')
    print(f'{what}: {len(set(a))} in {name_a}, {len(set(b))} in {name_b}')


def farfork(*args):
    return subprocess.run([os.path.join(BUILD, 'bin', 'farfork'), *args], timeout=LIMIT_S,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


# --- farfork --help and farfork(1) ---

def option_names(text):
    """Options at the start of a line of a help text."""
    found = set()
    for line in re.findall(r'^ +(-.*)$', text, re.M):
        found |= set(re.findall(r'(?:^|, )(--?[a-z][a-z-]*)', line))
    return found


def page_items(page):
    """Commands of a mdoc page, each with the options in the list below it."""
    items = {}
    command = ''
    for line in page.splitlines():
        m = re.match(r'\.It Cm (\S+)$', line)
        if m:
            command = m[1]
            items[command] = set()
        elif line.startswith('.It Fl '):
            for name in line[len('.It Fl '):].replace(' Fl ', ' ').split(' , '):
                items.setdefault(command, set()).add('-' + name.split()[0])  # no argument
        elif line.startswith('.Sh '):
            command = ''
    return items


def check_commands():
    help_text = farfork('--help').stdout
    commands = re.findall(r'^  ([a-z]+) +\S', help_text, re.M)
    page = page_items(read('man', 'farfork.1'))
    same('command', commands, 'farfork --help', [c for c in page if c], 'farfork(1)')
    for c in commands:
        out = farfork(c, '--help')
        if out.returncode:
            differ(f'farfork {c} --help: exit code {out.returncode}')
        for x in option_names(out.stdout) ^ page.get(c, set()):
            differ(f'farfork {c}: option {x} is in only one of --help and farfork(1)')
    synopsis = read('man', 'farfork.1').split('.Sh SYNOPSIS')[1].split('.Sh ')[0]
    same('command', commands, 'farfork --help', re.findall(r'^\.Cm (\S+)', synopsis, re.M),
         'the synopsis of farfork(1)')
    for bad in ('--no-such-option', 'no-such-command'):
        if farfork(bad).returncode != 2:
            differ(f'farfork {bad}: exit code is not 2, which farfork(1) says')


def check_vmclone():
    """One program without commands."""
    out = subprocess.run([os.path.join(BUILD, 'bin', 'vmclone'), '--help'], timeout=LIMIT_S,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if out.returncode:
        differ(f'vmclone --help: exit code {out.returncode}')
    same('option', option_names(out.stdout), 'vmclone --help',
         set().union(*page_items(read('man', 'vmclone.1')).values()), 'vmclone(1)')
    said = set(re.findall(r'(\d) (?:all children|some do|usage|none does)', out.stdout))
    status = read('man', 'vmclone.1').split('.Sh EXIT STATUS')[1].split('.Sh ')[0]
    same('exit code', said, 'vmclone --help', re.findall(r'^\.It (\d)', status, re.M), 'vmclone(1)')


# --- addresses ---

class Library:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.lib.ff_error_new.restype = ctypes.c_void_p
        self.lib.ff_error_message.restype = ctypes.c_char_p
        self.lib.ff_error_message.argtypes = [ctypes.c_void_p]
        self.lib.ff_error_free.argtypes = [ctypes.c_void_p]
        self.lib.ff_address_free.argtypes = [ctypes.c_void_p]
        self.lib.ff_address_parse.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p]

    def refusal(self, options):
        """None: accepted; else the reason."""
        err = self.lib.ff_error_new()
        out = ctypes.c_void_p()
        rc = self.lib.ff_address_parse(('host:1' + options).encode(), ctypes.byref(out), err)
        text = self.lib.ff_error_message(err).decode() if rc else None
        self.lib.ff_error_free(err)
        if not rc:
            self.lib.ff_address_free(out)
        return text


def page_options(page):
    """name: (values, text) of each option of the page; no values: a number; None: a name, a file."""
    section = page.split('.Ss Options')[1].split('\n.Sh ')[0]
    options = {}
    for part in section.split('\n.It Cm ')[1:]:
        head, text = part.split('\n', 1)
        name, _, value = head.partition(' Ns = Ns ')
        words = value.removeprefix('Cm ').split(' | ') if value.startswith('Cm ') else []
        options[name] = (None if value in ('Ar device', 'Ar file', 'Ar program') else words, text)
    return options


def check_values(lib, name, values, text):
    """An option of words: each is accepted, and there are no others."""
    for v in values:
        with_it = {'go': ',fence=/f,record=/r',
                   'hold': ',fallback=go,fence=/f,record=/r'}.get(v, '')
        if with_it and not lib.refusal(f',{name}={v}'):
            differ(f'(7): {name}={v}: accepted without {with_it}')
        why = lib.refusal(f',{name}={v}{with_it}')
        if why:
            differ(f'(7): {name}={v}: refused: {why}')
    known = re.findall(r'want (.*)$', lib.refusal(f',{name}=no-such-value') or '')
    if not known:
        differ(f'{name}=no-such-value is accepted, or refused without naming the values')
        return
    words = set(re.split(r', | or ', known[0]))
    for v in words - set(values):
        differ(f'(7): {name}: the library also takes {v}')
    default = re.search(r'Default\s+\.Cm (\S+)', text)
    if not default or default[1] not in values:
        differ(f'(7): {name}: no default among its values')


def check_key_file(lib):
    """A file that others may not read, with 64 digits: as the page says."""
    with tempfile.NamedTemporaryFile('w', prefix='farfork-key-') as f:   # its mode is 600
        f.write('0f' * 32 + '\n')
        f.flush()
        why = lib.refusal(f',key-file={f.name}')
        if why:
            differ(f'(7): key-file: refused: {why}')
        os.chmod(f.name, 0o640)
        if not lib.refusal(f',key-file={f.name}') or not lib.refusal(',key-file=/'):
            differ('(7): key-file: a file that others may read, or a folder, is accepted')


def check_number(lib, name, text):
    """An option of a number: the page's limits are the library's."""
    m = re.search(r'\b(\d+) to (\d+)\b', text)
    if not m:
        differ(f'(7): {name}: no limits (N to M)')
        return
    low, high = int(m[1]), int(m[2])
    with_it = ',visit=on' if name == 'budget' else ''
    if with_it and not lib.refusal(f',{name}={low}'):
        differ(f'(7): {name}: accepted without {with_it}')
    for v, good in ((low, True), (high, True), (low - 1, False), (high + 1, False)):
        if (lib.refusal(f',{name}={v}{with_it}') is None) != good:
            differ(f'(7): {name}={v} should be {"accepted" if good else "refused"}')
    if 'suffix K or M' in text and lib.refusal(f',{name}={high >> 20}M{with_it}'):
        differ(f'(7): {name}: no suffix M')


def check_addresses():
    lib = Library(os.path.join(BUILD, 'lib', 'libfarfork.so.0'))
    options = page_options(read('man', 'farfork-rdma-postcopy.7'))
    known = re.search(r'there are ([a-z, -]+)', lib.refusal(',no-such-option=1') or '')
    names = re.split(r', ', known[1]) if known else []
    # what QEMU takes out of the address before the library sees it
    qemu = re.findall(r'strstart\(part\[i\], "([a-z-]+)="',
                      read('qemu-patches', 'src', 'rdma-postcopy-address.c'))
    both = names + qemu
    same('address option', both, 'library and QEMU', list(options), 'farfork-rdma-postcopy(7)')
    rows = re.findall(r'^\| `([a-z-]+)` \| (.*?) \|', read('README.md'), re.M)
    same('address option', both, 'library and QEMU', [n for n, _ in rows], 'README.md')
    readme = dict(rows)
    header = read('include', 'farfork.h').split('ff_address_parse()')[1].split('Return:')[0]
    same('address option', names, 'the library', re.findall(r'([a-z-]+)=', header.split('Options:')[1]),
         'farfork.h')
    for name, (values, text) in options.items():
        if values:
            check_values(lib, name, values, text)
            if set(re.findall(r'`([a-z]+)`', readme.get(name, ''))) != set(values):
                differ(f'README.md: {name}: other values than (7)')
        elif name == 'key-file':
            check_key_file(lib)
        elif name in qemu:
            if not lib.refusal(f',{name}=a'):
                differ(f'(7): {name}: the library takes it, too')
        elif name in ('fence', 'record'):
            if 'absolute path' not in (lib.refusal(f',{name}=a') or ''):
                differ(f'(7): {name}: the library takes more than an absolute path')
        elif name == 'multicast':
            if 'a group' not in (lib.refusal(f',{name}=192.0.2.1') or '') or \
                    lib.refusal(f',{name}=239.0.0.1:9') or lib.refusal(f',{name}=[ff15::1]:9'):
                differ(f'(7): {name}: the library takes another address than that of a group, or not that')
        elif values is None:
            if not lib.refusal(f',{name}=') or lib.refusal(f',{name}=a') or \
                    lib.refusal(f',{name}=a:1'):
                differ(f'(7): {name}: NAME or NAME:PORT is not what the library takes')
        else:
            check_number(lib, name, text)
            limits = re.search(r'\d+ to \d+', text)
            if limits and limits[0] not in readme.get(name, ''):
                differ(f'README.md: {name}: other limits than (7)')


# --- what is kept in two places ---

def check_statistics():
    patches = ''.join(read(p) for p in sorted(glob.glob(os.path.join(TOP, 'qemu-patches', '*',
                                                                     '*qapi*.patch'))))
    data = re.search(r"'struct': 'RdmaPostcopyInfo',(.*?)\} \}", patches, re.S)
    fields = re.findall(r"'([a-z0-9-]+)': '(?:str|uint64)'", data[1] if data else '')
    page = read('man', 'farfork-rdma-postcopy.7')
    same('statistic', fields, "QEMU's schema", re.findall(r'^\.It Va (\S+)', page, re.M),
         'farfork-rdma-postcopy(7)')


def check_functions():
    headers = ''.join(read(p) for p in sorted(glob.glob(os.path.join(TOP, 'include', '*.h'))))
    declared = re.findall(r'\b(ff_\w+)\(', re.sub(r'/\*.*?\*/', '', headers, flags=re.S))
    exported = re.findall(r'\b(ff_\w+);', read('include', 'farfork.map'))
    same('function', declared, 'include/*.h', exported, 'farfork.map')
    lib = ctypes.CDLL(os.path.join(BUILD, 'lib', 'libfarfork.so.0'))
    for name in declared:
        if not hasattr(lib, name):
            differ(f'function {name}: declared, but not in the library')


def check_metrics():
    source = read('control', 'host', 'metrics_text.c')
    total = {'COUNTER': '_total'}
    names = [n + total.get(kind, '') for n, kind in re.findall(
        r'\{"(farfork_\w+)",.*?METRIC_(COUNTER|GAUGE|HISTOGRAM)', source, re.S)]
    same('metric', names, 'metrics_text.c', re.findall(
        r'^\| `(farfork_\w+)` \|', read('docs', 'operations.md'), re.M), 'docs/operations.md')


def check_messages():
    header = read('migrate', 'wire.h')
    names = re.findall(r'^\s*FF_MSG_([A-Z]+)\b', header.split('enum ff_msg {')[1].split('}')[0],
                       re.M)
    code = {n: i + 1 for i, n in enumerate(names) if n != 'LAST'}
    table = read('docs', 'wire.md').split('\n## Control messages\n')[1]
    rows = re.findall(r'^\| (\d+) \| ([A-Z]+) \|', table, re.M)
    same('message', [f'{n} {i}' for n, i in code.items()], 'wire.h',
         [f'{n} {i}' for i, n in rows], 'docs/wire.md')


# --- error messages ---

def spoken():
    """What other libraries put into our messages, and may be quoted as it is."""
    texts = {os.strerror(i) for i in range(1, 134)}
    for name, function in (('libibverbs.so.1', 'ibv_wc_status_str'),
                           ('librdmacm.so.1', 'rdma_event_str')):
        f = getattr(ctypes.CDLL(name), function)
        f.restype = ctypes.c_char_p
        texts |= {f(i).decode() for i in range(24)}
    return texts


def source_texts():
    """Every string of our C sources and patches, adjacent ones joined, values as NUL."""
    paths = [p for d in ('base', 'rdma', 'uffd', 'migrate', 'clone', 'probe', 'vm', 'control',
                               'cli', 'qemu-patches/src')
             for p in glob.glob(os.path.join(TOP, d, '**', '*.[ch]'), recursive=True)]
    code = '\n'.join(read(p) for p in paths)
    for p in glob.glob(os.path.join(TOP, 'qemu-patches', '*', '*.patch')):
        code += '\n' + '\n'.join(x[1:] for x in read(p).splitlines() if x[:1] in '+ ')
    code = re.sub(r'"\s*(PRI\w+\s*)?"', '', code)
    texts = re.findall(r'"((?:[^"\\\n]|\\.)*)"', code)
    return {re.sub(r'%[-#.0-9*]*(?:ll|z|h|l)?[a-zA-Z]?', '\0', t) for t in texts}


def check_quoted():
    table = read('docs', 'operations.md').split('\n## What messages mean\n')[1]
    quoted = [m for row in re.findall(r'^\| (`.*?) \|', table, re.M)
              for m in re.findall(r'`([^`]+)`', row)]
    page = read('man', 'farfork-rdma-postcopy.7').split('.Sh DIAGNOSTICS')[1].split('.Sh ')[0]
    quoted += re.findall(r'^\.It (.+)$', page, re.M)
    quoted += re.findall(r'"([^"]+)"', read('docs', 'failures.md'))
    others = spoken()
    # the longest first: what is said by others stands for a value of ours
    said = re.compile('|'.join(re.escape(t) for t in sorted(others, key=len, reverse=True)))
    ours = source_texts()
    for message in quoted:
        if message in others:
            continue
        parts = re.split(r'\.\.\.|\b[A-Z]+\b|\0', said.sub('\0', message))
        want = re.compile('.*'.join(re.escape(x) for x in parts), re.S)
        if not any(len(x.strip(' :;,.')) > 3 for x in parts) or not any(map(want.search, ours)):
            differ(f'message "{message}": quoted, but not in the sources')
    print(f'messages: {len(quoted)} quoted')
    if len(quoted) < 20:
        differ('messages: found too few')


def check_links():
    """Every file that a Markdown file points at is there."""
    n = 0
    for path in glob.glob(os.path.join(TOP, '*.md')) + glob.glob(os.path.join(TOP, '*', '*.md')):
        with open(path, encoding='utf-8') as f:
            targets = re.findall(r'\]\(([^)#]+)(?:#[^)]*)?\)', f.read())
        for t in targets:
            n += 1
            if not os.path.exists(os.path.join(os.path.dirname(path), t)):
                differ(f'{os.path.relpath(path, TOP)}: no such file: {t}')
    print(f'links: {n}')


def check_mandoc():
    if not shutil.which('mandoc'):
        print('manual pages: not looked at: mandoc is not installed')
        return
    for page in sorted(glob.glob(os.path.join(TOP, 'man', '*.[1-9]'))):
        out = subprocess.run(['mandoc', '-T', 'lint', '-W', 'warning', page], timeout=LIMIT_S,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             check=False).stdout
        if out:
            differ(out.strip())
    print('manual pages: mandoc has seen them')


def main():
    for part in (('bin', 'farfork'), ('bin', 'vmclone'), ('lib', 'libfarfork.so.0')):
        path = os.path.join(BUILD, *part)
        if not os.path.exists(path):
            print(f'{path} is not there: run `make lib`, or set FARFORK_BUILD')
            return 77
    check_commands()
    check_vmclone()
    check_addresses()
    check_statistics()
    check_functions()
    check_metrics()
    check_messages()
    check_quoted()
    check_links()
    check_mandoc()
    for p in problems:
        print(f'DIFFERS: {p}')
    return 1 if problems else 0


if __name__ == '__main__':
    sys.exit(main())
