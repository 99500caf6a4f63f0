#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""secrets.py - what children alone may know is on no command line, and in no file when they run

Generation IDs, seeds and boot_ids of children, of a child's child, and of a child that is moved; a
move keeps the generation ID. The guest does nothing: its firmware knows no vmgenid. Limit: 120 s.
"""
import contextlib
import glob
import json
import os
import re
import stat

import common
from attaching import Move
from common import Failed
from forked import Clone, ForkParent, ask, check_nothing_left, check_result, kill


def options(t):
    placeholder = os.path.join(t.work, 'placeholder')
    with open(placeholder, 'wb') as f:
        f.truncate(4096)
    return ('-device', 'vmgenid,guid=auto', '-fw_cfg',
            f'name=opt/org.farfork/clone,file={placeholder}')


def genid_of(qmp):
    return ask(qmp, 'query-vm-generation-id')['guid']


def cmdline_of(pid):
    with open(f'/proc/{pid}/cmdline', encoding='ascii') as f:
        return f.read()


def check_hidden(pid, qmp):
    """Its generation ID, which its command line does not have, nor any file."""
    genid, folder = genid_of(qmp), os.path.dirname(qmp)
    for what, text in (('command line', cmdline_of(pid)), *(
            (path, open(path, encoding='utf-8', errors='replace').read())
            for path in glob.glob(folder + '/*') if stat.S_ISREG(os.stat(path).st_mode))):
        if genid in text or re.search(r'"seed": "[^"]|"boot_id": "[^"]', text):
            raise Failed(f'{what}: {text}')
    return genid


def message_of(qmp, number):
    """Its message without secrets, for the next boot; nobody else reads it."""
    path = os.path.join(os.path.dirname(qmp), f'{number}.message')
    mode = stat.S_IMODE(os.stat(path).st_mode)
    with open(path, encoding='ascii') as f:
        text = f.read()
    m = json.loads(text)
    if mode != 0o600 or len(text) != 4096 or m['number'] != number or m['seed'] or m['boot_id']:
        raise Failed(f'{path}: mode {mode:o}, {len(text)} bytes: {m}')
    return text


def generations(t, accel):
    with ForkParent(t, accel, extra=options(t)) as a:
        own = genid_of(a.second)
        with Clone(t, a, 2) as c:
            check_result(c, 0, {'complete': 2})
            ids = [check_hidden(k['pid'], k['qmp']) for k in c.children]
            for k in c.children:
                message_of(k['qmp'], k['child'])
            first = c.children[0]['qmp']
            message = message_of(first, 1)
            with Clone(t, first, 1, name='g') as g:     # its end is that of f, too
                check_result(g, 0, {'complete': 1})
                ids.append(check_hidden(g.children[0]['pid'], g.children[0]['qmp']))
                message_of(g.children[0]['qmp'], 1)
                if len({own, *ids}) != 4:
                    raise Failed(f'not all differ: {own} {ids}')
                with Move(t, first) as m:
                    m.end(0, 'there')
                    if check_hidden(m.result['pid'], m.result['qmp']) != ids[0]:
                        raise Failed('the generation ID was not kept')
                    if message_of(m.result['qmp'], 1) != message:
                        raise Failed('the message was not kept')
                kill(g.base, 'g')
            check_nothing_left(c)


def run(t):
    accel = t.best_accel()
    with t.case('children, a child of one, and one that is moved'):
        generations(t, accel)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(t.work, 'parent.console'))


if __name__ == '__main__':
    common.main(run, limit_s=120)
