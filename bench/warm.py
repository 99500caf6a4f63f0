# SPDX-License-Identifier: LGPL-2.1-or-later
#
# warm.py - memory that the host has given us already: its first touch is no part of a move
"""
    with Warm(mem_mib, hold=True):      # of one guest; both sides are warmed
        ...
"""
import os
import subprocess

import common
import this_host

BASELINES = os.path.join(common.BUILD, 'bench', 'baselines')
SPARE_MIB = 1024


class Warm:
    """For both sides, as long as it is held; hold: keep a page of each block, so that the host of a
    virtual machine does not take the rest away. That would leave no huge pages."""

    def __init__(self, mem_mib, hold):
        self.mib = max(0, min(2 * mem_mib + SPARE_MIB // 2,
                              this_host.meminfo_mib('MemAvailable') - SPARE_MIB // 2))
        self.hold, self.process = hold, None

    def __enter__(self):
        # pylint: disable=consider-using-with
        self.process = subprocess.Popen([BASELINES, 'warm', str(self.mib)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        self.process.stdout.readline()      # its own alarm ends it
        if not self.hold:
            self.end()
        return self

    def end(self):
        self.process.communicate('')

    def __exit__(self, *exc):
        if self.hold:
            self.end()
