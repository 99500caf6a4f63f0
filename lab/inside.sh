#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# inside.sh - the part of lab/selftest that runs in the lab
#
# usage: inside.sh FOLDER MICRO_ELF QEMU      FOLDER has verbs_try and minor_continue
#
# A line a case: "ok NAME: what was seen" or "FAIL NAME: ..."; exit code 1 if one failed. A case
# of two hosts is left out, with a line "SKIP: ...", where there is one. Every wait has a limit.

# shellcheck disable=SC2317,SC2086
set -u
work=$1 micro=$2 qemu=$3
busybox=/run/lab/busybox
failed=0

ok() { echo "ok $*"; }
fail() {
    echo "FAIL $*"
    failed=1
}
# verdict NAME EXIT-CODE WHAT-WAS-SEEN
verdict() {
    local name=$1 code=$2
    shift 2
    if [ "$code" = 0 ]; then ok "$name: $*"; else fail "$name: exit code $code: $*"; fi
}
# until PATTERN is in FILE, at most 15 s
await() {
    local n
    for n in $(seq 150); do
        grep -qsE "$1" "$2" && return 0
        sleep 0.1
    done
    echo "no '$1' within 15 s: $(tail -3 "$2" | tr '\n' ' ')"
    return 1
}
# a server on hostb that waits for its client, then the client on hosta: pair SERVER -- CLIENT
pair() {
    local server=() n out=/tmp/pair.$$
    while [ "$1" != -- ]; do
        server+=("$1")
        shift
    done
    shift
    timeout 60 ip netns exec hostb "${server[@]}" > $out.server 2>&1 &
    local pid=$!
    # whether it listens yet is not to be seen from outside with all of them: try again
    for n in $(seq 10); do
        sleep 0.5
        timeout 40 ip netns exec hosta "$@" > $out.client 2>&1 && break
        kill -0 $pid 2> /dev/null || break
    done
    wait $pid
}
shown() { tr '\n' ' ' < /tmp/pair.$$.client | tail -c "${1:-150}"; }

verbs() {
    local out=/tmp/verbs.out
    stdbuf -oL ip netns exec hostb "$work/verbs_try" server 10.8.0.2 7000 > $out 2>&1 &
    await listening $out || return 1
    timeout 40 on hosta "$work/verbs_try" read 10.8.0.2 7000
}

links() {
    local out=/tmp/link.out client start
    timeout 60 ip netns exec hosta "$work/verbs_try" until-error 10.8.0.2 7000 40 > $out 2>&1 &
    client=$!
    await reading $out || return 1
    net down || return 1
    wait $client || { cat $out; return 1; }
    grep -v reading $out
    start=$(date +%s%N)
    net up || return 1
    echo "back after $((($(date +%s%N) - start) / 1000000)) ms"
    timeout 40 on hosta "$work/verbs_try" read 10.8.0.2 7000
}

rtt_ms() {
    on hosta $busybox ping -c 3 -W 5 10.8.0.2 | sed -n 's,^round-trip.*= \([0-9]*\)\..*,\1,p'
}

netem() {
    local with without
    net delay 20ms loss 1% || return 1
    with=$(rtt_ms)
    timeout 100 on hosta "$work/verbs_try" read 10.8.0.2 7000 || return 1
    net loss 100% || return 1
    ! on hosta $busybox ping -c 1 -W 1 10.8.0.2 > /dev/null ||
        { echo "100 % loss lets a ping pass"; return 1; }
    net clear
    without=$(rtt_ms)
    echo "smallest round trip $with ms with 20 ms each way, $without ms without"
    [ "${with:-0}" -ge 40 ]
}

apart() {
    # own interfaces, own address, own /sys; nothing of this machine's network
    local a b
    a=$(on hosta ls /sys/class/net | tr '\n' ' ')
    b=$(on hostb ls /sys/class/net | tr '\n' ' ')
    echo "hosta: $a hostb: $b"
    [ "$a" = "etha lo " ] && [ "$b" = "ethb lo " ] && ! ip link show eth0 2> /dev/null
}

hugepages() {
    sysctl -q vm.nr_hugepages=32 || return 1
    local n
    n=$(sed -n 's/^HugePages_Total: *//p' /proc/meminfo)
    echo "$n pages"
    [ "$n" = 32 ] && python3 -c '
import mmap, os
fd = os.memfd_create("huge", os.MFD_HUGETLB)
os.ftruncate(fd, 4 << 20)
m = mmap.mmap(fd, 4 << 20)
m[0:4] = b"huge"
print("wrote to one")'
}

nested() {
    local out=/tmp/micro.console
    timeout 60 "$qemu" -nodefaults -display none -no-reboot -bios qboot.rom -machine pc \
        -accel tcg -cpu max -m 64M -kernel "$micro" -append report_ms=400 \
        -debugcon file:$out < /dev/null 2> /tmp/micro.err &
    local pid=$! n
    for n in $(seq 100); do
        [ -s $out ] && break
        sleep 0.1
    done
    await boot $out || { cat /tmp/micro.err; kill $pid; return 1; }
    head -c 120 $out | head -1
    kill $pid
    wait $pid
    return 0
}

# run NAME COMMAND...
run() {
    local name=$1 said
    shift
    said=$("$@" 2>&1)
    verdict "$name" $? "$(tr '\n' ';' <<< "$said")"
}

run userfaultfd timeout 30 "$work/minor_continue"
run hugepages hugepages
if [ -r "$micro" ]; then run "nested QEMU" nested
else echo "SKIP: nested QEMU: no $micro: make guests"; fi
[ "$(ulimit -l)" = unlimited ]
verdict memlock $? "$(ulimit -l)"
run "/dev/stderr" bash -c 'echo opened anew > /dev/stderr && echo x > /dev/fd/1'

if [ "$LAB_HOSTS" = 1 ]; then
    echo "SKIP: two hosts, netem, link: this kernel has one host (LAB_KERNEL=7.2 has two)"
    "$work/verbs_try" server 10.7.0.1 7000 > /tmp/one.out 2>&1 &
    await listening /tmp/one.out
    run "verbs, one host" timeout 40 "$work/verbs_try" read 10.7.0.1 7000
    exit $failed
fi

run namespaces apart
for a in 10.8.0.2 fd08::2; do
    pair rping -s -a $a -C 3 -- rping -c -a $a -C 3 -v
    code=$?
    grep -q 'ping data: rdma-ping-2' /tmp/pair.$$.client || code=1
    verdict "rping $a" $code "$(shown 60)"
done
pair ucmatose -b 10.8.0.2 -C 10 -- ucmatose -b 10.8.0.1 -s 10.8.0.2 -C 10
verdict ucmatose $? "$(shown 100)"
pair ib_read_lat -d rxeb -x 1 -s 4096 -n 300 -- ib_read_lat -d rxea -x 1 -s 4096 -n 300 10.8.0.2
code=$?
verdict ib_read_lat $code "$(awk '/^ 4096/ {
    print "4 KiB: typical " $5 " us, 99 % " $8 " us" }' /tmp/pair.$$.client)"
run "verbs program" verbs
run "link down, up" links
run netem netem
exit $failed
