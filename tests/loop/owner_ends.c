/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * owner_ends.c - the process whose memory a source reads ends, gives its memory back, or may not be
 *                read: both sides say so, and nothing is invented
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cleanup.h"
#include "dest.h"
#include "farfork-elsewhere.h"
#include "owner.h"
#include "source.h"

#define CELLS (4 * (2u << 20) / CELL)
#define WHOLE .n_regions = 2, .cells = {CELLS / 2, CELLS / 2}, .add_source = owner_add

static void setup(void)
{
    image_new(CELLS);
}

/* --- it ends --- */

static enum stage kill_at;

/* What the destination asked for in the pause ends the link, before this side looks once more */
static void await_dest(struct move *m, enum stage stage)
{
    if (stage == S_GO && kill_at < S_GO)
        must(wait_flag(&m->dst.ended, OWNER_LIMIT_S * 1000));
}

static void kill_owner(struct move *m, enum stage stage)
{
    await_dest(m, stage);
    if (stage == kill_at)
        owner_kill();
}

static void must_say(const struct ff_error *err, const char *what)
{
    if (!strstr(err->text, what))
        loop_fail(__FILE__, __LINE__, "\"%s\" is not in: %s", what, err->text);
}

static void before_go(void)
{
    static struct move m = {.tcp = true, WHOLE, .hook = kill_owner};

    kill_at = S_GO;
    owner_start(OWNS_HOLES);
    move_run(&m);
    must(m.src.rc == -ETIME && m.src.stage == S_GO && m.dst.rc && !m.went && !m.ran);
    must_say(&m.src.err, "it has ended");
    move_free(&m);
}

/* The destination asks for a page in the pause */
static void dies_before_ready(bool untouched)
{
    static struct move m = {.tcp = true, WHOLE, .hook = kill_owner, .n_first = 1,
                            .options = "prefill=off"};

    while (cell_is_zero(m.first[0].offset / CELL) != untouched)
        m.first[0].offset += CELL;
    kill_at = S_STATE;
    owner_start(OWNS_HOLES);
    move_run(&m);
    must(m.src.rc && m.dst.rc && !m.went && !m.ran);
    must_say(&m.src.err, "it has ended");
    must_say(&m.dst.err, "the process that has the memory has ended");
    move_free(&m);
}

static void before_ready(void)
{
    dies_before_ready(false);
}

static void hole_before_ready(void)
{
    dies_before_ready(true);
}

static void after_go(void)
{
    static struct move m = {.tcp = true, WHOLE, .hook = kill_owner, .options = "prefill=pull"};

    kill_at = D_RUNNING;
    owner_start(OWNS_HOLES);
    move_run(&m);
    must(m.src.rc == -ESRCH && m.dst.rc && m.went && m.ran);
    must_say(&m.src.err, "it has ended");
    must_say(&m.dst.err, "has ended");
    move_free(&m);
}

static void *interrupt_main(void *arg)
{
    struct move *m = arg;

    must(wait_flag(&m->src.ended, OWNER_LIMIT_S * 1000));
    ff_dest_interrupt(m->dest);
    return NULL;
}

static pthread_t interrupter;

static void interrupt_later(struct move *m)
{
    must(!pthread_create(&interrupter, NULL, interrupt_main, m));
}

/* The source comes back once, to say so */
static void no_resume(void)
{
    static struct move m = {.tcp = true, WHOLE, .hook = kill_owner, .options = "prefill=pull",
                            .resumes = true, .prepared = interrupt_later};

    kill_at = D_RUNNING;
    owner_start(OWNS_HOLES);
    move_run(&m);
    pthread_join(interrupter, NULL);
    must(m.src.rc == -ESRCH && m.dst.rc && atomic_load(&m.breaks_src) == 1);
    must_say(&m.src.err, "the image is lost");
    move_free(&m);
}

static void unmap_main(void *arg)
{
    char byte;

    (void)arg;
    owner_remap();
    must(write(owner.ready[1], "", 1) == 1);
    must(read(owner.file, &byte, 1) == 1);
    must(!munmap(image, image_cells * CELL / 2));
    must(write(owner.ready[1], "", 1) == 1);
    for (;;)
        pause();
}

static int tell_fd;

static void unmap_owner(struct move *m, enum stage stage)
{
    char byte;

    await_dest(m, stage);
    if (stage != kill_at)
        return;
    must(write(tell_fd, "", 1) == 1);
    must(read(owner.ready[0], &byte, 1) == 1);
}

/* It lives, and has given its memory back: nothing of that is zeros */
static void unmapped(enum stage at, bool untouched, bool zero_fill)
{
    static struct move m = {.tcp = true, WHOLE, .hook = unmap_owner, .options = "prefill=off"};
    int tell[2];
    char byte;

    while (cell_is_zero(m.first[0].offset / CELL) != untouched)
        m.first[0].offset += CELL;
    m.n_first = at < S_GO;
    kill_at = at;
    owner = (struct owner){.owns = OWNS_HOLES, .zero_fill = zero_fill};
    must(!pipe(owner.ready) && !pipe(tell));
    owner.file = tell[0];
    tell_fd = tell[1];
    owner.pid = child_start(unmap_main, NULL);
    must(read(owner.ready[0], &byte, 1) == 1);
    image_hide(true);
    move_run(&m);
    must(m.src.rc && m.dst.rc && !m.went && !m.ran);
    must_say(&m.src.err, "it has no memory there");
    must_say(&m.dst.err, at == S_GO ? "it has no memory there" : "the process that has the memory");
    move_free(&m);
    owner_kill();
}

/* A page that the destination asks for in the pause */
static void unmapped_content(void)
{
    unmapped(S_STATE, false, true);
}

static void unmapped_hole(void)
{
    unmapped(S_STATE, true, true);
}

/* Not poisoned either, where the page tables are not asked */
static void unmapped_all_read(void)
{
    unmapped(S_STATE, false, false);
}

static void unmapped_unasked(void)
{
    unmapped(S_GO, false, true);
}

static void old_unmapped_hole(void)
{
    owner_old_kernel();
    unmapped_hole();
}

/* --- refused --- */

static struct ff_region region_of_image(void)
{
    return (struct ff_region){.name = "ram", .host = image, .len_bytes = image_cells * CELL,
                              .psize = CELL, .fd = -1, .zero_fill = true};
}

static struct ff_source *source_new(const char *text)
{
    struct ff_address *a;
    struct ff_source *s;
    struct ff_error err;

    must_ok(ff_address_parse(text, &a, &err), err);
    must_ok(ff_source_new(a, &s, &err), err);
    ff_address_free(a);
    return s;
}

static void regions(void)
{
    struct ff_source *s = source_new("127.0.0.1:1");
    struct ff_region r = region_of_image();
    struct ff_error err;

    owner_start(OWNS_HOLES);
    r.fd = 0;
    must(ff_source_add_region_of(s, &r, owner.pid, &err) == -EINVAL);
    r.fd = -1;
    r.len_bytes <<= 20;
    must(ff_source_add_region_of(s, &r, owner.pid, &err) == -EFAULT);
    must(ff_source_add_region_of(s, &r, owner.pid, NULL) == -EFAULT); /* not -EIO: there is no text */
    r = region_of_image();
    must_ok(ff_source_add_region_of(s, &r, owner.pid, &err), err);
    must(ff_source_add_region_of(s, &r, owner.pid, &err) == -EEXIST);
    r.name = "again";
    must(ff_source_add_region_of(s, &r, owner.pid, &err) == -EEXIST);
    r.name = "own";
    must_ok(ff_source_add_region(s, &r, &err), err); /* another process, the same address */
    owner_kill();
    r.name = "late";
    must(ff_source_add_region_of(s, &r, owner.pid, &err) == -ESRCH);
    ff_source_free(s);
    s = source_new("127.0.0.1:1");
    must(ff_source_add_region_of(s, &r, owner.pid, &err) == -ESRCH);
    must_say(&err, "there is none");
    ff_source_free(s);
}

static void unprivileged(void *arg)
{
    struct ff_source *s = source_new("127.0.0.1:1");
    struct ff_region r = region_of_image();
    struct ff_error err;

    (void)arg;
    must(!setresgid(65534, 65534, 65534) && !setresuid(65534, 65534, 65534));
    must(ff_source_add_region_of(s, &r, owner.pid, &err) == -EPERM);
    must_say(&err, "CAP_SYS_PTRACE");
    must_say(&err, "ptrace_scope");
    ff_source_free(s);
}

static void forbidden(void)
{
    if (geteuid())
        loop_skip("only root can become another user");
    owner_start(OWNS_HOLES);
    must(!child_wait(child_start(unprivileged, NULL), OWNER_LIMIT_S));
    owner_kill();
}

static void over_verbs(void)
{
    struct ff_source *s = source_new("127.0.0.1:1,link=verbs");
    struct ff_link_ops ops;
    struct ff_link *a, *b;
    struct ff_error err;
    struct ff_region r = region_of_image();

    owner_start(OWNS_HOLES);
    must_ok(ff_source_add_region_of(s, &r, owner.pid, &err), err);
    must(ff_source_connect(s, "test", &err) == -ENOTSUP);
    must_say(&err, "link=tcp");
    ff_source_free(s);
    /* and over a link that it was given */
    s = source_new("127.0.0.1:1");
    must_ok(ff_loop_pair(&a, &b, &err), err);
    ops = *a->ops;
    ops.backed = NULL;
    a->ops = &ops;
    ff_source_use_link(s, a);
    must_ok(ff_source_add_region_of(s, &r, owner.pid, &err), err);
    must(ff_source_connect(s, "test", &err) == -ENOTSUP);
    ff_source_free(s);
    b->ops->free(b);
    owner_kill();
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"the owner dies before GO", before_go, 0},
        {"the owner dies before READY", before_ready, 0},
        {"the owner dies before READY, a hole", hole_before_ready, 0},
        {"the owner dies after GO", after_go, 0},
        {"the owner dies, and the source resumes", no_resume, 60},
        {"memory is given back", unmapped_content, 0},
        {"a hole is given back", unmapped_hole, 0},
        {"memory without holes is given back", unmapped_all_read, 0},
        {"given back before GO", unmapped_unasked, 0},
        {"an older kernel: a hole is given back", old_unmapped_hole, 0},
        {"regions", regions, 0},
        {"without permission", forbidden, 0},
        {"over verbs", over_verbs, 0},
    };

    return loop_main(argc, argv, setup, tests, FF_ARRAY_LEN(tests));
}
