#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""tls_creds.py - QEMU's own TLS credentials decide who may send and receive a guest

The migration parameter tls-creds, as QEMU's other transports take it. Whoever is refused has no
guest to lose: it runs on at its source, and is moved at the end. Limit: 150 s.
"""
import os
import re
import shutil
import subprocess

import common
import resume
from common import Failed, Micro, check_ledger, check_move, refuses
from keys import key_file, migrate, no_hello, secret
from refuse import dies, fails, never_stopped, waits

MIB = 64


def certtool(*args):
    subprocess.run(['certtool', *args], check=True, capture_output=True, timeout=60)


def known_primes(folder):
    """What a QEMU that is a server looks for otherwise as it starts: seconds of computing, or many."""
    certtool('--get-dh-params', '--sec-param=medium', '--outfile', os.path.join(folder, 'dh-params.pem'))


def psk_folder(t, name, mode=0o600, **users):
    """A folder of credentials, with keys.psk for these users."""
    folder = os.path.join(t.work, name)
    os.mkdir(folder)
    path = os.path.join(folder, 'keys.psk')
    with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), 'w', encoding='ascii') as f:
        f.writelines(f'{user}:{key}\n' for user, key in users.items())
    os.chmod(path, mode)
    known_primes(folder)
    return folder


def psk(folder, end, name='c', **more):
    options = ''.join(f',{k}={v}' for k, v in more.items())
    return ['-object', f'tls-creds-psk,id={name},dir={folder},endpoint={end}{options}']


CA = 'cn = "{name}"\nca\ncert_signing_key\ncrl_signing_key\nexpiration_days = 10\n'
END = ('cn = "{name}"\ntls_www_{end}\nsigning_key\nencryption_key\nexpiration_days = 10\n'
       'dns_name = "{dns}"\nip_address = "127.0.0.1"\n')


class Ca:
    """Makes folders of credentials, as tls-creds-x509 reads them."""

    def __init__(self, t, name):
        self.work, self.name = t.work, name
        self.key, self.cert = (os.path.join(t.work, f'{name}-ca-{what}.pem')
                               for what in ('key', 'cert'))
        self.make(self.key, self.cert, CA.format(name=name), '--generate-self-signed')

    def make(self, key, cert, template, *how):
        path = cert + '.template'
        with open(path, 'w', encoding='ascii') as f:
            f.write(template)
        certtool('--generate-privkey', '--key-type=ecdsa', '--outfile', key)
        certtool(*how, '--load-privkey', key, '--template', path, '--outfile', cert)

    def folder(self, end, dns='there', has=True):
        folder = os.path.join(self.work, f'{self.name}-{end}-{dns}-{has}')
        os.mkdir(folder)
        shutil.copy(self.cert, os.path.join(folder, 'ca-cert.pem'))
        known_primes(folder)
        if has:
            self.make(*(os.path.join(folder, f'{end}-{what}.pem') for what in ('key', 'cert')),
                      END.format(name=self.name, end=end, dns=dns), '--generate-certificate',
                      '--load-ca-certificate', self.cert, '--load-ca-privkey', self.key)
        return folder


def x509(folder, end, name='c', **more):
    options = ''.join(f',{k}={v}' for k, v in more.items())
    return ['-object', f'tls-creds-x509,id={name},dir={folder},endpoint={end}{options}']


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


def certificates(t):
    """Both show one that the other's CA has signed, for this host; nobody else gets the guest."""
    ca, other = Ca(t, 'ca'), Ca(t, 'other')
    server, stranger = ca.folder('server'), other.folder('server')
    a_creds = (x509(ca.folder('client'), 'client') +
               x509(other.folder('client'), 'client', 'other') +
               x509(ca.folder('client', has=False), 'client', 'none'))
    with Micro(t, 'a', t.best_accel(), mem_mib=MIB, extra=a_creds) as a:
        a.start_load()
        with Micro(t, 'e', t.best_accel(), mem_mib=MIB, incoming=True,
                   extra=x509(stranger, 'server')) as e:
            use(e, 'c')
            use(a, 'c')
            fails(a, common.listen(e), ["the peer's is not taken"])
            waits(e, ['certificates'])
        with Micro(t, 'b', t.best_accel(), mem_mib=MIB, incoming=True,
                   extra=x509(server, 'server')) as b:
            use(b, 'c')
            uri = common.listen(b)
            port = int(re.search(r':(\d+)$', uri)[1])
            no_hello(port)
            use(a, '')
            fails(a, uri, ['wants a key'])
            use(a, 'other')
            fails(a, uri, ["the peer's is not taken"])
            use(a, 'none')
            refuses(a, 'client-cert.pem', 'migrate', uri=uri)
            use(a, 'c', **{'tls-hostname': 'elsewhere'})
            fails(a, uri, ['elsewhere'])
            waits(b, ['certificates'])
            use(a, 'c', **{'tls-hostname': ''})
            fails(a, f'rdma-postcopy:localhost:{port}', ['for host localhost'])
            use(a, 'c', **{'tls-hostname': 'there'})
            check_move(migrate(a, b, uri))
            check_ledger(a, b)


def certificates_again(t):
    """After a break each link has certificates shown anew."""
    ca = Ca(t, 'again')
    a, b = resume.pair(t, 'certs', t.best_accel(), extra=x509(ca.folder('server'), 'server'))
    with a, b:
        a.qmp('object-add', **{'qom-type': 'tls-creds-x509', 'id': 'c', 'endpoint': 'client',
                               'dir': ca.folder('client')})
        use(a, 'c')
        use(b, 'c')
        resume.begin(a, b, '')
        resume.pause(a)
        resume.both_paused(a, b)
        b.qmp('migrate-recover', uri=resume.here(0))
        port = int(common.migration(b)['socket-address'][0]['port'])
        no_hello(port)
        resume.resume(a, resume.here(port))
        resume.is_resumed(a, b)


def refused(t):
    """What cannot be kept is refused, with what to do."""
    key = os.urandom(32).hex()
    good = psk_folder(t, 'good', qemu=key)
    extra = (psk(good, 'client', 'client') + psk(good, 'server', 'server') +
             psk(good, 'server', 'choosy', priority='NORMAL') +
             ['-object', 'tls-creds-anon,id=anon,endpoint=server'] +
             x509(Ca(t, 'lax').folder('server'), 'server', 'lax', **{'verify-peer': 'off'}) +
             psk(psk_folder(t, 'open', mode=0o644, qemu=key), 'server', 'open') +
             psk(psk_folder(t, 'short', qemu=key[:30]), 'server', 'short'))
    with Micro(t, 'a', t.best_accel(), mem_mib=MIB, extra=psk(good, 'client')) as a, \
            Micro(t, 'b', t.best_accel(), mem_mib=MIB, incoming=True, extra=extra) as b:
        a.start_load()
        uri = f'rdma-postcopy:127.0.0.1:{common.free_port()}'
        for name, text in (('none', 'no TLS credentials'), ('client', 'server endpoint'),
                           ('choosy', 'priority'), ('anon', 'tls-creds-psk'),
                           ('lax', 'verify-peer'), ('open', 'open to others'),
                           ('short', '30 hexadecimal digits')):
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
                       ('certificates', certificates),
                       ('certificates after a break', certificates_again),
                       ('what is refused', refused)):
        with t.case(name):
            case(t)


if __name__ == '__main__':
    common.main(run, limit_s=150)
