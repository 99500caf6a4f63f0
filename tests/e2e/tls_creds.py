#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""tls_creds.py - QEMU's own TLS credentials decide who may send and receive a guest

The migration parameter tls-creds, as QEMU's other transports take it. Whoever is refused has no
guest to lose: it runs on at its source, and is moved at the end. Limit: 150 s.
"""
import os
import re

import common
from common import Failed, Micro, check_ledger, check_move, refuses
from keys import key_file, migrate, no_hello, secret
from refuse import dies, fails, never_stopped, waits

MIB = 64


def psk_folder(t, name, mode=0o600, **users):
    """A folder of credentials, with keys.psk for these users."""
    folder = os.path.join(t.work, name)
    os.mkdir(folder)
    path = os.path.join(folder, 'keys.psk')
    with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), 'w', encoding='ascii') as f:
        f.writelines(f'{user}:{key}\n' for user, key in users.items())
    os.chmod(path, mode)
    return folder


def psk(folder, end, name='c', **more):
    options = ''.join(f',{k}={v}' for k, v in more.items())
    return ['-object', f'tls-creds-psk,id={name},dir={folder},endpoint={end}{options}']


def use(guest, name, **more):
    guest.qmp('migrate-set-parameters', **{'tls-creds': name}, **more)


def psk_users(t):
    """Each user of the destination's file may send; who has no key there may not."""
    keys = {n: os.urandom(32).hex() for n in ('qemu', 'one', 'two')}
    there = psk_folder(t, 'there', mode=0o640, **keys)
    wrong = psk_folder(t, 'wrong', two=os.urandom(32).hex(), nobody=os.urandom(32).hex())
    here = psk_folder(t, 'here', qemu=keys['qemu'], two=keys['two'])
    a_creds = (psk(here, 'client', 'two', username='two') + psk(here, 'client', 'default') +
               psk(wrong, 'client', 'wrong', username='two') +
               psk(wrong, 'client', 'unknown', username='nobody'))
    with Micro(t, 'a', t.best_accel(), mem_mib=MIB, extra=a_creds) as a:
        a.start_load()
        with Micro(t, 'b', t.best_accel(), mem_mib=MIB, incoming=True,
                   extra=psk(there, 'server')) as b:
            use(b, 'c')
            uri = common.listen(b)
            no_hello(int(re.search(r':(\d+)$', uri)[1]))
            waits(b, ['handshake'])
            fails(a, uri, ['wants a key'])
            for creds in ('wrong', 'unknown'):
                use(a, creds)
                fails(a, uri, ['has another key'])
                waits(b, ['handshake'])
            use(a, 'two')
            check_move(migrate(a, b, uri))
            check_ledger(a, b)
        with Micro(t, 'c', t.best_accel(), mem_mib=MIB, extra=psk(here, 'client')) as c:
            c.start_load()
            with Micro(t, 'd', t.best_accel(), mem_mib=MIB, incoming=True,
                       extra=psk(there, 'server')) as d:
                use(d, 'c')
                use(c, 'c')     # its user is "qemu"
                check_move(migrate(c, d, common.listen(d)))
                check_ledger(c, d)


def both_need_it(t):
    """A side with credentials talks to no side without, nor to one that has a key."""
    folder = psk_folder(t, 'folder', qemu=os.urandom(32).hex())
    own = key_file(t, 'own', os.urandom(32).hex())
    with Micro(t, 'a', t.best_accel(), mem_mib=MIB, extra=psk(folder, 'client')) as a, \
            Micro(t, 'b', t.best_accel(), mem_mib=MIB, incoming=True, extra=secret(own)) as b:
        a.start_load()
        use(a, 'c')
        uri = common.listen(b)
        fails(a, uri, ['has the destination'])
        refuses(a, 'give one of them', 'migrate', uri=f'{uri},key-file={own}')
        never_stopped(a)
        use(a, '')
        check_move(migrate(a, b, uri))
        check_ledger(a, b)


def refused(t):
    """What cannot be kept is refused, with what to do."""
    key = os.urandom(32).hex()
    good = psk_folder(t, 'good', qemu=key)
    extra = (psk(good, 'client', 'client') + psk(good, 'server', 'server') +
             psk(good, 'server', 'choosy', priority='NORMAL') +
             ['-object', 'tls-creds-anon,id=anon,endpoint=server'] +
             psk(psk_folder(t, 'open', mode=0o644, qemu=key), 'server', 'open') +
             psk(psk_folder(t, 'short', qemu=key[:30]), 'server', 'short'))
    with Micro(t, 'a', t.best_accel(), mem_mib=MIB, extra=psk(good, 'client')) as a, \
            Micro(t, 'b', t.best_accel(), mem_mib=MIB, incoming=True, extra=extra) as b:
        a.start_load()
        uri = f'rdma-postcopy:127.0.0.1:{common.free_port()}'
        for name, text in (('none', 'no TLS credentials'), ('client', 'server endpoint'),
                           ('choosy', 'priority'), ('anon', 'tls-creds-psk'),
                           ('open', 'open to others'), ('short', '30 hexadecimal digits')):
            use(b, name)
            said = refuses(b, text, 'migrate-incoming', uri=uri)
            if key[:30] in said:
                raise Failed(f'the message has the key: {said}')
        use(b, 'server', **{'tls-authz': 'acl'})
        refuses(b, 'tls-authz', 'migrate-incoming', uri=uri)
        use(b, 'server', **{'tls-authz': ''})
        b.qmp('migrate-incoming', uri=uri)
        use(b, '')              # it would be without, for all that its operator can see
        use(a, 'c')
        a.qmp('migrate', uri=uri)
        common.wait_migration(a, 'failed', 40)
        never_stopped(a)
        dies(b, ['tls-creds has been changed'])


def run(t):
    for name, case in (('users of tls-creds-psk', psk_users),
                       ('credentials at one side', both_need_it),
                       ('what is refused', refused)):
        with t.case(name):
            case(t)


if __name__ == '__main__':
    common.main(run, limit_s=150)
