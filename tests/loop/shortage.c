/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * shortage.c - no memory to install a page: after GO the guest waits until there is some, and its
 *              owner hears of it; before GO the move ends
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <unistd.h>

#include "cleanup.h"
#include "dest_private.h"
#include "failpoint.h"
#include "loop.h"

static void setup(void)
{
    image_new(16000);
}

static unsigned n_short, n_again;

static void on_shortage(void *opaque, const char *why)
{
    must(opaque == &n_short);
    if (!why) {
        n_again++;
        return;
    }
    must(strstr(why, "region0"));
    n_short++;
}

static void listen_for_it(struct move *m, enum stage stage)
{
    if (stage == D_DONE)
        ff_dest_on_shortage(m->dest, on_shortage, &n_short);
}

/* Both threads find no memory for some seconds, longer than a silent link would be borne */
static void goes_on(bool tcp, const char *options)
{
    static struct move m;
    struct ff_error err;

    must_ok(ff_failpoints_arm("dest.install=fail:12@3-900,dest.around=fail", &err), err);
    m = (struct move){.tcp = tcp, .options = options, .n_regions = 1, .cells = {16000},
                      .touchers = 2, .writes = true, .touch_late = true, .hook = listen_for_it};
    uint64_t t = ff_now_ns();
    move_run(&m);
    printf("      short for %u ms, told %u and %u times, %lu installs\n", (unsigned)((ff_now_ns() - t) / 1000000),
           n_short, n_again, (unsigned long)ff_failpoint_hits("dest.install"));
    move_must_succeed(&m);
    must(ff_failpoint_hits("dest.install") > 900 && n_short == 1 && n_again == 1);
}

static void tcp_pull(void)
{
    goes_on(true, "timeout=1,chunk=1M,window=32");
}

static void tcp_push(void)
{
    goes_on(true, "timeout=1,prefill=push,chunk=1M");
}

static void loop_pull(void)
{
    goes_on(false, "timeout=1");
}

/* A hole in a file takes its first memory when it is touched */
static void a_hole(void)
{
    static struct move m;
    struct ff_error err;

    must_ok(ff_failpoints_arm("dest.install=fail:12@3-400", &err), err);
    m = (struct move){.tcp = true, .n_regions = 1, .cells = {4000}, .memory = MEM_MEMFD,
                      .touchers = 2, .touch_late = true, .hook = listen_for_it};
    move_run(&m);
    must(ff_failpoint_hits("dest.install") > 400);
    move_must_succeed(&m);
}

/* A hole that was pending when the link broke is filled over the next one: it is not short any more */
static void short_since_the_last(struct move *m, enum stage stage)
{
    if (stage == D_DONE)
        atomic_store(&m->dest->pager.short_ns[FF_BY_FAULT], ff_now_ns());
}

static void a_later_link(void)
{
    static struct move m;

    m = (struct move){.tcp = true, .n_regions = 1, .cells = {4000}, .memory = MEM_MEMFD,
                      .touchers = 2, .touch_late = true, .hook = short_since_the_last};
    move_run(&m);
    must(!atomic_load(&m.dest->pager.short_ns[FF_BY_FAULT]));
    move_must_succeed(&m);
}

/* What was read before the link broke is the guest's, as soon as there is memory */
static struct peek waits;

static void break_meanwhile(struct move *m, enum stage stage)
{
    uint64_t cell = 0;

    if (stage != D_DONE)
        return;
    while (cell_is_zero(cell))
        cell++;
    peek_start(&waits, m, cell);
    while (ff_failpoint_hits("dest.install") < 5) /* the test's limit bounds it */
        usleep(1000);
    move_cancel_source(m);
}

static void breaks_meanwhile(void)
{
    static struct move m;
    struct ff_error err;

    must_ok(ff_failpoints_arm("dest.install=fail:12@1-200", &err), err);
    m = (struct move){.tcp = true, .options = "prefill=off", .hook = break_meanwhile};
    move_run(&m);
    must(m.ran && m.dst.rc && m.src.rc);
    must(ff_failpoint_hits("dest.install") < 200 && !atomic_load(&waits.ended));
    must(wait_flag(&waits.ended, 15000));
    must(ff_failpoint_hits("dest.install") == 201);
    _exit(0); /* the link is broken for good */
}

/* --- a file system without room --- */

#define FS_CELLS 2000
#define FS_FREE (64 * CELL)

static int filler = -1;

/* Memory of @m that is a file of a tmpfs which another file fills but for FS_FREE */
static void file_in_small_fs(struct move *m)
{
    char dir[] = "/tmp/farfork-loop-XXXXXX", path[64], size[32];
    struct area *a = &m->area[0];
    uint64_t len = FS_CELLS * CELL;

    must(loop_mkdtemp(dir));
    snprintf(size, sizeof(size), "size=%llu", (unsigned long long)len);
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("none", dir, "tmpfs", 0, size)) {
        rmdir(dir);
        loop_skip("cannot mount a tmpfs here: %s", strerror(errno));
    }
    snprintf(path, sizeof(path), "%s/memory", dir);
    *a = (struct area){.len_bytes = len, .psize = CELL,
                       .fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600)};
    must(a->fd >= 0 && !ftruncate(a->fd, (off_t)len));
    a->host = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, a->fd, 0);
    must(a->host != MAP_FAILED);
    snprintf(path, sizeof(path), "%s/filler", dir);
    filler = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    must(filler >= 0 && !fallocate(filler, 0, 0, (off_t)(len - FS_FREE)));
    must(!umount2(dir, MNT_DETACH) && !rmdir(dir)); /* it lasts as long as the files are open */
}

/* Somebody makes room once the guest has waited for some links */
static void make_room_late(struct move *m, bool source)
{
    if (!source && atomic_load(&m->breaks_dst) == 3)
        must(!ftruncate(filler, 0));
}

/* What lands in place by TCP this process writes itself: not by SIGBUS. Each link ends there, and the
 * next one tries again */
static void no_room(void)
{
    static struct move m;

    m = (struct move){.options = "landing=continue,chunk=64K", .n_regions = 1, .cells = {FS_CELLS}, .touchers = 2,
                      .writes = true, .touch_late = true, .broken = make_room_late};
    file_in_small_fs(&m);
    move_must_survive(&m, "dest.prefill=delay:0", 3);
}

static atomic_bool told;

static void on_break(void *opaque, const char *why)
{
    (void)opaque;
    (void)why;
    atomic_store(&told, true);
}

static void wait_told(struct move *m, enum stage stage)
{
    if (stage == D_STATE)
        ff_dest_on_break(m->dest, on_break, NULL);
    if (stage == D_READY)
        must(wait_flag(&told, 15000));
}

/* The source has its guest: there is nothing to wait for */
static void before_go(void)
{
    static struct move m;
    struct ff_error err;

    must_ok(ff_failpoints_arm("dest.install=fail:12", &err), err);
    m = (struct move){.tcp = true, .n_first = 1, .hook = wait_told};
    move_run(&m);
    must(!m.ran && !m.went && m.src.rc && m.dst.rc == -ENOMEM);
    move_free(&m);
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"tcp: goes on", tcp_pull, 60},
        {"tcp: goes on, push", tcp_push, 60},
        {"loop: goes on", loop_pull, 60},
        {"holes", a_hole, 60},
        {"holes, over a later link", a_later_link, 60},
        {"no room in the file system", no_room, 60},
        {"the link breaks meanwhile", breaks_meanwhile, 30},
        {"before GO", before_go, 30},
    };
    return loop_main(argc, argv, setup, tests, FF_ARRAY_LEN(tests));
}
