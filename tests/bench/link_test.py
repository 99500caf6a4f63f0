#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""link_test.py - what --net says, and that bench/shaper delays, limits, loses and ends

Only what a link must cost at least is judged: a busy machine makes it slower, never faster.

Environment  FARFORK_BUILD (default: build)
Exit code    0 passed, 1 failed, 77 it cannot run here (the reason is the last line)
"""
import os
import subprocess
import sys
import unittest

import benchtest        # noqa: F401  pylint: disable=unused-import
import common
import testbed
from common import Skip

FLOORS = os.path.join(common.BUILD, 'bench', 'baselines')
LISTENER = '''
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(20)
s.bind(("10.79.0.2", 9))
print("ready", flush=True)
seen = []
while len(seen) < 2:
    word = s.recv(2000).strip().decode()
    seen += [word] if word else []
print(*seen)
'''
# what the line needs 1.6 s for, something after it, and something urgent
SENDER = '''
import socket
s = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
s[1].setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0x48)
for _ in range(40):
    s[0].sendto(b" " * 950, ("10.79.0.2", 9))
s[0].sendto(b"last", ("10.79.0.2", 9))
s[1].sendto(b"urgent", ("10.79.0.2", 9))
'''


class Said(unittest.TestCase):
    def test_parts(self):
        link = testbed.Link('10gbit,0.2ms,0.1%')
        self.assertEqual((link.bits(), link.rtt_ms, link.loss), (1e10, 0.2, 0.1))
        self.assertEqual(testbed.Link('1ms').bits(), 0)
        self.assertEqual((link.queue, testbed.Link('1gbit,prio').queue), ('fifo', 'prio'))
        for wrong in ('10', '10gbit,', '1gbit 2ms', '-1ms', '1gbit,lifo'):
            with self.assertRaises(ValueError):
                testbed.Link(wrong)

    def test_queue_and_packets(self):
        # 5 ms and two round trips of 1 ms at 125 bytes/us; 50 us of it
        link = testbed.Link('1gbit,1ms')
        self.assertEqual(link.queue_bytes(), 875000)
        self.assertEqual(link.largest_packet(), 6250)
        self.assertEqual(testbed.Link('100gbit').largest_packet(), 65536)
        self.assertEqual(testbed.Link('1mbit').largest_packet(), 3000)


class Link(testbed.Link):
    """By bench/shaper even where there is netem."""

    def netem(self):
        raise Skip('not this one')


class Wired(testbed.Namespaces):
    def __init__(self, net):
        super().__init__(net)
        self.link = Link(net)


class Wire(unittest.TestCase):
    def test_rate_and_delay(self):
        with Wired('200mbit,2ms') as place:
            floors = testbed.floors(FLOORS, place)
            wire = place.wire
        self.assertGreaterEqual(floors['tcp_round_trip_p50_us'], 2000)
        self.assertLessEqual(floors['tcp_mib_s'], 200 / 8 / 1.048576)
        self.assertEqual(wire.process.returncode, 0)

    def order(self, queue):
        """In which two datagrams come through a line that is busy."""
        with Wired(f'200kbit,1000ms,{queue}') as place:
            with subprocess.Popen(place.argv([sys.executable, '-c', LISTENER], True),
                                  stdout=subprocess.PIPE, text=True) as listener:
                self.assertEqual(listener.stdout.readline(), 'ready\n')
                subprocess.run(place.argv([sys.executable, '-c', SENDER], False), timeout=20,
                               check=True)
                return listener.communicate(timeout=25)[0].split()

    def test_what_is_urgent_goes_first_in_prio(self):
        self.assertEqual(self.order('fifo'), ['last', 'urgent'])
        self.assertEqual(self.order('prio'), ['urgent', 'last'])

    def test_loss(self):
        # some of at least 16000 packets: TCP brings all of it all the same
        with Wired('0.2ms,0.3%') as place:
            testbed.floors(FLOORS, place)
            said = place.wire.process.communicate(timeout=10)[1]
        self.assertRegex(said, r'shaper: .* [1-9]\d* lost')


def main():
    try:
        with Wired('1ms'):
            pass
    except Skip as e:
        if not unittest.main(argv=['', 'Said'], exit=False).result.wasSuccessful():
            sys.exit(1)
        print(f'SKIP: bench/shaper: {e}')
        sys.exit(77)
    unittest.main()


if __name__ == '__main__':
    main()
