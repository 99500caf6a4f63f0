/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * family.c - a source, an agent and its children: processes on this host
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "image.h"
#include "cleanup.h"
#include "family.h"
#include "failpoint.h"
#include "source.h"

#define TOUCHERS 2
#define MARK_AT (CELL - 64)
#define LIMIT_MS ((UNDER_SANITIZER ? 5 : 1) * 30000)
#define STATE_BYTES 70000

struct family *family_new(void)
{
    struct family *f =
        mmap(NULL, sizeof(*f), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(f != MAP_FAILED);
    strcpy(f->dir, "/tmp/farfork-loop-XXXXXX");
    must(loop_mkdtemp(f->dir));
    snprintf(f->path, sizeof(f->path), "%s/agent", f->dir);
    f->n_regions = 2;
    f->cells[0] = 1500;
    f->cells[1] = 501;
    return f;
}

static void wait_until(const atomic_bool *flag, const char *what)
{
    if (!wait_flag(flag, LIMIT_MS))
        loop_fail(__FILE__, __LINE__, "waited too long: %s", what);
}

static uint32_t page_bytes(const struct family *f)
{
    return f->memory == MEM_HUGETLB ? 2u << 20 : CELL;
}

static uint64_t region_bytes(const struct family *f, unsigned i)
{
    uint64_t len = f->cells[i] * CELL, psize = page_bytes(f);

    return (len + psize - 1) / psize * psize;
}

static struct ff_region region(const struct family *f, unsigned i, char name[32])
{
    snprintf(name, 32, "region%u", i);
    return (struct ff_region){.name = name, .len_bytes = region_bytes(f, i), .psize = page_bytes(f),
                              .fd = -1, .zero_fill = true};
}

/* --- a child --- */

struct kid {
    struct family *f;
    struct family_child *own;
    unsigned number;
    struct ff_child *c;
    uint8_t *memory[REGIONS_MAX];
    bool *written; /* of each cell: by the thread that owns it */
};

struct kid_thread {
    struct kid *k;
    unsigned id;
    pthread_t thread;
};

static uint8_t *kid_cell(const struct kid *k, uint64_t cell)
{
    for (unsigned i = 0; i < k->f->n_regions; i++) {
        uint64_t n = region_bytes(k->f, i) / CELL;
        if (cell < n)
            return k->memory[i] + cell * CELL;
        cell -= n;
    }
    loop_fail(__FILE__, __LINE__, "no such cell");
}

static uint64_t mark(const struct kid *k, uint64_t cell)
{
    return (cell + 1) << 8 | (k->number + 1);
}

/* @own: this thread's, so what was written there is known */
static void check_cell(const struct kid *k, uint64_t cell, bool own)
{
    const uint8_t *got = kid_cell(k, cell);
    uint8_t want[CELL];
    uint64_t word = mark(k, cell);

    memcpy(want, image + cell * CELL, CELL);
    if (own && k->written[cell])
        memcpy(want + MARK_AT, &word, 8);
    for (unsigned at = 0; at < CELL; at += 8) {
        if (at == MARK_AT && !own)
            continue;
        uint64_t g = __atomic_load_n((const uint64_t *)(got + at), __ATOMIC_RELAXED), w;
        memcpy(&w, want + at, 8);
        if (g != w)
            loop_fail(__FILE__, __LINE__, "child %u: cell %llu byte %u: 0x%llx, want 0x%llx%s",
                      k->number, (unsigned long long)cell, at, (unsigned long long)g,
                      (unsigned long long)w,
                      !g                             ? ": zeros in place of content"
                      : at == MARK_AT && w == word ? ": a write was lost"
                      : at == MARK_AT              ? ": another child's write?"
                                                   : "");
    }
}

uint64_t family_last_cell(const struct family *f)
{
    uint64_t cell = f->n_cells - 1;

    while (cell && cell_is_zero(cell))
        cell--;
    return cell;
}

static void *touch_all(void *arg)
{
    struct kid_thread *t = arg;
    struct kid *k = t->k;
    uint64_t n = k->f->n_cells, step = 611953; /* a prime: every cell comes once */
    uint64_t last = k->f->last_later ? family_last_cell(k->f) : n;

    for (uint64_t i = 0; i < n; i++) {
        uint64_t cell = (i * step + k->number * 97 + t->id * n / 2) % n;
        bool own = cell % TOUCHERS == t->id;
        if (cell == last)
            continue;
        check_cell(k, cell, own);
        if (!own || (cell / TOUCHERS + k->number) % 3)
            continue;
        __atomic_store_n((uint64_t *)(kid_cell(k, cell) + MARK_AT), mark(k, cell),
                         __ATOMIC_RELAXED);
        k->written[cell] = true;
        check_cell(k, cell, true);
    }
    return NULL;
}

static void *peek_main(void *arg)
{
    struct kid *k = arg;
    uint64_t cell = k->own->peek_at ? k->own->peek_at : 7;

    while (cell_is_zero(cell))
        cell++;
    atomic_store(&k->own->peek_tid, (int)syscall(SYS_gettid));
    check_cell(k, cell, false);
    atomic_store(&k->own->peeked, true);
    return NULL;
}

static void *wait_main(void *arg)
{
    struct kid *k = arg;
    struct ff_error err = {.code = 0};

    int rc = ff_child_wait_done(k->c, &err);
    must(rc != -ECANCELED);
    atomic_store(&k->own->rc, rc);
    if (rc)
        snprintf(k->own->error, sizeof(k->own->error), "%s", err.text);
    atomic_store(&k->own->done, true);
    return NULL;
}

static void kid_attach(struct kid *k)
{
    struct family *f = k->f;
    struct ff_error err = {.code = 0};
    const void *state;
    char name[32];
    size_t len;

    must_ok(ff_child_new(f->path, k->number, &k->c, &err), err);
    for (unsigned i = f->n_regions; i--;) { /* only names decide, not the order */
        struct ff_region r = region(f, i, name);
        struct area a;
        area_new(&a, MEM_ANON, r.len_bytes);
        r.host = k->memory[i] = a.host;
        must_ok(ff_child_add_region(k->c, &r, &err), err);
    }
    atomic_store(&k->own->asked, true);
    int rc = ff_child_attach(k->c, k->own->config ? k->own->config : "test", &err);
    atomic_store(&k->own->rc, rc);
    if (rc) {
        must(err.code == -rc && err.text[0]);
        snprintf(k->own->error, sizeof(k->own->error), "%s", err.text);
        ff_child_free(k->c);
        exit(3);
    }
    ff_child_state(k->c, &state, &len);
    must(len == STATE_BYTES && ((const uint8_t *)state)[len - 1] == (uint8_t)(len - 1));
    uint64_t offset;
    must(ff_child_fd(k->c, 0, &offset) >= 0 && ff_child_fd(k->c, f->n_regions, &offset) == -1);
    atomic_store(&k->own->attached, true);
}

/* Whether it may run */
static bool kid_wait_run(struct kid *k)
{
    struct family *f = k->f;
    uint64_t ready_ns = ff_now_ns();
    struct ff_error err = {.code = 0};

    must_ok(ff_child_loaded(k->c, &err), err);
    int rc = ff_child_wait_start(k->c, &err);
    atomic_store(&k->own->may_start, !rc);
    if (!rc) {
        must_ok(ff_child_ready(k->c, &err), err);
        rc = ff_child_wait_run(k->c, &err);
    }
    atomic_store(&k->own->rc, rc);
    must(rc != -ECANCELED); /* that would be by itself */
    if (rc) {
        snprintf(k->own->error, sizeof(k->own->error), "%s", err.text);
        atomic_store(&k->own->done, true);
        return false;
    }
    for (unsigned i = 0; i < f->n_children && i < f->together; i++)
        must(atomic_load(&f->child[i].attached));
    if (f->together > f->n_children) /* it waited for one that does not come */
        must(ff_now_ns() - ready_ns > 1900000000ull);
    return true;
}

static void kid_work(struct kid *k)
{
    struct kid_thread t[TOUCHERS];

    for (unsigned i = 0; i < TOUCHERS; i++) {
        t[i] = (struct kid_thread){.k = k, .id = i};
        must(!pthread_create(&t[i].thread, NULL, touch_all, &t[i]));
    }
    for (unsigned i = 0; i < TOUCHERS; i++)
        pthread_join(t[i].thread, NULL);
    atomic_store(&k->own->touched, true);
    if (k->f->last_later) {
        wait_until(&k->f->last_may_come, "child: the others");
        check_cell(k, family_last_cell(k->f), true);
    }
    wait_until(&k->own->done, "child: all memory here");
    if (atomic_load(&k->own->rc))
        loop_fail(__FILE__, __LINE__, "child %u: %s", k->number, k->own->error);
    /* by now every other child has written all that it writes, and perhaps the agent has ended */
    wait_until(&k->f->children_may_end, "child: the others");
    for (uint64_t c = 0; c < k->f->n_cells; c++)
        check_cell(k, c, true);
    atomic_store(&k->own->verified, true);
}

static void kid_main(void *arg)
{
    struct kid *k = arg;
    struct family *f = k->f;
    pthread_t waiter, peek;
    struct ff_error err;

    k->written = calloc(f->n_cells, sizeof(*k->written));
    must(k->written);
    wait_until(k->own->when == AT_ONCE     ? &f->listens
               : k->own->when == WHEN_HERE ? &f->here
                                           : &f->late_may_start,
               "child: to be started");
    usleep(k->own->later_us);
    kid_attach(k);
    bool runs = kid_wait_run(k);
    if (!runs && f->hand_over)
        _exit(NEVER_RAN);
    if (runs) {
        must(!pthread_create(&waiter, NULL, wait_main, k));
        must_ok(ff_child_running(k->c, &err), err);
    }
    if (k->own->only_peek) {
        atomic_store(&k->own->may_peek, true);
        for (unsigned i = 0; i < f->n_children; i++) /* by the first the image may be lost */
            if (f->child[i].only_peek)
                wait_until(&f->child[i].may_peek, "child: the others to be there");
        must(!pthread_create(&peek, NULL, peek_main, k));
        wait_until(&k->own->done, "child: to be told");
        wait_until(&f->children_may_end, "child: to be ended");
        if (runs)
            pthread_join(waiter, NULL);
        if (!atomic_load(&k->own->peeked))
            _exit(4); /* nobody may free what it waits for */
        pthread_join(peek, NULL);
        _exit(5);
    }
    kid_work(k);
    if (runs)
        pthread_join(waiter, NULL);
    ff_child_free(k->c);
    free(k->written);
}

/* --- the agent --- */

static void on_child(void *opaque, unsigned child, enum ff_child_event what)
{
    struct family *f = opaque;

    must(child < f->n_children);
    atomic_fetch_add(&f->events[what], 1);
}

static void on_pause(void *opaque, const char *why)
{
    struct family *f = opaque;

    must(!why || *why);
    atomic_fetch_add(why ? &f->pauses : &f->ends_of_pauses, 1);
}

static void on_unfed(void *opaque, const char *host, const char *port, const char *why)
{
    struct family *f = opaque;

    must(!host == !port && *why);
    atomic_fetch_add(host ? &f->unfed : &f->misfed, 1);
}

static struct ff_address *address(const struct family *f, unsigned port)
{
    char options[200] = "";

    if (f->passed) {
        struct ff_address *a;
        struct ff_error err;
        snprintf(options, sizeof(options), f->options ? "unix,%s" : "unix", f->options);
        must_ok(ff_address_parse(options, &a, &err), err);
        return a;
    }
    if (f->options)
        snprintf(options, sizeof(options), ",%s", f->options);
    return loop_address(port, options);
}

static void feed_others(struct family *f)
{
    unsigned port = atomic_exchange(&f->feed_to, 0);
    struct ff_error err;

    if (!port)
        return;
    struct ff_address *a = address(f, port);
    must_ok(ff_agent_feed(f->agent, a, &err), err);
    ff_address_free(a);
}

static void *publish_stats(void *arg)
{
    struct family *f = arg;
    struct ff_agent_stats st;

    while (!atomic_load(&f->may_end)) {
        if (atomic_load(&f->may_cancel))
            ff_agent_cancel(f->agent);
        if (atomic_load(&f->here))
            feed_others(f);
        ff_agent_stats(f->agent, &st);
        atomic_store(&f->faults_so_far, st.child_faults);
        atomic_store(&f->children_so_far, st.children);
        atomic_store(&f->present_so_far, st.image.bytes_present);
        atomic_store(&f->fed_so_far, st.bytes_fed);
        atomic_store(&f->same_so_far, st.bytes_same);
        atomic_store(&f->group_so_far, st.bytes_group);
        must(st.image.bytes_present <= st.image.bytes_total || !st.image.bytes_total);
        usleep(2000);
    }
    return NULL;
}

static void agent_main(void *arg)
{
    struct family *f = arg;
    struct ff_link *to_source = NULL;
    struct ff_error err = {.code = 0};
    pthread_t stats;

    if (f->faults && !f->loop)
        must_ok(ff_failpoints_arm(f->faults, &err), err);
    struct ff_address *a = address(f, 0);
    if (f->loop)
        must_ok(ff_loop_pair(&f->to_agent, &to_source, &err), err);
    must_ok(ff_agent_new_on_link(a, to_source, f->path, &f->agent, &err), err);
    ff_address_free(a);
    ff_agent_on_child(f->agent, on_child, f);
    ff_agent_on_pause(f->agent, on_pause, f);
    ff_agent_on_unfed(f->agent, on_unfed, f);
    if (f->limit)
        ff_agent_limit(f->agent, f->limit);
    ff_agent_together(f->agent, f->together);
    if (f->await_feed_ms)
        ff_agent_await_feed(f->agent, f->await_feed_ms);
    if (f->first)
        must_ok(ff_agent_first(f->agent, f->first, &err), err);
    if (f->older)
        must_ok(ff_agent_older(f->agent, f->older, &err), err);
    must(!pthread_create(&stats, NULL, publish_stats, f));
    atomic_store(&f->port, ff_agent_port(f->agent));
    atomic_store(&f->listens, true);
    int rc = ff_agent_receive(f->agent, &err);
    atomic_store(&f->here, !rc);
    if (!rc)
        rc = ff_agent_wait(f->agent, &err);
    if (rc)
        snprintf(f->agent_error, sizeof(f->agent_error), "%s", err.text);
    must(!rc || (err.code == -rc && err.text[0]));
    ff_agent_stats(f->agent, &f->stats);
    char *touched = ff_agent_working_set(f->agent);
    snprintf(f->touched, sizeof(f->touched), "%s", touched ? touched : "");
    free(touched);
    atomic_store(&f->agent_rc, rc);
    atomic_store(&f->ended, true);
    if (f->late_answer)
        must_ok(ff_agent_tell_source(f->agent, &err), err);
    wait_until(&f->may_end, "agent: to be ended");
    pthread_join(stats, NULL);
    ff_agent_stats(f->agent, &f->stats);
    ff_agent_free(f->agent);
    must(access(f->path, F_OK) < 0);
}

static void *agent_thread(void *arg)
{
    agent_main(arg);
    return NULL;
}

/* --- the source --- */

static void source_new(struct family *f)
{
    struct ff_error err;
    uint64_t base = 0;

    struct ff_address *a = address(f, atomic_load(&f->port));
    must_ok(ff_source_new(a, &f->source, &err), err);
    ff_address_free(a);
    if (f->group)
        ff_source_use_group(f->source, f->group);
    if (f->loop)
        ff_source_use_link(f->source, f->to_agent);
    for (unsigned i = 0; i < f->n_regions; i++) {
        char name[32];
        struct ff_region r = region(f, i, name);
        r.host = image + base;
        if (f->area[i].host) {
            r.host = f->area[i].host;
            r.fd = f->area[i].fd;
        }
        must_ok(ff_source_add_region(f->source, &r, &err), err);
        base += r.len_bytes;
    }
}

/* What is lent is not read by the source: whoever does fails */
static void make_lent(struct family *f)
{
    uint64_t base = 0;

    for (unsigned i = 0; i < f->n_regions; i++) {
        uint64_t len = region_bytes(f, i);
        if (f->lend_all || (f->lend && !i)) {
            area_new(&f->area[i], f->memory == MEM_HUGETLB ? MEM_HUGETLB : MEM_MEMFD, len);
            memcpy(f->area[i].host, image + base, len);
            must(!mprotect(f->area[i].host, len, PROT_NONE));
        }
        base += len;
    }
}

static int stage(struct family *f, enum stage s, struct ff_error *err)
{
    uint8_t state[STATE_BYTES];
    int rc;

    for (size_t i = 0; i < STATE_BYTES; i++)
        state[i] = (uint8_t)i;
    if (f->hand_over)
        return s == S_CONNECT ? ff_source_hand_over(f->source, f->path, "test", state, STATE_BYTES,
                                                    err)
               : s == S_GO    ? ff_source_let_run(f->source, err)
                              : 0;
    switch (s) {
    case S_CONNECT:
        rc = f->lend || f->lend_all || f->passed ? ff_source_lend(f->source, f->path, err) : 0;
        return rc ? rc : ff_source_connect(f->source, "test", err);
    case S_PUBLISH:
        return ff_source_publish(f->source, err);
    case S_WATCHED:
        return ff_source_wait_watched(f->source, err);
    case S_STATE:
        return ff_source_send_state(f->source, state, STATE_BYTES, NULL, 0, err);
    case S_READY:
        return ff_source_wait_ready(f->source, err);
    case S_GO:
        return ff_source_go(f->source, err);
    case S_RUNNING:
        return ff_source_wait_running(f->source, err);
    case S_DONE:
        return ff_source_wait_done(f->source, err);
    default:
        return 0;
    }
}

void family_source(struct family *f, enum stage last)
{
    while (!f->source_rc && f->source_stage <= last) {
        f->source_rc = stage(f, f->source_stage, &f->source_err);
        if (f->source_rc && f->resumes && f->source_stage >= S_RUNNING) {
            f->source_rc = ff_source_resume(f->source, NULL, LIMIT_MS, &f->source_err);
            f->breaks += !f->source_rc;
            continue;
        }
        if (!f->source_rc)
            f->source_stage++;
    }
}

/* --- all of them --- */

void family_fork(struct family *f)
{
    must(f->n_children <= CHILDREN_MAX);
    for (unsigned i = 0; i < f->n_regions; i++)
        f->n_cells += region_bytes(f, i) / CELL;
    for (unsigned i = 0; i < f->n_children; i++) {
        struct kid k = {.f = f, .own = &f->child[i], .number = i};
        f->child[i].pid = child_start(kid_main, &k);
    }
    if (!f->loop)
        f->agent_pid = child_start(agent_main, f);
}

void family_start(struct family *f)
{
    if (!f->n_cells)
        family_fork(f);
    make_lent(f); /* nobody has inherited it */
    if (f->loop)
        must(!pthread_create(&f->agent_thread, NULL, agent_thread, f));
    wait_until(&f->listens, "the agent to listen");
    source_new(f);
}

void family_reap(pid_t pid, int status)
{
    uint64_t end = ff_now_ns() + LIMIT_MS * 1000000ull;
    int got;

    while (waitpid(pid, &got, WNOHANG) != pid) {
        if (ff_now_ns() > end)
            loop_fail(__FILE__, __LINE__, "process %d does not end", pid);
        usleep(1000);
    }
    if (got != status)
        loop_fail(__FILE__, __LINE__, "process %d: status 0x%x, want 0x%x", pid, got, status);
}

void family_free(struct family *f)
{
    atomic_store(&f->may_end, true);
    if (f->loop)
        pthread_join(f->agent_thread, NULL);
    else if (f->agent_pid)
        family_reap(f->agent_pid, 0);
    f->agent_pid = 0;
    ff_source_free(f->source);
    for (unsigned i = 0; i < f->n_regions; i++)
        ff_close_fd(&f->area[i].fd);
    unlink(f->path);
    must(!rmdir(f->dir));
}

void family_last(struct family *f)
{
    for (unsigned i = 0; i < f->n_children; i++)
        wait_until(&f->child[i].touched, "a child to have touched all but the last");
    must(!atomic_load(&f->ended));
    atomic_store(&f->last_may_come, true);
}

void family_must_succeed(struct family *f)
{
    const struct ff_stats *st = &f->stats.image;

    if (f->source_rc)
        loop_fail(__FILE__, __LINE__, "source, stage %d: %s", f->source_stage, f->source_err.text);
    wait_until(&f->ended, "the agent's image to be complete");
    if (atomic_load(&f->agent_rc))
        loop_fail(__FILE__, __LINE__, "agent: %s", f->agent_error);
    atomic_store(&f->late_may_start, true);
    for (unsigned i = 0; i < f->n_children; i++)
        if (f->child[i].pid)
            wait_until(&f->child[i].touched, "a child to have touched all");
    for (unsigned i = 0; i < f->n_children; i++)
        if (f->child[i].pid)
            wait_until(&f->child[i].done, "a child to be told");
    family_free(f); /* children outlive the agent */
    atomic_store(&f->children_may_end, true);
    for (unsigned i = 0; i < f->n_children; i++)
        if (f->child[i].pid)
            family_reap(f->child[i].pid, 0);
    must(st->bytes_total == f->n_cells * CELL && st->bytes_present == st->bytes_total);
    must(st->bytes_prefill + st->bytes_fault + st->bytes_zero + f->stats.bytes_lent ==
         st->bytes_total);
}
