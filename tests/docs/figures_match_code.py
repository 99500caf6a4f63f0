#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""figures_match_code.py - figures of the documentation that the code knows are those of the code

FIGURES is the table. A row has a page and a regular expression, whose group is the figure as the
page writes it: 64, 4 MiB, 2M, 0.5 s, seven, `FARFORK1`, bytes in hexadecimal. Beside it stand a
file and a symbol: a #define, an enumerator, a constant of a script, or a regular expression whose
group is the value. A unit follows where the symbol's name ends in none (_S, _MS, _US, _NS). The
page is read with its lines joined; every place that the expression finds is compared, and one that
finds none fails: the figure went, and so should its row, or the text has other words now.

Message numbers of a move, options, and limits of address options: man_matches_help.py.

Exit code    0 all agree, 1 something differs
"""
import fractions
import os
import re
import sys

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..')
WIRE, OPS, BENCH = 'docs/wire.md', 'docs/operations.md', 'docs/benchmarking.md'
GUEST, DISKS, README = 'docs/guest.md', 'docs/disks.md', 'README.md'
MOVE7, FARFORK1, VMCLONE1 = 'man/farfork-rdma-postcopy.7', 'man/farfork.1', 'man/vmclone.1'
GUEST8 = 'man/farfork-guest.8'
TOUR, KEPT, FAIL = 'docs/architecture.md', 'docs/invariants.md', 'docs/failures.md'
N = r'([0-9.]+|[a-z]+)'             # a number
BYTES = r'([0-9]+(?: [KMG]iB|[KMG])?)'
TIME = r'([0-9.]+|[a-z]+)( ?(?:s|ms|us|seconds))'
DEFAULT = r'\.{} = ([^,]+),'

FIGURES = (
    # --- the control messages ---
    (WIRE, rf'`migrate/wire\.c`, version {N}\)', 'migrate/wire.h', 'FF_WIRE_VERSION'),
    (WIRE, rf'oldest version that it can speak \| at most {N} \|', 'migrate/wire.h',
     'FF_WIRE_VERSION'),
    (WIRE, rf'version that both will speak \| {N} \|', 'migrate/wire.h', 'FF_WIRE_VERSION'),
    (WIRE, r'magic \| the bytes (`FARFORK.`)', 'migrate/wire_message.h',
     'FF_WIRE_MAGIC'),
    (WIRE, rf'authentication \| {N}: none', 'migrate/wire.h', 'FF_WIRE_AUTH_NONE'),
    (WIRE, rf'0: none; {N}: by key', 'migrate/wire.h', 'FF_WIRE_AUTH_KEY'),
    (WIRE, rf'type \| 1 to {N} \|', 'migrate/wire.h', 'FF_MSG_LAST'),
    (WIRE, rf'is at most {N} bytes long in all', 'rdma/link.h', 'FF_MSG_MAX'),
    (WIRE, rf'either \| text, at most {N} bytes: why', 'migrate/wire.h', 'FF_WIRE_TEXT_MAX'),
    (WIRE, rf'source \| 1 to {N} bytes of device state', 'migrate/wire.h', 'FF_WIRE_DATA_MAX'),
    (WIRE, rf'number of regions \| 1 to {N},', 'migrate/wire.h', 'FF_WIRE_REGIONS_MAX'),
    (WIRE, rf'length of config \| 0 to {N} \|', 'migrate/wire.h', 'FF_WIRE_CONFIG_MAX'),
    (WIRE, rf'length of name \| 1 to {N} \|', 'migrate/wire.h', 'FF_WIRE_NAME_MAX'),
    (WIRE, r'not 0, at most (2\^[0-9]+) \|', 'migrate/wire.h', 'FF_WIRE_REGION_LEN_MAX'),
    (WIRE, r'\| (?:8 \| )?([0-9]+) \| session \| random', 'rdma/link.h', 'FF_SESSION_LEN'),
    (WIRE, rf'a power of two, {BYTES} to 2\^46; at most', 'migrate/wire.h', 'FF_WIRE_SEGMENT_MIN'),
    (WIRE, rf'to 2\^46; at most {N} (?:pieces|segments) in all', 'migrate/wire.h',
     'FF_WIRE_KEYS_MAX'),
    (WIRE, rf'At most {N}\s+parts over a link', 'migrate/wire.h', 'FF_WIRE_PARTS_MAX'),
    (WIRE, rf"pages, of the region's page size \| 1 to {N} \|", 'migrate/wire.h',
     'FF_WIRE_DIRTY_MAX'),
    (WIRE, rf'bytes of device state \| 1 to {N} \|', 'migrate/wire.h', 'FF_WIRE_STATE_MAX'),
    (WIRE, rf'first-touch pages \| 0 to {N} \|', 'migrate/wire.h', 'FF_WIRE_FIRST_MAX'),
    (WIRE, rf'keys that follow \| 0 to {N} \|', 'migrate/wire.h', 'FF_WIRE_KEYS_MAX'),
    (WIRE, rf'For each grant, 1 to {N} in a message', 'migrate/wire.h', 'FF_WIRE_GRANTS_MAX'),
    (WIRE, rf'id \| below {N}; not of a grant', 'migrate/wire.h', 'FF_WIRE_GRANTS_MAX'),
    (WIRE, rf'it writes {N} bytes of zeros only', 'migrate/responder.c', 'NOTE_BYTES'),
    (WIRE, rf'HELLO \| destination \| {TIME};', 'migrate/dest_private.h', 'DEST_HELLO_MS'),
    (WIRE, rf'up to {N} peers at once', 'migrate/dest_private.h', 'DEST_WAITING_MAX'),
    (WIRE, rf'in answer to HELLO \| destination \| {TIME} \|', 'migrate/dest_hear.c',
     'REFUSE_MS'),
    (WIRE, rf'PUBLISH \| destination \| {TIME}:', 'migrate/dest_private.h', 'PUBLISH_MS'),
    (WIRE, rf'WATCHING \| source \| {TIME}:', 'migrate/source_private.h', 'WATCHING_MS'),
    (WIRE, rf'PROGRESS is sent every {TIME}', 'migrate/dest_private.h', 'PROGRESS_MS'),
    (WIRE, rf'source \| {TIME} together, from the first', 'migrate/address.c',
     DEFAULT.format('pause_ms'), 'ms'),
    (WIRE, rf'the same {TIME} have passed', 'migrate/address.c', DEFAULT.format('pause_ms'), 'ms'),
    (WIRE, rf'\| GO \| destination \| {TIME} \|', 'migrate/dest.c', 'GO_MS'),
    (WIRE, rf'\| WITHDRAWN \| destination \| {TIME} \|', 'migrate/dest_private.h', 'WITHDRAWN_MS'),
    (WIRE, rf'sides bear {N} times as much silence', 'migrate/address.c', 'GO_PATIENCE'),
    (WIRE, rf'{N} times `timeout`', 'migrate/address.c', 'GO_PATIENCE'),
    (WIRE, rf'address option, in seconds, {N} by default', 'migrate/address.c',
     DEFAULT.format('timeout_ms'), 'ms', 's'),
    # --- the tcp link ---
    (WIRE, rf'`rdma/tcp_wire\.c`, version {N}\)', 'rdma/tcp_wire.h', 'TCP_VERSION'),
    (WIRE, rf'version of the tcp link \| {N} \|', 'rdma/tcp_wire.h', 'TCP_VERSION'),
    (WIRE, r'magic \| (`[0-9a-f ]+`) \("FFcm"\)', 'rdma/tcp_wire.c', 'MAGIC_CTRL'),
    (WIRE, r'magic \| (`[0-9a-f ]+`) \("FFcs"\)', 'rdma/tcp_wire.c', 'MAGIC_SEALED'),
    (WIRE, r'magic \| (`[0-9a-f ]+`) \("FFhs"\)', 'rdma/handshake.c', 'MAGIC_HELLO'),
    (WIRE, r'magic \| (`[0-9a-f ]+`) \("FFha"\)', 'rdma/handshake.c', 'MAGIC_ANSWER'),
    (WIRE, rf'`rdma/handshake\.c`, version {N}\)', 'rdma/handshake.h', 'FF_HS_VERSION'),
    (WIRE, rf'version of the handshake \| {N} \|', 'rdma/handshake.h', 'FF_HS_VERSION'),
    (WIRE, rf'bit each \| {N}: AES-256-GCM', 'rdma/handshake.h', 'FF_HS_AES256_GCM'),
    (WIRE, rf'{N}: ChaCha20-Poly1305', 'rdma/handshake.h', 'FF_HS_CHACHA20_POLY1305'),
    (WIRE, rf'whose proof is not there {TIME} after', 'rdma/tcp_gate.c', 'GATE_MS'),
    (WIRE, rf'It holds {N} such connections; a', 'rdma/tcp_gate.h', 'TCP_GATE_MAX'),
    (WIRE, rf'sealed by the suite, and {N} bytes of its tag', 'rdma/seal.h', 'FF_SEAL_TAG_LEN'),
    (WIRE, rf'After {N} records the secret', 'rdma/seal.h', 'FF_SEAL_RECORDS'),
    (WIRE, r'magic \| (`[0-9a-f ]+`) \("FFsf"\)', 'rdma/tcp_wire.c', 'MAGIC_FRAME'),
    (WIRE, rf'has at most {N} bytes of content', 'rdma/tcp_wire.h', 'TCP_SEALED_MIXED'),
    (WIRE, rf'`next`\) after {N} frames', 'rdma/seal.h', 'FF_SEAL_FRAMES'),
    (WIRE, r'magic \| (`[0-9a-f ]+`) \("FFjn"\)', 'rdma/tcp_wire.c', 'MAGIC_JOIN'),
    (WIRE, r'magic \| (`[0-9a-f ]+`) \("FFrq"\)', 'rdma/tcp_wire.c', 'MAGIC_REQ'),
    (WIRE, r'magic \| (`[0-9a-f ]+`) \("FFrp"\)', 'rdma/tcp_wire.c', 'MAGIC_REP'),
    (WIRE, rf'length of the message \| 1 to {N} \|', 'rdma/link.h', 'FF_MSG_MAX'),
    (WIRE, rf'\| length \| 1 to {N} \|', 'rdma/tcp_wire.h', 'TCP_MAX_LEN'),
    (WIRE, rf'divides the length, at most {N} times', 'rdma/link.h', 'FF_GRANULES_MAX'),
    (WIRE, rf'has room for \({N} replies\)', 'rdma/link.h', 'FF_QUEUE_DEPTH'),
    (WIRE, rf'It holds {N} such connections at most', 'rdma/tcp_listen.c', 'HELD_MAX'),
    # --- the verbs link ---
    (WIRE, rf'`rdma/verbs_request\.c`, version {N}\)', 'rdma/verbs_request.c', 'VERSION'),
    (WIRE, rf'version of the verbs link \| {N} \|', 'rdma/verbs_request.c', 'VERSION'),
    (WIRE, r'magic \| (`[0-9a-f ]+`) \("FFvj"\)', 'rdma/verbs_request.c', 'MAGIC'),
    (WIRE, rf'request {N} bytes, and', 'rdma/verbs_request.c', 'PRIVATE_LEN'),
    (WIRE, rf'bytes, and {N} for the two steps', 'rdma/verbs_request.h', 'VERBS_PRIVATE_MAX'),
    (WIRE, rf'The destination remembers {N} answers', 'rdma/verbs_gate.h', 'VERBS_GATE_MAX'),
    (WIRE, rf'answers, each for {TIME} and one proof', 'rdma/verbs_gate.c', 'GATE_MS'),
    (WIRE, rf'on up to {N} addresses of HOST', 'rdma/verbs_cm.c', 'LISTEN_MAX'),
    (WIRE, rf'each, {N} receive buffers of 64 KiB', 'rdma/verbs.h', 'VERBS_CTRL_RECVS'),
    (WIRE, rf'receive buffers of {BYTES}, and', 'rdma/link.h', 'FF_MSG_MAX'),
    (WIRE, rf'One READ or WRITE carries {BYTES} at most', 'rdma/verbs.h', 'VERBS_MAX_LEN'),
    (WIRE, rf'requests in flight: {N}, or what', 'rdma/link.h', 'FF_QUEUE_DEPTH'),
    (WIRE, rf'READs in flight on a queue pair: {N},', 'rdma/verbs.h', 'VERBS_RD_ATOMIC_MAX'),
    (WIRE, rf'in every request \| 1 to {N},', 'rdma/verbs.h', 'VERBS_QPS_MAX'),
    (WIRE, rf'reason as text, at most {N} bytes', 'rdma/verbs.h', 'VERBS_REJECT_LEN'),
    (WIRE, rf'`auto`: {TIME},', 'rdma/link.c', 'AUTO_VERBS_MS'),
    (WIRE, rf'the handshake, at the destination \| {TIME},', 'rdma/verbs_cm.c', 'ESTABLISHED_MS'),
    (WIRE, rf'whose handshake did not end \| {TIME},', 'rdma/verbs_cm.c', 'HEARD_MS'),
    (WIRE, rf'local ACK timeout {N}\)', 'rdma/verbs_cm.c', 'ACK_TIMEOUT'),
    # --- a probe ---
    (WIRE, rf'type 2 \| version 2 \({N}\)', 'probe/probe.h', 'FF_PROBE_VERSION'),
    (WIRE, rf'\| HELLO \| {N} \| the peer', 'probe/probe.h', 'FF_PROBE_HELLO'),
    (WIRE, rf'\| WELCOME \| {N} \| the serving', 'probe/probe.h', 'FF_PROBE_WELCOME'),
    (WIRE, rf'\| KEY \| {N} \| the serving', 'probe/probe.h', 'FF_PROBE_KEY'),
    (WIRE, rf'\| BYE \| {N} \| the peer', 'probe/probe.h', 'FF_PROBE_BYE'),
    (WIRE, rf'\| REFUSE \| {N} \| the serving', 'probe/probe.h', 'FF_PROBE_REFUSE'),
    (WIRE, rf'text, at most {N} bytes; in place of', 'probe/probe.h', 'FF_PROBE_TEXT_MAX'),
    (WIRE, rf'length 4: {N} to 8 MiB', 'probe/probe.h', 'FF_PROBE_LEN_MIN', '', 'MiB'),
    (WIRE, rf'length 4: 2 to {BYTES}', 'probe/probe.h', 'FF_PROBE_LEN_MAX'),
    # --- the tour, invariants, failures ---
    (TOUR, rf'background transfer: {BYTES} by default', 'migrate/address.c',
     DEFAULT.format('chunk_bytes')),
    (TOUR, rf'one thread a CPU, at most {N} \|', 'migrate/segments.c', 'THREADS_MAX'),
    (TOUR, rf'PROGRESS every {TIME}', 'migrate/dest_private.h', 'PROGRESS_MS'),
    (KEPT, rf'sends no GO later than {TIME} after', 'migrate/address.c',
     DEFAULT.format('pause_ms'), 'ms'),
    (KEPT, rf'waits {TIME} for GO', 'migrate/dest.c', 'GO_MS'),
    (KEPT, rf'Prefill begins {TIME} after the guest', 'migrate/prefill.c', 'HEAD_START_NS'),
    (FAIL, rf'not READY: {TIME} after', 'migrate/address.c', DEFAULT.format('pause_ms'), 'ms'),
    (FAIL, rf'the {TIME} have passed', 'migrate/address.c', DEFAULT.format('pause_ms'), 'ms'),
    (FAIL, rf'{N} times `timeout`', 'migrate/address.c', 'GO_PATIENCE'),
    (FAIL, rf'has fetched nothing for {TIME},', 'qemu-patches/src/rdma-postcopy-quit.c',
     'QUIT_PATIENCE_MS'),
    (FAIL, rf'when none has come for {TIME},', 'qemu-patches/src/rdma-postcopy-quit.c',
     'QUIT_PATIENCE_MS'),
    (FAIL, rf'DST reports every {TIME}', 'migrate/dest_private.h', 'PROGRESS_MS'),
    (FAIL, rf'install a page for {TIME}, before', 'migrate/pager_install.c', 'SHORT_NS'),
    (FAIL, rf'postcopy-paused after {TIME}, the reason', 'migrate/pager_install.c', 'SHORT_NS'),
    # --- options of the address, limits ---
    (README, rf'`qps` \| 1 to 8 \| {N} \|', 'migrate/address.c', DEFAULT.format('qps')),
    (README, rf'`timeout` \| 1 to 3600 \(s\) \| {N} \|', 'migrate/address.c',
     DEFAULT.format('timeout_ms'), 'ms', 's'),
    (README, rf'suffix K or M \| {BYTES} \|', 'migrate/address.c', DEFAULT.format('chunk_bytes')),
    (README, rf'`window` \| 1 to 32 \| {N} \|', 'migrate/prefill_engine.c', 'WINDOW'),
    (README, rf'handed over, {N} times as long', 'migrate/address.c', 'GO_PATIENCE'),
    (README, rf'if an RDMA connection succeeds within {TIME}', 'rdma/link.c', 'AUTO_VERBS_MS'),
    (README, rf'At most {N} memory regions', 'migrate/wire.h', 'FF_WIRE_REGIONS_MAX'),
    (README, rf'memory regions, {BYTES} of device state', 'migrate/wire.h', 'FF_WIRE_STATE_MAX'),
    (MOVE7, rf'1 to 8, default {N}\. Source', 'migrate/address.c', DEFAULT.format('qps')),
    (MOVE7, rf'1 to 3600, default {N}\.', 'migrate/address.c', DEFAULT.format('timeout_ms'), 'ms',
     's'),
    (MOVE7, rf'handed over, {N} times as long', 'migrate/address.c', 'GO_PATIENCE'),
    (MOVE7, rf'4096 to 4194304, default {BYTES};', 'migrate/address.c',
     DEFAULT.format('chunk_bytes')),
    (MOVE7, rf'1 to 32; default {N}, and', 'migrate/prefill_engine.c', 'WINDOW'),
    (MOVE7, rf'and {N} over tcp with a round trip', 'migrate/prefill_engine.c', 'WINDOW_FAR'),
    (MOVE7, rf'a round trip of {TIME} or more', 'migrate/prefill_engine.c', 'FAR_US'),
    (MOVE7, rf'tries that first, for {TIME} at most', 'rdma/link.c', 'AUTO_VERBS_MS'),
    (MOVE7, rf'At most {N} memory regions', 'migrate/wire.h', 'FF_WIRE_REGIONS_MAX'),
    (MOVE7, rf'memory regions and {BYTES} of device state', 'migrate/wire.h', 'FF_WIRE_STATE_MAX'),
    (MOVE7, rf'load the device state within {TIME}', 'migrate/address.c',
     DEFAULT.format('pause_ms'), 'ms'),
    (MOVE7, rf'no page came for {TIME},', 'qemu-patches/src/rdma-postcopy-quit.c', 'QUIT_PATIENCE_MS'),
    (MOVE7, rf'After {TIME} it says \.Li postcopy-paused', 'migrate/pager_install.c', 'SHORT_NS'),
    # --- doctor, move, agent ---
    (FARFORK1, rf'is {N} unless given; 0 lets', 'cli/doctor_peer.c', 'PORT'),
    (FARFORK1, rf'read a pattern of {BYTES},', 'probe/probe.h', 'FF_PROBE_LEN_MAX'),
    (FARFORK1, rf'to get the rest\. The default is {N}\.', 'cli/cmd_move.c', 'TIMEOUT_S', ''),
    (FARFORK1, rf'no guest for so long\. The default is {N}\.', 'cli/cmd_agent.c', 'TIMEOUT_S', '', ''),
    (FARFORK1, rf'Moves by each peer; default {N}\.', 'bench/bench.py',
     r"'--runs', .*default=([0-9]+)"),
    (FARFORK1, rf'does not converge; default {N},', 'bench/testbed.py',
     r'LIMIT_S, LEAST_S = ([0-9]+)'),
    (OPS, rf'the serving host \| as above, port {N} \|', 'cli/doctor_peer.c', 'PORT'),
    (OPS, rf'--dports {N},32768', 'cli/doctor_peer.c', 'PORT'),
    ('packaging/farfork.nft', rf'farfork_ports = \{{ {N},', 'cli/doctor_peer.c', 'PORT'),
    ('packaging/farfork.xml', rf'tcp" port="{N}"/> <port', 'cli/doctor_peer.c', 'PORT'),
    ('cli/doctor_host.c', rf'PORT "{N}"', 'cli/doctor_peer.c', 'PORT'),
    (OPS, rf'if an RDMA connection succeeds within {TIME}', 'rdma/link.c', 'AUTO_VERBS_MS'),
    (OPS, rf'registers segments of {BYTES} and more', 'migrate/segments.c', 'SEGMENT_BYTES_MIN'),
    # --- forks ---
    (VMCLONE1, rf'The default is {N} times n', 'control/fork/serve_limits.h',
     'SERVE_CHILDREN_TIMES'),
    (VMCLONE1, rf'forks within a minute, 1 to {N}\.', 'control/fork/serve_limits.h',
     'SERVE_FORKS_MAX'),
    (VMCLONE1, rf'a minute, 1 to 1000\. The default is {N}\.', 'control/fork/serve_limits.h',
     'SERVE_FORKS'),
    (VMCLONE1, rf'The default is {N} with \.Fl -serve', 'control/fork/serve_limits.h',
     'SERVE_CHAIN'),
    (VMCLONE1, rf'has not answered {TIME} after the others', 'control/fork/fork_check.c',
     'LATE_MS'),
    (VMCLONE1, rf'\.Fl -timeout seconds, have code {N}\.', 'control/fork/exit_queue.h',
     'EXIT_QUEUE_NO_CODE'),
    (DISKS, rf'with less than {BYTES} for each overlay', 'vm/disk/disks_private.h',
     'DISK_ROOM_BYTES'),
    (GUEST, rf'entry has to have \*\*{N} bytes', 'vm/identity.h', 'CLONE_FW_CFG_BYTES'),
    (GUEST, rf'padded with spaces to {N} bytes', 'vm/identity.h', 'CLONE_FW_CFG_BYTES'),
    (GUEST, rf'head -c {N} /dev/zero', 'vm/identity.h', 'CLONE_FW_CFG_BYTES'),
    (GUEST, rf'newline, of at most {N} bytes', 'vm/guest_port.h', 'GUEST_LINE_MAX'),
    (GUEST, rf'WORD: at most {N} letters', 'vm/guest_port.h', 'GUEST_WORD_MAX'),
    (GUEST, rf'Of {N} forks that nobody has joined', 'control/fork/exit_queue.h',
     'EXIT_QUEUE_MAX'),
    (GUEST, rf'a host that is lost, has code {N}', 'control/fork/exit_queue.h',
     'EXIT_QUEUE_NO_CODE'),
    (GUEST, rf'go on likewise: they have code {N}', 'control/fork/exit_queue.h',
     'EXIT_QUEUE_NO_CODE'),
    (GUEST8, rf'org\.farfork/clone of {N} bytes', 'vm/identity.h', 'CLONE_FW_CFG_BYTES'),
    (GUEST8, rf'the limit is {N} seconds', 'guest/farfork-guest', 'FORK_LIMIT_S', '', ''),
    (GUEST, rf'Within its limit \({TIME}, unless', 'guest/farfork-guest', 'FORK_LIMIT_S', '', ''),
    (FARFORK1, rf'\(at most {N} letters', 'vm/guest_port.h', 'GUEST_WORD_MAX'),
    (GUEST8, rf'waits {N} seconds for an answer', 'guest/farfork-guest', 'FORK_LIMIT_S', '', ''),
    (GUEST8, rf'is lost, has code {N}\.', 'control/fork/exit_queue.h', 'EXIT_QUEUE_NO_CODE'),
    # --- the benchmark ---
    (BENCH, rf'`results\.json`, version {N}\.', 'bench/schema.py', r', VERSION = .*, ([0-9]+)'),
    (BENCH, rf'time line\*\* is in slots of {TIME}', 'bench/measure.py', 'SLOT_MS'),
    (BENCH, rf'to its console every {TIME}', 'bench/measure.py', 'REPORT_MS'),
    (BENCH, rf'the time line begins {TIME} before', 'bench/bench.py', 'AROUND_S'),
    (BENCH, rf'took more than {TIME}', 'tests/guests/micro/micro.h', 'STALL_NS'),
    (BENCH, rf'samples it by thread every {TIME}', 'bench/procstat.py', 'SAMPLE_S'),
    (BENCH, rf'UDP packet each {TIME},', 'bench/udpping.c', 'INTERVAL_NS'),
    (BENCH, rf'with values of {N} bytes', 'bench/redisload.c', 'VALUE'),
    (BENCH, rf'its memory beyond {N} MiB', 'bench/client_view.py', 'REDIS_REST_MIB'),
    (BENCH, rf'The default is {TIME}; over a link', 'bench/testbed.py',
     r'LIMIT_S, LEAST_S = ([0-9]+)', 's'),
    (BENCH, rf'fit into {TIME} of queue', 'bench/testbed.py', 'QUEUE_S'),
    (BENCH, rf'at most {TIME} of the line', 'bench/testbed.py', 'FRAME_S'),
    (BENCH, rf'one packet in {N} came', 'bench/testbed.py', 'LATE_OF'),
    (BENCH, rf'one stream, {TIME} \|', 'bench/baselines.c', 'STREAM_MS'),
    (BENCH, rf'one thread, {BYTES}, the best', 'bench/baselines.c', 'COPY_BYTES'),
)

WORDS = dict(zip('zero one two three four five six seven eight nine ten'.split(), range(11)))
UNITS = {'': 1, 'K': 1 << 10, 'M': 1 << 20, 'G': 1 << 30, 'KiB': 1 << 10, 'MiB': 1 << 20,
         'GiB': 1 << 30, 's': 1, 'seconds': 1, 'ms': fractions.Fraction(1, 10 ** 3),
         'us': fractions.Fraction(1, 10 ** 6), 'ns': fractions.Fraction(1, 10 ** 9)}


class Unknown(Exception):
    pass


def read(path):
    with open(os.path.join(TOP, path), encoding='utf-8') as f:
        return f.read()


def plain(path):
    """A page on one line, without the macros of a manual page that only set a word apart."""
    text = re.sub(r'^\.(?:Ar|Ic|Pa) ', '', read(path), flags=re.M)
    return ' '.join(text.split())


def figure(text, unit):
    """What a page says, as a number."""
    text = text.strip('`')
    m = re.fullmatch(r'([0-9.]+|[a-z]+) ?([KMG]iB|[KMG])?', text)
    if re.fullmatch(r'[0-9a-f]{2}( [0-9a-f]{2})+', text):
        return int.from_bytes(bytes.fromhex(text), 'little')
    if re.fullmatch(r'2\^[0-9]+', text):
        return 1 << int(text[2:])
    if not m:
        return int.from_bytes(text.encode('ascii'), 'little')
    if m[1].isalpha() and m[1] not in WORDS:
        raise Unknown(f'"{text}" is no number')
    number = fractions.Fraction(WORDS.get(m[1], m[1].rstrip('.')))
    return number * UNITS[(m[2] or unit).strip()]


def evaluate(text, path):
    """A constant expression of C or Python; names are those of the same file, or of link.h."""
    text = re.sub(r'/\*.*|#.*', '', text).strip().strip('"\'')
    text = re.sub(r'\(size_t\)', '', text)
    text = re.sub(r'\b(0x[0-9a-fA-F]+|[0-9][0-9.e-]*)(?:[uU]?[lL]{0,2})\b', r'\1', text)
    text = re.sub(r'\b[A-Z][A-Z_]+\b', lambda m: str(symbol(path, m[0])), text)
    if not re.fullmatch(r'[0-9a-fA-Fx.e()+*/<>\s-]+', text):
        raise Unknown(f'{path}: "{text}" is no constant')
    value = eval(text, {'__builtins__': {}})    # digits and operators, see above
    return fractions.Fraction(str(value))


def symbol(path, name):
    """The value of a symbol, or of what a regular expression finds."""
    text = read(path)
    if not re.fullmatch(r'\w+', name):
        m = re.search(name, text)
        if not m:
            raise Unknown(f'{path}: nothing like {name}')
        return evaluate(m[1], path)
    m = re.search(rf'^(?:#define +{name} +(.+)|\s*{name} ?= ?([^\n,]+))', text, re.M)
    if m:
        return evaluate(m[1] or m[2], path)
    for body in re.findall(r'\benum \w+ \{(.*?)\}', text, re.S):
        value = -1
        for item in re.sub(r'/\*.*?\*/', '', body, flags=re.S).split(','):
            word, _, given = item.partition('=')
            value = evaluate(given, path) if given else value + 1
            if word.strip() == name:
                return value
    if path != 'rdma/link.h':
        return symbol('rdma/link.h', name)
    raise Unknown(f'no symbol {name}')


def unit_of(name):
    return {'S': 's', 'MS': 'ms', 'US': 'us', 'NS': 'ns'}.get(name.rsplit('_', 1)[-1], '')


def problems_of(page, pattern, path, name, unit=None, page_unit=''):
    """What differs, of one row."""
    found = list(re.finditer(pattern, plain(page)))
    if not found:
        return [f'{page}: nothing like {pattern}']
    want = symbol(path, name) * UNITS[unit_of(name) if unit is None else unit]
    texts = [''.join(m.groups()) for m in found]
    values = [figure(m[1], m[2] if m.re.groups > 1 else page_unit) for m in found]
    return [f'{page}: "{t}" (by {pattern}), {path} has {name} = {float(want):g}'
            for t, v in zip(texts, values) if v != want]


def main():
    problems = []
    for row in FIGURES:
        try:
            problems += problems_of(*row)
        except (Unknown, OSError) as e:
            problems.append(f'{row[0]}: {row[1]}: {e}')
    print(f'{len(FIGURES)} figures')
    for p in problems:
        print(f'DIFFERS: {p}')
    return 1 if problems else 0


if __name__ == '__main__':
    sys.exit(main())
