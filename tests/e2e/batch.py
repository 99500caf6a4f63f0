# SPDX-License-Identifier: LGPL-2.1-or-later
"""batch.py - a Slurm cluster on this machine: Debian's own, each host in name spaces of its own"""
import contextlib
import glob
import os
import subprocess

import common
import ssh
from common import Failed, wait_for
from forked import hosts_of_their_own

SLURM = os.path.join(common.BUILD, 'tests/e2e/slurm')
LIB = os.path.join(SLURM, 'usr/lib/x86_64-linux-gnu')
PLUGINS = os.path.join(LIB, 'slurm-wlm')
PORT = 16817
GROUPS = any(map(os.path.exists, ('/sys/fs/cgroup/freezer', '/sys/fs/cgroup/cgroup.controllers')))

CONF = '''
ClusterName=farfork
SlurmctldHost=farfork-ctl({net}.1)
SlurmUser=root
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/{track}
TaskPlugin=task/{task}
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
StateSaveLocation={work}/state
SlurmdSpoolDir={work}/spool-%n
SlurmctldPidFile={work}/ctld.pid
SlurmdPidFile={work}/slurmd-%n.pid
SlurmctldPort={port}
SlurmctldLogFile={work}/ctld.log
SlurmdLogFile={work}/slurmd-%n.log
PluginDir={plugins}
ReturnToService=2
MpiDefault=none
SwitchType=switch/none
KillWait=5
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
SlurmctldParameters=preempt_send_user_signal
Prolog={work}/prolog
{nodes}
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 PreemptMode=CANCEL GraceTime=40 State=UP
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF State=UP
'''


def first_child(pid):
    with open(f'/proc/{pid}/task/{pid}/children', encoding='ascii') as f:
        return int((f.read().split() or [0])[0])


def remove_group(host):
    paths = glob.glob(f'/sys/fs/cgroup/*/slurm_{host}/**/', recursive=True)
    for path in sorted(paths, key=len, reverse=True):
        with contextlib.suppress(OSError):
            os.rmdir(path)
    return not any(map(os.path.isdir, paths))


class Cluster:
    """hosts: names; address: of each. Commands of Slurm's run as on a host of their own, or on one of these."""

    def __init__(self, work, names):
        self.work = work
        self.address = dict(n.split('=') for n in names)
        self.hosts = list(self.address)
        self.conf = os.path.join(work, 'slurm.conf')
        self.undo = contextlib.ExitStack()
        self.first = {}         # by host: its process 1, as seen from here
        net = self.address[self.hosts[0]].rpartition('.')[0]
        for name in ('state', 'bin', *(f'spool-{n}' for n in self.hosts)):
            os.mkdir(os.path.join(work, name))
        nodes = '\n'.join(f'NodeName={n} NodeAddr={a} NodeHostname={n} Port={PORT + 1} CPUs=2 RealMemory=2000'
                          for n, a in self.address.items())
        with open(self.conf, 'w', encoding='ascii') as f:
            f.write(CONF.format(net=net, work=work, port=PORT, plugins=PLUGINS, nodes=nodes,
                                track='cgroup' if GROUPS else 'linuxproc', task='affinity' if GROUPS else 'none'))
        with open(os.path.join(work, 'hosts'), 'w', encoding='ascii') as f:
            f.write(f'127.0.0.1 localhost\n{net}.1 farfork-ctl\n' +
                    ''.join(f'{a} {n}\n' for n, a in self.address.items()))
        with open(os.path.join(work, 'cgroup.conf'), 'w', encoding='ascii') as f:
            f.write('CgroupPlugin=autodetect\n')
        self.write('prolog', 'exit 0')
        self.write('bin/ssh', f'unset LD_LIBRARY_PATH\nexec {ssh.program("ssh")} -F {work}/ssh_config "$@"')
        self.env = {**os.environ, 'SLURM_CONF': self.conf, 'LD_LIBRARY_PATH': f'{PLUGINS}:{LIB}',
                    'PATH': f'{work}/bin:{SLURM}/usr/bin:{os.path.dirname(common.FARFORK)}:{os.environ["PATH"]}'}

    def __enter__(self):
        self.start(['unshare', '--uts', '--mount'], 'farfork-ctl', 'slurmctld-wlm')
        for n in self.hosts:
            proc = self.start(['nsenter', f'--net=/run/netns/{n}', 'unshare', '--uts', '--mount', '--pid', '--fork', '--kill-child',
                        '--mount-proc'], n, 'slurmd-wlm', '-N', n, '-d', f'{SLURM}/usr/sbin/slurmstepd-wlm')
            self.first[n] = wait_for(f'host {n}', 10, lambda: first_child(proc.pid))
        try:
            wait_for('all hosts idle', 40, lambda: self.run('sinfo', '-h', '-N', '-p', 'low', '-o', '%t').split() ==
                     ['idle'] * len(self.hosts))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.undo.close()
        with contextlib.suppress(Failed):       # what its processes were counted in, once they have ended
            wait_for('end of all', 10, lambda: all([remove_group(n) for n in self.hosts]))

    def write(self, name, text):
        """A script."""
        path = os.path.join(self.work, name)
        with open(path + '.new', 'w', encoding='ascii') as f:
            f.write(f'#!/bin/sh\n{text}\n')
        os.chmod(path + '.new', 0o755)
        os.rename(path + '.new', path)

    def within(self, host):
        """What brings a command to that host, and to no job."""
        return ('nsenter', f'--target={self.first[host]}', '--net', '--uts', '--pid', '--mount')

    def add_sshd(self):
        """On each host; `ssh` reaches them."""
        ssh.make_folder(self.undo)
        keys = ssh.Ssh(type('Folder', (), {'work': self.work}), self.address.items())
        for host, address in self.address.items():
            self.undo.enter_context(keys.server(host, address, (*self.within(host), 'unshare', '--mount'),
                                                self.env['PATH']))

    def start(self, within, name, daemon, *args):
        with open(os.path.join(self.work, f'{daemon}-{name}.out'), 'wb') as out:
            proc = subprocess.Popen(
                [*within, 'sh', '-c', f'hostname {name}; mount --bind {self.work}/hosts /etc/hosts; '
                 f'"$@" & wait', 'sh', f'{SLURM}/usr/sbin/{daemon}', '-D', *args],
                env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                start_new_session=True)
        self.undo.callback(self.stop, proc)
        return proc

    @staticmethod
    def stop(proc):
        """With what is in its name space."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(proc.pid, 9)
        proc.wait(20)

    def run(self, *argv, limit_s=60, code=0, env=None):
        out = subprocess.run(argv, env={**self.env, **(env or {})}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True, timeout=limit_s, check=False)
        if out.returncode != code:
            raise Failed(f'{argv[:3]}: exit code {out.returncode}, want {code}: {out.stdout[-600:]}{out.stderr[-600:]}')
        return out.stdout
