/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_command_line.c - a child's command line: what differs from the parent's, and that nothing
 * else does
 */
#include "unit.h"

#include "command_line.h"

#define OWN " -S -qmp unix:/r/3.beside,server=on,wait=off -qmp unix:/r/3.qmp,server=on,wait=off -incoming defer"

static struct ff_error why;
static struct strv notes;

/* The command line in one string */
static char *line(const struct vm_spec *s, char *const *parent)
{
    struct strv out = {0};
    char *text = NULL;

    why.text[0] = '\0';
    strv_free(&notes);
    int rc = command_line_rewrite(parent, s, &out, &notes, &why);
    if (!rc) {
        text = xstrdup("");
        for (size_t i = 0; i < out.n; i++) {
            char *more = xprintf("%s%s%s", text, i ? " " : "", out.v[i]);
            free(text);
            text = more;
        }
    } else if (!why.text[0]) {
        fail_msg("refused with %d and no reason", rc);
    }
    strv_free(&out);
    return text;
}

static char *child(enum net_policy net, char *const *parent)
{
    const struct vm_spec s = {.id = "f", .number = 3, .total = 4, .qemu = "/q", .rundir = "/r",
                                 .here = true, .net = net, .bridge = "br0", .programs = true};

    return line(&s, parent);
}

static char *moved(char *const *parent)
{
    const struct vm_spec s = {.id = "m", .number = 1, .total = 1, .qemu = "/q", .rundir = "/r",
                                 .net = NET_KEEP, .incoming = "defer", .replaced = "/run/vm.qmp", .programs = true};

    return line(&s, parent);
}

/* A parent with these words gives a child with that line (without its own options) */
#define assert_child_net(net, own, want, ...)                                               \
    do {                                                                                    \
        char *const argv_[] = {"qemu", __VA_ARGS__, NULL};                                  \
        FF_AUTO_FREE char *got_ = child(net, argv_);                                           \
        if (!got_)                                                                          \
            fail_msg("refused: %s", why.text);                                              \
        FF_AUTO_FREE char *want_ = xprintf("/q %s%s", want, own);                              \
        assert_string_equal(got_, want_);                                                   \
    } while (0)
#define PLAIN " -display none" OWN
#define assert_child(want, ...) assert_child_net(NET_KEEP, PLAIN, want, __VA_ARGS__)
#define assert_refused(reason, ...)                                                           \
    do {                                                                                    \
        char *const argv_[] = {"qemu", __VA_ARGS__, NULL};                                  \
        FF_AUTO_FREE char *got_ = child(NET_KEEP, argv_);                                      \
        if (got_ || !strstr(why.text, reason))                                                \
            fail_msg("not refused by \"%s\": %s", reason, got_ ? got_ : why.text);            \
    } while (0)

static void test_same(void **state)
{
    (void)state;
    /* also an argument that looks like an option, two dashes, and what nobody knows */
    assert_child("-M q35 -m 512 -append -incoming x -cpu max,+x2apic --smp 4 -enable-kvm "
                 "-no-such-thing a=b,,c -device {\"driver\": \"e1000\"} -L  -boot d",
                 "-M", "q35", "-m", "512", "-append", "-incoming x", "-cpu", "max,+x2apic", "--smp",
                 "4", "-enable-kvm", "-no-such-thing", "a=b,,c", "-device",
                 "{\"driver\": \"e1000\"}", "-L", "", "-boot", "d");
}

static void test_dropped(void **state)
{
    (void)state;
    assert_child("-m 1G", "-incoming", "tcp:0:1", "-S", "-daemonize", "-pidfile", "/p", "-gdb",
                 "tcp::1", "-s", "-loadvm", "x", "-preconfig", "-mem-path", "/dev/shm",
                 "-mem-prealloc", "--incoming", "defer", "-m", "1G");
}

static void test_display(void **state)
{
    (void)state;
    assert_child_net(NET_KEEP, OWN, "-display none -m 1", "-vnc", ":1", "-display", "gtk",
                     "-m", "1");
    assert_child_net(NET_KEEP, " -serial file:/r/3.serial -monitor none" OWN, "-nographic",
                     "-nographic");
    assert_child_net(NET_KEEP, OWN, "-nodefaults -nographic", "-nodefaults", "-nographic");
}

static void test_monitors(void **state)
{
    (void)state;
    assert_child("-qmp unix:/r/3.vm.qmp,server=on,wait=off -monitor none -monitor none "
                 "-qmp unix:/r/3.vm.qmp.1,server,nowait -mon chardev=c,mode=control "
                 "-qmp unix:/r/3.b,server=on,wait=off",
                 "-qmp", "unix:/run/vm.qmp,server=on,wait=off", "-monitor", "stdio", "-monitor",
                 "tcp::99,server=on", "-qmp", "tcp:0:1,server=on", "-qmp",
                 "unix:/tmp/vm.qmp,server,nowait", "-mon", "chardev=c,mode=control", "-qmp",
                 "unix:/b,server=on");
}

static void test_chardevs(void **state)
{
    (void)state;
    assert_child(
        "-chardev socket,id=a,path=/r/3.x,server=on,wait=off "
        "-chardev file,id=b,path=/r/3.log.1 -chardev null,id=c -chardev null,id=d -chardev null,id=e,mux=on "
        "-chardev file,id=f,path=/r/3.f -chardev pty,id=g,logfile=/r/3.l",
        "-chardev", "socket,id=a,path=/run/x,server=on,wait=off", "-chardev",
        "file,id=b,path=/var/log", "-chardev", "null,id=c", "-chardev", "socket,id=d,host=h,port=1",
        "-chardev", "udp,id=e,mux=on,port=3", "-chardev", "stdio,id=f,signal=off", "-chardev",
        "pty,id=g,logfile=/l");
    assert_int_equal(notes.n, 2);
    assert_child("-serial file:/r/3.serial -serial file:/r/3.a.txt -debugcon null -parallel null "
                 "-serial unix:/r/3.s,server=on,wait=off -serial null",
                 "-serial", "mon:stdio", "-serial", "file:/tmp/a.txt", "-debugcon", "pipe:/x",
                 "-parallel", "/dev/parport0", "-serial", "unix:/s,server=on,wait=on", "-serial",
                 "unix:/client");
    assert_child("-D /r/3.q.log -trace x", "-D", "/var/q.log", "-trace", "x");
}

/* What the parent writes stays its own */
static void test_files(void **state)
{
    (void)state;
    assert_child("-trace enable=a*,file=/r/3.t -trace file=/r/3.t.1 -trace events=/e "
                 "-object filter-dump,id=d,netdev=n,file=/r/3.p "
                 "-object {\"qom-type\":\"filter-dump\",\"id\":\"e\",\"file\":\"/r/3.p.1\"} "
                 "-audiodev wav,id=a,path=/r/3.w -audiodev wav,id=b,path=/r/3.qemu.wav "
                 "-audio driver=wav,path=/r/3.w.1 -audiodev none,id=c "
                 "-device usb-tablet,pcap=/r/3.u -device uefi-vars-x64,jsonfile=/r/3.j",
                 "-trace", "enable=a*,file=/t", "-trace", "file=/t", "-trace", "events=/e", "--object",
                 "filter-dump,id=d,netdev=n,file=/x/p", "-object",
                 "{\"qom-type\":\"filter-dump\",\"id\":\"e\",\"file\":\"/p\"}", "-audiodev",
                 "wav,id=a,path=/w", "-audiodev", "wav,id=b", "-audio", "driver=wav,path=w", "-audiodev",
                 "none,id=c", "-device", "usb-tablet,pcap=/u", "-device", "uefi-vars-x64,jsonfile=/j");
    assert_int_equal(notes.n, 9);
    assert_child("-chardev pty,id=a,path=/r/3.link -qtest-log /r/3.q -set device.d.addr=3 "
                 "-global a.b=c -icount shift=3", "-chardev", "pty,id=a,path=/dev/link", "-qtest-log", "/q",
                 "-set", "device.d.addr=3", "-global", "a.b=c", "-icount", "shift=3", "-plugin",
                 "/p.so,outfile=/x");
    assert_int_equal(notes.n, 1);
    assert_child("-run-with user=a -run-with async-teardown=on", "-run-with", "exit-with-parent=on,user=a",
                 "-run-with", "exit-with-parent=on", "-run-with", "async-teardown=on");
    assert_int_equal(notes.n, 2);
    assert_refused("-set device.d.pcap=/x", "-set", "device.d.pcap=/x");
    assert_refused("-set chardev.c.logfile=/x", "-set", "chardev.c.logfile=/x");
    assert_refused("-global usb-tablet.pcap=/x", "-global", "usb-tablet.pcap=/x");
    assert_refused("rr=", "-icount", "shift=7,rr=record,rrfile=/x");
    assert_refused("-global driver=", "-global", "driver=usb-tablet,property=pcap,value=/x");
}

static void test_memory(void **state)
{
    (void)state;
    assert_child("-object memory-backend-ram,id=ram,size=64M -machine pc,memory-backend=ram "
                 "-object memory-backend-ram,id=m,size=1G "
                 "-object {\"qom-type\":\"memory-backend-ram\",\"id\":\"x\",\"size\":4096} "
                 "-object iothread,id=t",
                 "-object", "memory-backend-file,id=ram,size=64M,share=on,mem-path=/dev/shm/r",
                 "-machine", "pc,memory-backend=ram", "-object",
                 "memory-backend-memfd,id=m,size=1G,share=on,prealloc=on", "-object",
                 "{\"qom-type\":\"memory-backend-file\",\"id\":\"x\",\"size\":4096,"
                 "\"mem-path\":\"/x\",\"share\":true}", "-object", "iothread,id=t");
}

static void test_net(void **state)
{
    (void)state;
    assert_child("-netdev user,id=a -netdev tap,id=b,script=/x -netdev bridge,id=c,br=br1 "
                 "-nic user,model=virtio,mac=52:54:00:00:00:01 -net nic,netdev=a -net user "
                 "-netdev {\"type\":\"user\",\"id\":\"j\"}",
                 "-netdev", "user,id=a,hostfwd=tcp::22-:22,hostfwd=tcp::80-:80", "-netdev",
                 "tap,id=b,ifname=tap7,script=/x", "-netdev", "bridge,id=c,br=br1", "-nic",
                 "user,model=virtio,mac=52:54:00:00:00:01,hostfwd=tcp::1-:1", "-net",
                 "nic,netdev=a", "-net", "user", "-netdev",
                 "{\"type\":\"user\",\"id\":\"j\",\"hostfwd\":[{\"str\":\"tcp::1-:1\"}]}");
    assert_child("-netdev socket,id=s,connect=h:1 -netdev hubport,id=t,hubid=1178992643",
                 "-netdev", "socket,id=s,connect=h:1", "-netdev", "tap,id=t,fd=5,vhost=on");
    assert_child_net(NET_ISOLATED, " -display none" OWN,
                     "-netdev user,id=a -netdev hubport,id=s,hubid=1178992643 "
                     "-netdev hubport,id=t,hubid=1178992645 "
                     "-netdev {\"type\":\"hubport\",\"id\":\"v\",\"hubid\":1178992647}",
                     "-netdev", "user,id=a", "-netdev", "socket,id=s,mcast=230.0.0.1:1", "-netdev",
                     "tap,id=t,ifname=tap0,script=no", "-netdev",
                     "{\"type\":\"stream\",\"id\":\"v\",\"server\":false}");
    assert_int_equal(notes.n, 3);
    /* passt is confined in its own way; a socket at a path is one QEMU's */
    assert_refused("passt", "-netdev", "passt,id=p");
    assert_child("-netdev hubport,id=s,hubid=1178992641 -netdev hubport,id=d,hubid=1178992643 "
                 "-netdev stream,id=c,addr.type=unix,addr.path=/s", "-netdev",
                 "stream,id=s,server=on,addr.type=unix,addr.path=/s", "-netdev",
                 "dgram,id=d,local.type=unix,local.path=/s", "-netdev",
                 "stream,id=c,addr.type=unix,addr.path=/s");
    assert_child_net(NET_NONE, " -display none" OWN,
                     "-nic hubport,model=virtio,mac=1:2:3:4:5:6,hubid=1178992641 -device x,netdev=a",
                     "-nic", "user,mac=1:2:3:4:5:6,model=virtio", "-net", "user",
                     "-device", "x,netdev=a");
    assert_child_net(NET_USER, PLAIN, "-netdev user,id=a", "-netdev",
                     "tap,id=a,ifname=t0,vhost=on");
    char *const offloads[] = {"qemu", "-netdev", "tap,id=a,fd=3", "-device",
                              "{\"driver\":\"virtio-net-pci\",\"netdev\":\"a\"}", NULL};
    char *const again[] = {"qemu", "-netdev", "hubport,id=a,hubid=1178992641", "-device",
                           "virtio-net-pci,netdev=a", NULL};
    char *const *const all[] = {offloads, again};
    for (size_t i = 0; i < FF_ARRAY_LEN(all); i++) {
        FF_AUTO_FREE char *none = child(NET_USER, all[i]);
        assert_null(none);
        assert_non_null(strstr(why.text, "offloads of a tap"));
    }
    assert_child_net(NET_USER, PLAIN, "-netdev user,id=a -device e1000,netdev=a", "-netdev",
                     "tap,id=a,fd=3", "-device", "e1000,netdev=a");
    assert_child_net(NET_BRIDGE, PLAIN, "-netdev bridge,id=a,br=br0 -netdev bridge,id=b,br=b7",
                     "-netdev", "user,id=a,hostfwd=tcp::1-:1", "-netdev", "tap,id=b,br=b7");
}

/* A backend with one queue does not fit a NIC that has several */
static void test_queues(void **state)
{
    char *const fds[] = {"qemu", "-netdev", "tap,id=t,fds=5:6,vhost=on", NULL},
         *const queues[] = {"qemu", "-netdev", "tap,id=t,script=/x,queues=2", NULL};
    (void)state;

    for (enum net_policy net = NET_ISOLATED; net <= NET_KEEP; net++) {
        FF_AUTO_FREE char *got = child(net, fds);
        if (got || !strstr(why.text, "network t") || !strstr(why.text, "2 queues"))
            fail_msg("%d: %s %s", (int)net, got ? got : "", why.text);
    }
    assert_child("-netdev tap,id=t,script=/x,queues=2", "-netdev",
                 "tap,id=t,script=/x,queues=2,ifname=t0");
    FF_AUTO_FREE char *none = child(NET_NONE, queues);
    assert_null(none);
    assert_child("-netdev tap,id=t,queues=1", "-netdev", "tap,id=t,queues=1");
}

static void test_tpm(void **state)
{
    char *const argv[] = {"qemu", "-tpmdev", "emulator,id=t,chardev=c", NULL};
    (void)state;

    assert_refused("no second guest can share", "-tpmdev", "emulator,id=t,chardev=c");
    FF_AUTO_FREE char *there = moved(argv);
    assert_null(there);
    assert_non_null(strstr(why.text, "swtpm"));

    char *const with[] = {"qemu", "-chardev", "socket,id=c,path=/run/here.sock", "-tpmdev",
                          "emulator,id=t,chardev=c", "-chardev", "socket,id=d,path=/run/other", NULL};
    const struct vm_spec s = {.id = "m", .number = 1, .total = 1, .qemu = "/q", .rundir = "/r",
                              .net = NET_KEEP, .incoming = "defer", .tpm = "/run/a,b"};
    FF_AUTO_FREE char *kept = line(&s, with);
    assert_non_null(strstr(kept, "-chardev socket,id=c,path=/run/a,,b "
                                  "-tpmdev emulator,id=t,chardev=c -chardev null,id=d"));
}

static void test_disks(void **state)
{
    (void)state;
    assert_child("-cdrom /a.iso -drive file=/a,readonly=on -drive if=none,id=x "
                 "-blockdev driver=file,filename=/a,node-name=n,read-only=on "
                 "-blockdev {\"driver\":\"file\",\"filename\":\"/a\",\"read-only\":true} "
                 "-drive if=pflash,format=raw,file=/ovmf,readonly=on",
                 "-cdrom", "/a.iso", "-drive", "file=/a,readonly=on", "-drive", "if=none,id=x",
                 "-blockdev", "driver=file,filename=/a,node-name=n,read-only=on", "-blockdev",
                 "{\"driver\":\"file\",\"filename\":\"/a\",\"read-only\":true}", "-drive",
                 "if=pflash,format=raw,file=/ovmf,readonly=on");
    /* they are the child's by then: tests/unit/vm/test_disks.c */
    assert_child("-hda /a.img", "-hda", "/a.img");
}

/* A child's files have the names of the first parent's, and no socket is there twice */
static void test_again(void **state)
{
    (void)state;
    assert_child("-serial file:/r/3.ser -D /r/3.ser.1 -D /r/3.x", "-serial", "file:/b/f/h/7.ser",
                 "-D", "/b/f/h/7.ser.1", "-D", "/other/x", "-qmp",
                 "unix:/b/f/h/7.qmp,server=on,wait=off", "-incoming", "defer");
    assert_child("-serial file:/r/3.ser", "-serial", "file:/b/7.ser", "-qmp",
                 "unix:/b/7.qmp,server=on,wait=off", "-readconfig", "/b/7.genid", "-incoming",
                 "defer");
    /* one that somebody named so himself */
    assert_child("-serial file:/r/3.7.ser -qmp unix:/r/3.7.qmp,server=on,wait=off -m 1G", "-serial",
                 "file:/b/7.ser", "-qmp", "unix:/b/7.qmp,server=on,wait=off", "-m", "1G");
}

/* As libvirt has it: what a guest says goes to virtlogd */
static void test_fdsets(void **state)
{
    (void)state;
    assert_child("-chardev pty,id=a,logfile=/r/3.2,logappend=on -chardev file,id=b,path=/r/3.3,append=on",
                 "-add-fd", "set=2,fd=24,opaque=a", "-chardev",
                 "pty,id=a,logfile=/dev/fdset/2,logappend=on", "-add-fd", "set=3,fd=25", "-chardev",
                 "file,id=b,path=/dev/fdset/3,append=on");
    assert_child("-m 1G", "-add-fd", "fd=3,set=1", "-m", "1G");
}

static void test_refused(void **state)
{
    (void)state;
    assert_refused("-readconfig /x", "-readconfig", "/x");
    assert_refused("-readconfig /x.genid", "-readconfig", "/x.genid");
    assert_child("-m 1G", "-readconfig", "/run/f/h/7.genid", "-m", "1G"); /* of a child */
    assert_refused("-add-fd", "-add-fd", "fd=3,set=1", "-drive", "file=/dev/fdset/1");
    assert_refused("-add-fd", "-drive", "file=/dev/fdset/1", "-add-fd", "fd=3,set=1");
    assert_refused("ends with -m", "-m");
    assert_refused("JSON", "-device", "{\"driver\":");
}

#define assert_moved(want, ...)                                                               \
    do {                                                                                    \
        char *const argv_[] = {"qemu", __VA_ARGS__, NULL};                                  \
        FF_AUTO_FREE char *got_ = moved(argv_);                                                \
        if (!got_)                                                                          \
            fail_msg("refused: %s", why.text);                                              \
        assert_string_equal(got_, "/q " want " -display none -qmp "                         \
                                  "unix:/r/1.qmp,server=on,wait=off -incoming defer");      \
    } while (0)

/* Of a guest that is moved: what the other process lets go of stays */
static void test_move(void **state)
{
    (void)state;
    assert_moved("-m 1G -netdev tap,id=a,ifname=t0,script=no -nic user,hostfwd=tcp::1-:2 "
                 "-netdev user,id=b -net none -device e1000,netdev=a",
                 "-m", "1G", "-netdev", "tap,id=a,ifname=t0,script=no", "-nic",
                 "user,hostfwd=tcp::1-:2", "-netdev", "user,id=b", "-net", "none", "-device",
                 "e1000,netdev=a");
    assert_int_equal(notes.n, 0);
    /* the socket that was connected to has its own in its place, others have not */
    assert_moved("-qmp unix:/r/1.vm.qmp,server=on,wait=off -pidfile /r/1.p",
                 "-qmp", "unix:/run/vm.qmp,server=on,wait=off", "-qmp",
                 "unix:/run/other/vm.qmp,server=on", "-pidfile", "/run/p", "-daemonize", "-S",
                 "-incoming", "tcp:x", "-mem-path", "/", "-mem-path", "/dev/null");
    assert_moved("-object memory-backend-memfd,id=m,size=1G,hugetlb=on -object "
                 "{\"qom-type\":\"memory-backend-memfd\",\"id\":\"x\",\"size\":4096,\"hugetlb\":true} "
                 "-object memory-backend-memfd,id=y,size=1G,share=off",
                 "-object", "memory-backend-memfd,id=m,size=1G,hugetlb=on,share=off", "-object",
                 "{\"qom-type\":\"memory-backend-memfd\",\"id\":\"x\",\"size\":4096,\"hugetlb\":true,\"share\":false}",
                 "-object", "memory-backend-memfd,id=y,size=1G,share=off");
    assert_moved("-object memory-backend-ram,id=m,size=1G -chardev null,id=c",
                 "-object", "memory-backend-file,size=1G,id=m,mem-path=/x,share=on,prealloc=on",
                 "-chardev", "socket,id=c,path=/client");
    assert_int_equal(notes.n, 1);
    assert_non_null(strstr(notes.v[0], "not connected there"));

    /* before GO no file is touched that the QEMU here writes; a part of the guest goes with it */
    assert_moved("-trace file=/r/1.t -object filter-dump,id=d,file=/r/1.p -audiodev wav,id=a,path=/r/1.w "
                 "-device uefi-vars-x64,jsonfile=/j",
                 "-trace", "file=/t", "-object", "filter-dump,id=d,file=/p", "-audiodev",
                 "wav,id=a,path=/w", "-device", "uefi-vars-x64,jsonfile=/j");
    assert_int_equal(notes.n, 3);
    assert_non_null(strstr(notes.v[0], "writes 1.t in its run directory, and leaves /t alone"));

    char *const handed[] = {"qemu", "-netdev", "tap,id=a,fd=3", NULL};
    assert_null(moved(handed));
    assert_non_null(strstr(why.text, "as a descriptor"));
    char *const passt[] = {"qemu", "-netdev", "{\"type\":\"passt\",\"id\":\"p\"}", NULL};
    assert_null(moved(passt));
    assert_non_null(strstr(why.text, "passt"));
    char *const listens[] = {"qemu", "-netdev", "stream,id=s,server=on,addr.type=unix,addr.path=/s", NULL};
    const struct vm_spec beside = {.id = "m", .number = 1, .total = 1, .qemu = "/q", .rundir = "/r",
                                   .net = NET_KEEP, .incoming = "defer", .here = true};
    assert_null(line(&beside, listens));
    assert_non_null(strstr(why.text, "/s"));
    FF_AUTO_FREE char *elsewhere = moved(listens);
    assert_non_null(elsewhere);
    char *const vnc[] = {"qemu", "-vnc", ":1", NULL};
    FF_AUTO_FREE char *blind = moved(vnc);
    assert_non_null(blind);
    assert_non_null(strstr(notes.v[0], "no display there"));
}

static void test_policies(void **state)
{
    enum net_policy net;
    const char *bridge;
    (void)state;

    assert_int_equal(net_policy_parse("isolated", &net, &bridge, &why), 0);
    assert_int_equal(net, NET_ISOLATED);
    assert_int_equal(net_policy_parse("bridge:br7", &net, &bridge, &why), 0);
    assert_int_equal(net, NET_BRIDGE);
    assert_string_equal(bridge, "br7");
    assert_int_equal(net_policy_parse("bridge:", &net, &bridge, &why), -EINVAL);
    assert_int_equal(net_policy_parse("tap", &net, &bridge, &why), -EINVAL);
}

/* Whose file another QEMU finds only in the same folder */
static void test_disk_without_option(void **state)
{
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"qemu", "qemu"},
        {"qemu -m 64 -S", "qemu -m 64 -S"},
        {"qemu -m 64 disk.img", "qemu -m 64 -hda disk.img"},
        {"qemu /d.img -m 64", "qemu -hda /d.img -m 64"},
        {"qemu -S /d.img --nographic", "qemu -S -hda /d.img --nographic"}, /* -S takes no argument */
        {"qemu --name -S -enable-kvm json:{}", "qemu --name -S -enable-kvm -hda json:{}"},
        {"qemu -m", "qemu -m"},
        {"/lib/ld-linux-x86-64.so.2 --library-path /l qemu -m 64 d.img",
         "/lib/ld-linux-x86-64.so.2 --library-path /l qemu -m 64 -hda d.img"},
        {"ld.so /qemu d.img", "ld.so /qemu -hda d.img"},
    };
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(cases); i++) {
        char text[120], *rest = text;
        struct strv argv = {0};
        snprintf(text, sizeof(text), "%s", cases[i].in);
        for (char *w; (w = strsep(&rest, " "));)
            strv_add(&argv, "%s", w);
        command_line_name_disk(&argv, argv.v[0]);
        FF_AUTO_FREE char *out = xstrdup("");
        for (size_t k = 0; k < argv.n; k++) {
            char *more = xprintf("%s%s%s", out, k ? " " : "", argv.v[k]);
            free(out);
            out = more;
        }
        assert_string_equal(out, cases[i].out);
        assert_null(argv.v[argv.n]);
        strv_free(&argv);
    }
}

static void test_drop_loader(void **state)
{
    static const char *const cases[][2] = {
        {"/l/ld-linux-x86-64.so.2 --argv0 q --library-path /l /b/qemu -m 64 a.img",
         "/l/ld-linux-x86-64.so.2 -m 64 a.img"},
        {"/l/ld.so /b/qemu", "/l/ld.so"},
        {"/l/ld.so --library-path /l", "/l/ld.so --library-path /l"},
        {"/b/qemu -m 64 a.img", "/b/qemu -m 64 a.img"},
    };

    (void)state;
    for (size_t i = 0; i < FF_ARRAY_LEN(cases); i++) {
        FF_AUTO_FREE char *words = xstrdup(cases[i][0]), *out = xstrdup("");
        struct strv argv = {0};
        char *rest;

        for (char *w = strtok_r(words, " ", &rest); w; w = strtok_r(NULL, " ", &rest))
            strv_add(&argv, "%s", w);
        command_line_drop_loader(&argv, argv.v[0]);
        for (size_t k = 0; k < argv.n; k++) {
            char *more = xprintf("%s%s%s", out, k ? " " : "", argv.v[k]);
            free(out);
            out = more;
        }
        assert_string_equal(out, cases[i][1]);
        strv_free(&argv);
    }
}

static void test_relative(void **state)
{
    static const struct {
        const char *option, *value;
        bool relative;
    } cases[] = {
        {"-kernel", "Image", true},
        {"--initrd", "/boot/initrd", false},
        {"-drive", "if=none,file=../a.img", true},
        {"-drive", "file=/a.img,if=none", false},
        {"-drive", "file=nbd://host/a", false},
        {"-blockdev", "{\"driver\":\"raw\",\"file\":{\"driver\":\"file\",\"filename\":\"a\"}}", true},
        {"-blockdev", "{\"driver\":\"raw\",\"file\":{\"driver\":\"file\",\"filename\":\"/a\"}}", false},
        {"-blockdev", "driver=qcow2,node-name=n,file.driver=file,file.filename=a", true},
        {"-blockdev", "{\"driver\":\"qcow2\",\"file\":\"node\"}", false},
        {"-fw_cfg", "name=opt/a,file=a", true},
        {"-fw_cfg", "name=opt/a,string=b/c", false},
        {"-device", "virtio-net-pci,romfile=", false},
        {"-device", "virtio-net-pci,romfile=a/b.rom", true},
        {"-bios", "qboot.rom", false},
        {"-bios", "./qboot.rom", true},
        {"-netdev", "tap,id=a,script=no,downscript=none", false},
        {"-append", "a,file=b", false},
        {"-chardev", "file,id=a,path=log", false}, /* a child's own */
        {"-trace", "file=log", false},
        {"-readconfig", "a.cfg", true},
        {"-no-such", "thing", false},
        {"-hda", "disk.img", true},
    };
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(cases); i++) {
        char *const argv[] = {"qemu", (char *)cases[i].option, (char *)cases[i].value, NULL};
        FF_AUTO_FREE char *got = command_line_relative(argv);
        if (!got == cases[i].relative)
            fail_msg("%s %s", cases[i].option, cases[i].value);
    }
}

/* What starts a program is for a user to permit; but for the bridge helper of --net bridge */
static void test_programs(void **state)
{
    static const struct {
        const char *option, *value;
        bool starts;
        enum net_policy net; /* of a child that is refused; NET_KEEP: a move, and a child with keep */
    } cases[] = {
        {"-netdev", "bridge,id=a", true, NET_KEEP},
        {"--netdev", "{\"type\":\"bridge\",\"id\":\"a\"}", true, NET_KEEP},
        {"-nic", "bridge,br=b,model=e1000", true, NET_KEEP},
        {"-netdev", "tap,id=a", true, NET_KEEP}, /* /etc/qemu-ifup */
        {"-net", "tap,script=/x", true, NET_KEEP},
        {"-netdev", "tap,id=a,helper=/x,script=no", true, NET_KEEP},
        {"-netdev", "tap,id=a,script=no,downscript=/x", true, NET_KEEP},
        {"-netdev", "tap,id=a,ifname=t,script=no,downscript=no", false, NET_KEEP},
        {"-netdev", "tap,id=a,ifname=t,script=no", false, NET_KEEP},
        {"-netdev", "tap,id=a,fd=3", false, NET_ISOLATED},
        {"-netdev", "user,id=bridge", false, NET_KEEP},
        {"-netdev", "user,id=a,smb=/x", true, NET_KEEP},
        {"-nic", "guestfwd=tcp:10.0.2.1:1-cmd:/x", true, NET_KEEP},
        {"-netdev", "user,id=a,guestfwd=tcp:10.0.2.1:1-tcp:h:1", false, NET_KEEP},
        {"-netdev", "{\"type\":\"user\",\"id\":\"a\",\"guestfwd\":[{\"str\":\"tcp:10.0.2.1:1-cmd:/x\"}]}", true, NET_KEEP},
        {"-netdev", "user,id=a,type=tap,script=/x", true, NET_KEEP}, /* the last counts */
        {"-netdev", "user,id=a,type=bridge", true, NET_KEEP},
        {"-netdev", "vde,id=a,sock=cmd:///x", true, NET_KEEP},
        {"-set", "netdev.a.script=/x", true, NET_KEEP},
        {"-set", "device.a.romfile=/x", false, NET_KEEP},
        {"-nic", "none", false, NET_KEEP},
        {"-device", "pci-bridge,id=bridge", false, NET_KEEP},
    };
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(cases); i++) {
        char *const argv[] = {"qemu", (char *)cases[i].option, (char *)cases[i].value, NULL};
        struct vm_spec s = {.id = "m", .number = 1, .total = 1, .qemu = "/q", .rundir = "/r",
                            .net = cases[i].net, .incoming = cases[i].net == NET_KEEP ? "defer" : NULL};
        FF_AUTO_FREE char *got = line(&s, argv);
        if (!got != cases[i].starts)
            fail_msg("%s %s: %s", cases[i].option, cases[i].value, got ? got : why.text);
        if (!got)
            assert_error(why, EPERM, "--unconfined");
        s.programs = true;
        FF_AUTO_FREE char *permitted = line(&s, argv);
        if (!permitted)
            fail_msg("%s %s, permitted: %s", cases[i].option, cases[i].value, why.text);
    }
    static const struct vm_spec bridged = {.id = "f", .number = 1, .total = 1, .qemu = "/q", .rundir = "/r",
                                           .net = NET_BRIDGE, .bridge = "br0"};
    char *const asked[] = {"qemu", "-netdev", "bridge,id=a,helper=/x", NULL}, *const not[] = {"qemu", "-set", "netdev.a.script=/x", NULL};
    FF_AUTO_FREE char *got = line(&bridged, asked), *refused = line(&bridged, not);
    assert_non_null(got);
    assert_null(strstr(got, "/x"));
    assert_null(refused);
}

/* A child has no memory in a file that a device could give away; its own children, and moves of it, have none of its agent's
 * monitor */
static void test_child(void **state)
{
    static const struct vm_spec s = {.id = "f", .number = 3, .total = 4, .qemu = "/q", .rundir = "/r",
                                     .here = true, .net = NET_KEEP};
    char *const parent[] = {"qemu", "-object", "memory-backend-memfd,id=m,size=1G,share=on,prealloc=on", "-object",
                            "memory-backend-memfd,id=h,size=1G,hugetlb=on,share=on", "-object",
                            "{\"qom-type\":\"memory-backend-memfd\",\"id\":\"j\",\"hugetlb\":true,\"size\":1}", "-incoming", "tcp:x",
                            NULL};
    char *const again[] = {"qemu", "-S", "-qmp", "unix:/r/3.beside,server=on,wait=off", "-qmp",
                           "unix:/r/3.qmp,server=on,wait=off", "-incoming", "defer", NULL};
    FF_AUTO_FREE char *got = line(&s, parent), *grandchild = child(NET_KEEP, again), *there = moved(again);

    (void)state;
    assert_non_null(got);
    assert_string_equal(got, "/q -object memory-backend-ram,id=m,size=1G -object "
                             "memory-backend-memfd,id=h,size=1G,hugetlb=on,share=off,reserve=off -object "
                             "{\"qom-type\":\"memory-backend-memfd\",\"id\":\"j\",\"hugetlb\":true,\"size\":1,\"share\":false,"
                             "\"reserve\":false} -display none -S -qmp unix:/r/3.beside,server=on,wait=off "
                             "-qmp unix:/r/3.qmp,server=on,wait=off -incoming defer");
    assert_non_null(grandchild);
    assert_string_equal(grandchild, "/q" PLAIN);
    assert_non_null(there);
    assert_null(strstr(there, "beside"));
}

UNIT_MAIN(cmocka_unit_test(test_child), cmocka_unit_test(test_same), cmocka_unit_test(test_dropped),
          cmocka_unit_test(test_display), cmocka_unit_test(test_monitors),
          cmocka_unit_test(test_chardevs), cmocka_unit_test(test_tpm),
          cmocka_unit_test(test_fdsets), cmocka_unit_test(test_files),
          cmocka_unit_test(test_memory), cmocka_unit_test(test_net),
          cmocka_unit_test(test_queues), cmocka_unit_test(test_disks),
          cmocka_unit_test(test_again), cmocka_unit_test(test_refused), cmocka_unit_test(test_move),
          cmocka_unit_test(test_policies), cmocka_unit_test(test_relative), cmocka_unit_test(test_drop_loader), cmocka_unit_test(test_disk_without_option), cmocka_unit_test(test_programs))
