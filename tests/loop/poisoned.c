/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * poisoned.c - the source cannot read some of its pages: it goes on, and who touches them at the
 *              destination, or in a child, gets a signal, as at the source; nobody reads zeros
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      a page whose memory has failed gives SIGBUS to who touches it, and EFAULT to a system
 *              call. So does a page of a file that is too short: such pages stand in for it, and
 *              need no privilege. In the lab the memory does fail (tests/lab/hwpoison).
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cleanup.h"
#include "dest.h"
#include "family.h"
#include "pager.h"
#include "source.h"

#define CELLS 2001u /* of the two regions */
#define CHUNK_AT 704u /* a chunk of 64 KiB of which nothing can be read */
#define CHUNK_CELLS 16u

static bool is_bad(uint64_t cell)
{
    return cell == 100 || cell == 700 || cell == 1500 || cell == CELLS - 1 ||
           (cell >= CHUNK_AT && cell < CHUNK_AT + CHUNK_CELLS);
}

#define N_BAD (4 + CHUNK_CELLS)

static void on_failure(int sig)
{
    (void)sig;
}

static void spoil(uint64_t cell)
{
    FF_AUTO_CLOSE int fd = memfd_create("too short", MFD_CLOEXEC);
    uint8_t *page = image + cell * CELL;

    if (getenv("FARFORK_TEST_HWPOISON")) {
        struct sigaction told = {.sa_handler = on_failure}, before;
        *(volatile uint8_t *)page = *page; /* a page of this process alone */
        must(!sigaction(SIGBUS, &told, &before)); /* some kernels tell who asks */
        must(!madvise(page, CELL, MADV_HWPOISON) || errno == EBUSY); /* an adapter holds it */
        must(!sigaction(SIGBUS, &before, NULL));
        return;
    }
    must(fd >= 0);
    must(mmap(page, CELL, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED);
}

/* What who touches such a page gets: before Linux 6.6 the page can only be forbidden */
static int sig_here;

static void setup(void)
{
    image_new(CELLS);
    sig_here = loop_kernel()->poisons ? SIGBUS : SIGSEGV;
}

/* A page can be forbidden to a guest that runs, to nobody else */
static void need_poison(void)
{
    if (!loop_kernel()->poisons)
        loop_skip("this kernel poisons no pages: Linux 6.6 does");
}

/* --- a signal, or none --- */

static __thread sigjmp_buf back;

static void on_signal(int sig)
{
    siglongjmp(back, sig);
}

static int signal_at(const uint8_t *p)
{
    struct sigaction act = {.sa_handler = on_signal}, bus, segv;

    must(!sigaction(SIGBUS, &act, &bus) && !sigaction(SIGSEGV, &act, &segv));
    int sig = sigsetjmp(back, 1);
    if (!sig)
        (void)*(const volatile uint8_t *)p;
    must(!sigaction(SIGBUS, &bus, NULL) && !sigaction(SIGSEGV, &segv, NULL));
    return sig;
}

static uint8_t *at(const struct move *m, uint64_t cell)
{
    uint64_t first = m->area[0].len_bytes / CELL;

    return cell < first ? m->area[0].host + cell * CELL : m->area[1].host + (cell - first) * CELL;
}

/* --- moves --- */

static int want;

/* By a fault, before prefill begins */
static void touch_one(struct move *m, enum stage stage)
{
    if (stage == D_RUNNING)
        must(signal_at(at(m, 100)) == want);
}

static void spoil_all(void)
{
    for (uint64_t c = 0; c < CELLS; c++)
        if (is_bad(c))
            spoil(c);
}

static void move_must_poison(struct move *m, int sig)
{
    move_run(m);
    if (m->src.rc || m->dst.rc)
        loop_fail(__FILE__, __LINE__, "source: %s; destination: %s",
                  m->src.rc ? m->src.err.text : "done", m->dst.rc ? m->dst.err.text : "done");
    must(m->ran && m->n_cells == CELLS);
    for (uint64_t c = 0; c < CELLS; c++)
        if (is_bad(c) ? signal_at(at(m, c)) != sig : memcmp(at(m, c), image + c * CELL, CELL))
            loop_fail(__FILE__, __LINE__, "cell %llu: %s", (unsigned long long)c,
                      is_bad(c) ? "it can be read, or another signal" : "not what was sent");
    const struct ff_stats *d = &m->dst.stats;
    must(d->bytes_present == d->bytes_total);
    must(d->bytes_poisoned == N_BAD * CELL && m->src.stats.bytes_poisoned == N_BAD * CELL);
    must(d->bytes_prefill + d->bytes_fault + d->bytes_zero + d->bytes_poisoned == d->bytes_total);
}

static void move_bad(bool tcp, enum memory memory, const char *options, int sig)
{
    static struct move m;

    want = sig;
    m = (struct move){.tcp = tcp, .options = options, .memory = memory, .hook = touch_one};
    spoil_all();
    move_must_poison(&m, sig);
    move_free(&m);
}

static void loop_anon(void)
{
    move_bad(false, MEM_ANON, "chunk=64K", sig_here);
}

static void loop_continue(void)
{
    move_bad(false, MEM_MEMFD, "chunk=64K,landing=continue", sig_here);
}

static void tcp_anon(void)
{
    move_bad(true, MEM_ANON, "chunk=64K", sig_here);
}

static void tcp_move(void)
{
    move_bad(true, MEM_ANON_THP, "landing=move", sig_here);
}

static void tcp_copy(void)
{
    move_bad(true, MEM_MEMFD, "landing=copy", sig_here);
}

static void tcp_continue(void)
{
    move_bad(true, MEM_MEMFD, "chunk=64K,landing=continue", sig_here);
}

/* That it cannot be read there is a part of what is verified */
static void tcp_verified(void)
{
    char options[100];

    snprintf(options, sizeof(options), "chunk=64K,verify=on,key-file=%s", loop_key_file());
    move_bad(true, MEM_ANON, options, sig_here);
    loop_remove_key();
}

static void tcp_push(void)
{
    move_bad(true, MEM_ANON, "chunk=64K,prefill=push", sig_here);
}

static void loop_push(void)
{
    move_bad(false, MEM_MEMFD, "prefill=push", sig_here);
}

/* --- memory that an adapter cannot register: segments become parts --- */

/* Over verbs it refuses them itself */
#define REFUSED(from, to) "source.register=fail:14@" #from "-" #to

static bool is_verbs(void)
{
    return getenv("FARFORK_TEST_LINK");
}

static void in_parts(bool tcp, enum memory memory, const char *options)
{
    if (!is_verbs())
        loop_arm(REFUSED(1, 2)); /* both regions; what they are split into is taken */
    move_bad(tcp, memory, options, sig_here);
}

static void parts_copied(void)
{
    in_parts(true, MEM_ANON, "chunk=64K");
}

static void parts_in_place(void)
{
    in_parts(true, MEM_MEMFD, "chunk=64K,landing=continue");
}

static void parts_pushed(void)
{
    in_parts(true, MEM_ANON, "chunk=64K,prefill=push");
}

static void parts_moved(void)
{
    in_parts(false, MEM_ANON_THP, "landing=move");
}

/* A pass leaves them out, and what is poisoned is so for the frozen image */
static void parts_precopied(void)
{
    in_parts(true, MEM_MEMFD, "chunk=64K,precopy=1");
}

/* --- precopy=1: a page that cannot be read in the pass is good when it has been written --- */

static void make_good(uint64_t cell)
{
    uint8_t *page = image + cell * CELL;

    must(mmap(page, CELL, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS, -1, 0) !=
         MAP_FAILED);
    memset(page, (int)cell, CELL);
}

static struct peek early;

/* Waits until something is there, which must be what the guest wrote */
static void *touch_early(void *opaque)
{
    struct peek *p = opaque;

    must(*(volatile uint8_t *)at(p->m, p->cell) == (uint8_t)p->cell);
    return NULL;
}

/* Each second one is written. Of those that are left a thread here touches one, and it must not
 * hear of a page that is good by then */
static void written_after_pass(struct move *m, enum stage stage)
{
    uint64_t bits[64], cell = 0;
    struct ff_error err;

    if (stage != S_STATE)
        return;
    must_ok(ff_source_wait_watched(m->source, &err), err);
    early = (struct peek){.m = m, .cell = 700};
    must(!pthread_create(&early.thread, NULL, touch_early, &early));
    must_ok(ff_source_precopy(m->source, &err), err);
    for (unsigned i = 0; i < m->n_regions; i++) {
        memset(bits, 0, sizeof(bits));
        for (uint64_t k = 0; k < m->area[i].len_bytes / CELL; k++, cell++) {
            if (!is_bad(cell) || cell % 2)
                continue;
            make_good(cell);
            bits[k / 64] |= 1ull << (k % 64);
        }
        must_ok(ff_source_dirty(m->source, i, bits, CELL, &err), err);
    }
}

static void good_after_pass(enum memory memory, const char *options)
{
    static struct move m;
    uint64_t bad = 0;

    if (is_verbs())
        loop_skip("what an adapter could not register has no key, good or not");
    m = (struct move){.tcp = true, .options = options, .memory = memory,
                      .hook = written_after_pass};
    spoil_all();
    move_run(&m);
    if (m.src.rc || m.dst.rc)
        loop_fail(__FILE__, __LINE__, "source: %s; destination: %s",
                  m.src.rc ? m.src.err.text : "done", m.dst.rc ? m.dst.err.text : "done");
    pthread_join(early.thread, NULL);
    for (uint64_t c = 0; c < CELLS; c++) {
        bool stays = is_bad(c) && c % 2;
        bad += stays;
        if (stays ? signal_at(at(&m, c)) != sig_here : memcmp(at(&m, c), image + c * CELL, CELL))
            loop_fail(__FILE__, __LINE__, "cell %llu: %s", (unsigned long long)c,
                      stays ? "it can be read, or another signal" : "not what was sent");
    }
    const struct ff_stats *d = &m.dst.stats;
    must(d->bytes_poisoned == bad * CELL && d->bytes_present == d->bytes_total);
    move_free(&m);
}

static void pass_copied(void)
{
    good_after_pass(MEM_MEMFD, "chunk=64K,landing=copy,precopy=1");
}

static void pass_anon(void)
{
    good_after_pass(MEM_ANON, "chunk=64K,precopy=1");
}

static void pass_in_place(void)
{
    good_after_pass(MEM_MEMFD, "chunk=64K,landing=continue,precopy=1");
}

static void refused_otherwise(void)
{
    static struct move m;

    loop_arm(REFUSED(1, 2)); /* with memory that can be read */
    m = (struct move){.tcp = true};
    move_run(&m);
    must(m.src.rc == -EFAULT && m.dst.rc && !m.went && !m.ran);
    move_free(&m);
}

/* Touches a page that no link brings before it breaks */
static void *touch_late(void *opaque)
{
    struct peek *p = opaque;

    must(signal_at(at(p->m, p->cell)) == sig_here);
    return NULL;
}

static struct peek waits;

static void start_waiting(struct move *m, enum stage stage)
{
    if (stage != D_RUNNING)
        return;
    waits = (struct peek){.m = m, .cell = 700};
    must(!pthread_create(&waits.thread, NULL, touch_late, &waits));
}

static void fails_meanwhile(struct move *m, bool source)
{
    if (!source || atomic_load(&m->breaks_src) != 1)
        return;
    ff_source_drop_link(m->source); /* a thread of the old link that looks at a page now gets the signal */
    spoil_all();
}

/* It could be registered, and cannot be when the link is replaced; pages were asked for by then */
static void fails_later(enum memory memory, const char *options, bool by_fault)
{
    static struct move m;

    loop_arm(is_verbs() ? "dest.prefill=fail@1"
             : by_fault ? "dest.prefill=fail@1,tcp.serve.fault=fail@1," REFUSED(3, 4)
                        : "dest.prefill=fail@1," REFUSED(3, 4));
    m = (struct move){.tcp = true, .resumes = true, .options = options, .memory = memory,
                      .hook = is_verbs() || !by_fault ? NULL : start_waiting,
                      .broken = fails_meanwhile};
    move_must_poison(&m, sig_here);
    must(m.dst.stats.breaks >= 1);
    if (m.hook)
        pthread_join(waits.thread, NULL);
    move_free(&m);
}

/* Prefill has claimed what it asked for, good and bad pages at once */
static void later_in_place(void)
{
    fails_later(MEM_MEMFD, "prefill=pull,landing=continue,reconnect=60", false);
}

/* The fault thread has claimed one that was good, and its READ breaks the link */
static void later_copied(void)
{
    fails_later(MEM_ANON, "chunk=64K,prefill=pull,reconnect=60", true);
}

/* --- kernels that cannot poison a page --- */

static void old_kernel(void)
{
    loop_arm("uffd.poison=fail:22");
    move_bad(true, MEM_ANON, "chunk=64K", SIGSEGV);
}

static void wait_until_failed(struct move *m, enum stage stage)
{
    for (unsigned ms = 0;
         stage == D_READY && !ff_pager_check(ff_dest_pager(m->dest), FF_PAGER_FAILED, NULL); ms++) {
        must(ms < 20000);
        usleep(1000);
    }
}

static void old_kernel_before_go(void)
{
    static struct move m;

    loop_arm("uffd.poison=fail:22");
    m = (struct move){.tcp = true, .n_first = 1, .first = {{.region = 0, .offset = 100 * CELL}},
                      .hook = wait_until_failed};
    spoil(100);
    move_run(&m);
    must(m.src.rc && m.dst.rc && !m.went && !m.ran);
    if (!strstr(m.dst.err.text, "Linux 6.6"))
        loop_fail(__FILE__, __LINE__, "it says: %s", m.dst.err.text);
    move_free(&m);
}

/* --- forks --- */

static uint64_t peeked_cell(void)
{
    uint64_t cell = 7; /* as family.c has it */

    while (cell_is_zero(cell))
        cell++;
    return cell;
}

static void child_must_die(struct family *f, unsigned i)
{
    family_reap(f->child[i].pid, SIGBUS);
    f->child[i].pid = 0;
}

static struct family *new_family(void)
{
    signal(SIGBUS, SIG_DFL); /* a sanitizer has a handler */
    return family_new();
}

/* Two children whose threads touch a page that the source cannot read; it alone is asked for */
static struct family *peekers(const char *faults)
{
    struct family *f = new_family();

    f->n_children = 2;
    f->options = "prefill=off,reconnect=0";
    f->faults = faults;
    f->child[0].only_peek = f->child[1].only_peek = true;
    family_start(f);
    spoil(peeked_cell());
    family_source(f, S_RUNNING);
    return f;
}

static void children_touch_it(void)
{
    need_poison();
    struct family *f = peekers(NULL);

    child_must_die(f, 0);
    child_must_die(f, 1);
    must(!f->source_rc && !atomic_load(&f->ended)); /* the others go on */
    atomic_store(&f->may_cancel, true);
    must(wait_flag(&f->ended, 20000));
    family_free(f);
}

/* It has no guest whose page it could forbid: the image is lost */
static void agent_of_old_kernel(void)
{
    struct family *f = peekers("uffd.poison=fail:22");

    for (unsigned i = 0; i < 2; i++) {
        must(wait_flag(&f->child[i].done, 20000));
        must(atomic_load(&f->child[i].rc) && strstr(f->child[i].error, "Linux 6.6"));
        must(!atomic_load(&f->child[i].peeked));
    }
    must(wait_flag(&f->ended, 20000) && strstr(f->agent_error, "Linux 6.6"));
    atomic_store(&f->children_may_end, true);
    for (unsigned i = 0; i < 2; i++)
        family_reap(f->child[i].pid, 4 << 8);
    family_source(f, S_DONE);
    must(f->source_rc);
    family_free(f);
}

/* Nobody has touched it when all is here, and the children watch nothing any more */
static void told_at_the_end(void)
{
    need_poison();
    struct family *f = new_family();

    f->n_children = 3;
    f->last_later = true;
    f->child[2].when = WHEN_COMPLETE;
    family_start(f);
    spoil(family_last_cell(f));
    family_source(f, S_DONE);
    must(!f->source_rc);
    for (unsigned i = 0; i < 2; i++)
        must(wait_flag(&f->child[i].touched, 20000) && wait_flag(&f->child[i].done, 20000));
    must(!atomic_load(&f->child[0].rc) && !atomic_load(&f->child[1].rc));
    /* one that comes by now could not be told */
    atomic_store(&f->late_may_start, true);
    family_reap(f->child[2].pid, 3 << 8);
    f->child[2].pid = 0;
    must(strstr(f->child[2].error, "poisoned memory"));
    atomic_store(&f->last_may_come, true);
    child_must_die(f, 0);
    child_must_die(f, 1);
    family_free(f);
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"loop anon", loop_anon, 0},
        {"loop continue", loop_continue, 0},
        {"loop push", loop_push, 0},
        {"tcp anon", tcp_anon, 0},
        {"tcp move", tcp_move, 0},
        {"tcp copy", tcp_copy, 0},
        {"tcp continue", tcp_continue, 0},
        {"tcp verified", tcp_verified, 0},
        {"tcp push", tcp_push, 0},
        {"parts, copied", parts_copied, 0},
        {"parts, in place", parts_in_place, 0},
        {"parts, pushed", parts_pushed, 0},
        {"parts, moved", parts_moved, 0},
        {"parts, precopied", parts_precopied, 0},
        {"parts later, copied", later_copied, 0},
        {"parts later, in place", later_in_place, 0},
        {"pass, copied", pass_copied, 0},
        {"pass, anon", pass_anon, 0},
        {"pass, in place", pass_in_place, 0},
        {"refused otherwise", refused_otherwise, 0},
        {"a kernel without", old_kernel, 0},
        {"a kernel without, before GO", old_kernel_before_go, 0},
        {"children touch it", children_touch_it, 30},
        {"children are told at the end", told_at_the_end, 30},
        {"an agent on a kernel without", agent_of_old_kernel, 30},
    };
    return loop_main(argc, argv, setup, tests, FF_ARRAY_LEN(tests));
}
