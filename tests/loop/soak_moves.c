/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * soak_moves.c - moves of every kind, one after the other, while everything goes wrong that can
 */
/**
 * DOC: Theory of Operation
 *
 * Usage        soak_moves [--seed N] [--seconds N] [--from ROUND] [--rounds N] [--print]
 * Picture      a round: what it is to do is drawn from the seed and its number before it begins.
 *
 *              both sides in one process: every byte is compared, or neither side has run
 *              destination apart ......... killed, stopped: the source's guest is where it was, is
 *                                          taken back (fallback=go), or was given away for good
 *              source apart .............. killed, stopped: what is here is right, and who touches
 *                                          what is not waits
 *
 * Threads      a round is a process of its own; what it found it counts in memory of all of them.
 *              There is one more thread that breaks links, and one that waits for the process apart.
 * Limits       what wins a race is not drawn: the same seed does the same things, at other moments.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cleanup.h"
#include "failpoint.h"
#include "fallback.h"
#include "soak_moves.h"

#define ROUND_S 90u   /* a round that takes longer hangs */
#define LISTENS_MS 3000
#define TOLD_MS 10000
#define KEY "5f3c0e9d6b2a48f1c7e6d5b4a39281706f5e4d3c2b1a09f8e7d6c5b4a3928170\n"

enum outcome { MOVED, STAYED, TAKEN_BACK, DEST_LOST, SOURCE_LOST, OUTCOMES };

/* What a process that dies cannot say by its exit code */
static struct tally {
    atomic_uint ended[KINDS][OUTCOMES], breaks, survived, cancels, killed[KINDS], stopped;
    atomic_uint struck[64];
    atomic_bool ran; /* in this round: the destination */
} * tally;

static struct round now;
static struct move m;
static atomic_bool over;

static void count(enum outcome how)
{
    tally->ended[now.kind][how]++;
}

/* --- both sides --- */

/* The guest writes nothing, but says that it has written some */
static void pass_once(void)
{
    struct round dice = now;
    struct ff_error err;

    if (!now.precopy || !ff_source_wants_precopy(m.source) ||
        ff_source_precopy(m.source, &err)) /* then so does what comes next */
        return;
    for (unsigned i = 0; i < m.n_regions; i++) {
        uint64_t words = m.area[i].len_bytes / CELL / 64 + 1;
        FF_AUTO_FREE uint64_t *bits = calloc(words, sizeof(*bits));
        must(bits);
        for (uint64_t w = 0; w < m.area[i].len_bytes / CELL / 64; w++)
            bits[w] = (uint64_t)draw(&dice, 1u << 31) & draw(&dice, 1u << 31);
        if (ff_source_dirty(m.source, i, bits, CELL, &err))
            return;
    }
}

/* prefill=off: what nobody touches would never come. It waits for good when its source is lost */
static void *touch_main(void *arg)
{
    (void)arg;
    for (unsigned i = 0; i < m.n_regions; i++)
        for (uint64_t at = 0; at < m.area[i].len_bytes; at += CELL)
            (void)*(volatile const uint8_t *)(m.area[i].host + at);
    return NULL;
}

static void before_stage(struct move *mv, enum stage stage)
{
    pthread_t thread;

    if (stage == D_DONE && strstr(now.options, "prefill=off"))
        must(!pthread_create(&thread, NULL, touch_main, NULL) && !pthread_detach(thread));
    if (stage == now.cancel && stage) {
        tally->cancels++;
        ff_source_cancel(mv->source);
    }
    if (stage == S_STATE)
        pass_once();
    if (stage != D_RUNNING)
        return;
    tally->ran = true;
    if (now.fallback)
        guest_start();
}

static void break_one(unsigned side)
{
    pthread_mutex_lock(&m.gate);
    if (side && m.source)
        ff_source_pause(m.source);
    else if (!side && m.dest)
        ff_dest_pause(m.dest);
    pthread_mutex_unlock(&m.gate);
}

/* The guest has left, or has come */
static bool gone(void)
{
    return atomic_load(&m.stage_src) > S_GO || atomic_load(&m.stage_dst) > D_GO;
}

static pthread_t breaker;

static void *break_main(void *arg)
{
    struct round dice = now;

    (void)arg;
    while (!now.breaks_early && !gone() && !atomic_load(&over))
        usleep(500);
    for (unsigned i = 0; i < now.breaks && !atomic_load(&over); i++) {
        usleep(draw(&dice, UNDER_SANITIZER ? 60000 : 20000));
        break_one(draw(&dice, 2));
        tally->breaks++;
    }
    return NULL;
}

static void start_breaking(struct move *mv)
{
    (void)mv;
    must(!pthread_create(&breaker, NULL, break_main, NULL));
}

static void stop_breaking(void)
{
    atomic_store(&over, true);
    pthread_join(breaker, NULL);
}

/* From where on a fault strikes is behind its @ */
static void count_struck(void)
{
    char name[40];

    tally->survived += m.src.stats.breaks;
    for (unsigned i = 0; i < now.n_faults; i++) {
        const char *f = round_faults[now.fault[i]].what, *at = strstr(now.faults, f);
        snprintf(name, sizeof(name), "%.*s", (int)strcspn(f, "="), f);
        if (ff_failpoint_hits(name) >= strtoul(strchr(at, '@') + 1, NULL, 10))
            tally->struck[now.fault[i]]++;
    }
}

static void prepare(void)
{
    m = (struct move){.tcp = true,
                      .resumes = true,
                      .options = now.options,
                      .memory = now.memory,
                      .n_regions = now.n_regions,
                      .touchers = now.touchers,
                      .writes = true,
                      .touch_late = true,
                      .told_ms = TOLD_MS,
                      .hook = before_stage};
    memcpy(m.cells, now.cells, sizeof(now.cells));
}

static void arm(const char *more)
{
    char all[sizeof(now.faults) + sizeof(now.deadly) + 2];

    snprintf(all, sizeof(all), "%s%s%s", now.faults, *now.faults && *more ? "," : "", more);
    loop_arm(all);
}

static const char *why(void)
{
    static char text[1800];

    snprintf(text, sizeof(text),
             "went %d, ran %d; source: stage %d, %d, %s; destination: stage %d, "
             "%d, %s",
             m.went, tally->ran, m.src.stage, m.src.rc, m.src.rc ? m.src.err.text : "", m.dst.stage,
             m.dst.rc, m.dst.rc ? m.dst.err.text : "");
    return text;
}

#define must_be(cond)                                                                              \
    do {                                                                                           \
        if (!(cond))                                                                               \
            loop_fail(__FILE__, __LINE__, "%s: %s", #cond, why());                                 \
    } while (0)

/* --- together: all is well, or nothing has happened --- */

static void together(void)
{
    prepare();
    m.prepared = start_breaking;
    arm("");
    move_run(&m);
    stop_breaking();
    count_struck();
    must_be(m.went == m.ran);
    count(m.ran ? MOVED : STAYED);
    if (m.ran) {
        move_must_succeed(&m);
        return;
    }
    must_be(m.src.rc && m.dst.rc && !tally->ran);
    move_free(&m);
}

/* --- one side apart --- */

struct apart {
    int pid, status;
    bool source;
    atomic_bool ended;
    pthread_t waiter;
};

/* The other process has it; a copy of its port would take connections that nobody accepts */
static void drop_handle(bool source)
{
    if (source) {
        ff_source_free(m.source);
        m.source = NULL;
    } else {
        ff_dest_free(m.dest);
        m.dest = NULL;
    }
}

static void apart_main(void *arg)
{
    struct apart *a = arg;

    drop_handle(!a->source);
    arm(now.deadly);
    if (!a->source && now.fallback)
        hears_leases(&m);
    int rc = move_side(&m, a->source);
    count_struck();
    if (rc || a->source)
        _exit(rc == -EKEYREVOKED ? 2 : rc ? 3 : 0);
    touchers_join(&m);
    verify_all(&m);
}

/* A destination that has lost its source early waits for the next one, and there is no other */
static void let_go(const struct apart *a)
{
    for (unsigned ms = 0; ms < LISTENS_MS && a->source && atomic_load(&m.stage_dst) <= D_ACCEPT;
         ms++)
        usleep(1000);
    pthread_mutex_lock(&m.gate);
    if (m.dest && atomic_load(&m.stage_dst) <= D_ACCEPT)
        ff_dest_cancel(m.dest);
    else if (m.dest)
        ff_dest_interrupt(m.dest);
    if (m.source)
        ff_source_interrupt(m.source);
    pthread_mutex_unlock(&m.gate);
}

static void *wait_main(void *arg)
{
    struct apart *a = arg;
    struct round dice = now;

    while (now.lost_contact && !gone() && !atomic_load(&over))
        usleep(500);
    usleep(now.kill_ms ? now.kill_ms * 1000 : draw(&dice, UNDER_SANITIZER ? 300000 : 100000));
    if (now.kill_ms)
        kill(a->pid, SIGKILL);
    if (now.stop_ms) {
        tally->stopped++;
        kill(a->pid, SIGSTOP);
        usleep(now.stop_ms * 1000);
        kill(a->pid, SIGCONT);
    }
    if (now.lost_contact)
        let_go(a);
    siginfo_t how;
    while (waitid(P_PID, (id_t)a->pid, &how, WEXITED | WNOWAIT) && errno == EINTR)
        ;
    atomic_store(&a->ended, true);
    if (how.si_code != CLD_EXITED || how.si_status)
        let_go(a);
    return NULL;
}

static bool was_killed(const struct apart *a)
{
    return WIFSIGNALED(a->status) && WTERMSIG(a->status) == SIGKILL;
}

static void end_apart(struct apart *a)
{
    pthread_join(a->waiter, NULL);
    must(waitpid(a->pid, &a->status, 0) == a->pid);
}

/* What a program does whose guest stays: the other side hears of it */
static void give_up(void)
{
    pthread_mutex_lock(&m.gate);
    ff_source_free(m.source);
    ff_dest_free(m.dest);
    m.source = NULL;
    m.dest = NULL;
    pthread_mutex_unlock(&m.gate);
}

/* This side's part; *a says how the other one ended */
static int with_apart(struct apart *a)
{
    prepare();
    move_prepare(&m);
    a->pid = child_start(apart_main, a);
    drop_handle(a->source);
    arm("");
    must(!pthread_create(&a->waiter, NULL, wait_main, a));
    start_breaking(&m);
    int rc = move_side(&m, !a->source);
    stop_breaking();
    count_struck();
    if (rc && !m.went && !m.ran)
        give_up();
    if (rc && !a->source && now.lost_contact)
        return rc; /* it lives: end_apart() */
    /* one that was READY, and did not hear it, would wait for its source */
    if (rc && !m.went && !m.ran && !wait_flag(&a->ended, LISTENS_MS))
        kill(a->pid, SIGKILL);
    end_apart(a);
    tally->killed[now.kind] += was_killed(a);
    must_be(was_killed(a) || WIFEXITED(a->status));
    return rc;
}

static void dest_apart(void)
{
    struct apart a = {.source = false};
    uint64_t sum = image_sum();
    struct ff_error err;

    int rc = with_apart(&a);
    must_be(image_sum() == sum);
    if (!rc) {
        must_be(was_killed(&a) || !WEXITSTATUS(a.status));
        count(MOVED);
    } else if (!m.went) {
        must_be(!tally->ran && !leased->beat_ns);
        count(STAYED);
    } else if (!now.fallback) {
        must_be(was_killed(&a));
        count(DEST_LOST);
    } else {
        int back = ff_source_take_back(m.source, &err);
        /* it had every page, and is told so: whatever became of it, the guest is its own */
        if (back == -EINVAL && strstr(err.text, "for good")) {
            count(MOVED);
        } else {
            take_back(&m, sum);
            count(TAKEN_BACK);
            if (now.lost_contact)
                ff_source_tell_taken_back(m.source, &err);
        }
    }
    if (now.lost_contact && rc) {
        kill(a.pid, SIGKILL);
        end_apart(&a);
    }
    move_free(&m);
}

/* Every page that is here is right; who touches another waits */
static void check_present(void)
{
    struct toucher t = {.m = &m, .id = CELL_WORDS - 1, .last = calloc(m.n_cells, 4)};
    uint64_t cell = 0, missing = UINT64_MAX, len;
    struct peek p;

    must(t.last);
    for (unsigned i = 0; i < m.n_regions; i++)
        for (uint64_t at = 0; at < m.area[i].len_bytes; at += CELL, cell++) {
            if (ff_dest_is_present(m.dest, m.n_regions - 1 - i, at, &len))
                touch_cell(&t, cell, false);
            else if (!cell_is_zero(cell))
                missing = cell;
        }
    if (missing == UINT64_MAX)
        return;
    peek_start(&p, &m, missing);
    must_be(peek_blocked(&p));
}

static void source_apart(void)
{
    struct apart a = {.source = true};

    int rc = with_apart(&a);
    if (rc && m.ran) {
        must_be(was_killed(&a));
        check_present();
        count(SOURCE_LOST);
        _exit(0); /* threads wait for memory that never comes */
    }
    if (!rc) {
        touchers_join(&m);
        verify_all(&m);
    }
    count(rc ? STAYED : MOVED);
    must_be(rc ? !tally->ran : m.ran);
    move_free(&m);
}

static void round_main(void *arg)
{
    static void (*const kinds[])(void) = {together, dest_apart, source_apart};

    (void)arg;
    kinds[now.kind]();
}

/* --- rounds --- */

static volatile sig_atomic_t interrupted;

static void on_signal(int number)
{
    interrupted = number;
}

/* False: it failed, and all it was to do was printed */
static bool one_round(uint64_t seed)
{
    unlink(record);
    unlink(fenced);
    *leased = (struct leased){.runs = true};
    tally->ran = false;
    int status = child_wait(child_start(round_main, NULL), ROUND_S * (UNDER_SANITIZER ? 2 : 1));
    if (!status || interrupted)
        return true;
    round_print(&now);
    printf("FAIL  round %llu: %s; again: soak_moves --seed %llu --from %llu --rounds 1\n",
           (unsigned long long)now.number, status < 0 ? "not done in time" : "it failed, see above",
           (unsigned long long)seed, (unsigned long long)now.number);
    return false;
}

static void print_tally(uint64_t rounds)
{
    static const char *const kinds[] = {"together", "destination apart", "source apart"};
    static const char *const how[] = {"moved", "stayed", "taken back", "destination lost",
                                      "source lost"};

    printf("      %llu rounds\n", (unsigned long long)rounds);
    for (unsigned k = 0; k < KINDS; k++)
        for (unsigned o = 0; o < OUTCOMES; o++)
            if (tally->ended[k][o])
                printf("      %6u  %s: %s\n", tally->ended[k][o], kinds[k], how[o]);
    printf("      %6u  breaks by hand; links made anew, of all breaks: %u\n"
           "      %6u  cancels\n      %6u  stops\n      %6u  destinations killed\n"
           "      %6u  sources killed\n",
           tally->breaks, tally->survived, tally->cancels, tally->stopped,
           tally->killed[DEST_APART], tally->killed[SOURCE_APART]);
    for (unsigned i = 0; i < round_faults_n; i++)
        printf("      %6u  %s\n", tally->struck[i], round_faults[i].what);
}

static uint64_t number_of(int argc, char **argv, const char *name, uint64_t otherwise)
{
    for (int i = 1; i + 1 < argc; i++)
        if (!strcmp(argv[i], name))
            return strtoull(argv[i + 1], NULL, 10);
    return otherwise;
}

int main(int argc, char **argv)
{
    const uint64_t seed = number_of(argc, argv, "--seed", 1);
    const uint64_t first = number_of(argc, argv, "--from", 0);
    const uint64_t last = first + number_of(argc, argv, "--rounds", UINT64_MAX / 2);
    const uint64_t end =
        ff_now_ns() + 1000000000u * number_of(argc, argv, "--seconds", UNDER_SANITIZER ? 20 : 5);
    bool prints = argc > 1 && !strcmp(argv[argc - 1], "--print"), well = true;
    uint64_t n = first;
    char key[80];

    image_new(4000);
    fallback_setup();
    set_out(1, "");
    snprintf(key, sizeof(key), "%s.key", fence);
    write_file(key, KEY, 0600);
    tally = mmap(NULL, sizeof(*tally), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(tally != MAP_FAILED && round_faults_n <= FF_ARRAY_LEN(tally->struck));
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
    printf("seed %llu\n", (unsigned long long)seed);
    for (; well && n < last && ff_now_ns() < end && !interrupted; n++) {
        round_draw(&now, seed, n, key);
        if (prints)
            round_print(&now);
        uint64_t since = ff_now_ns();
        well = one_round(seed);
        if (prints)
            printf("      %u ms\n", (unsigned)((ff_now_ns() - since) / 1000000));
    }
    print_tally(n - first);
    unlink(key);
    remove_files();
    return interrupted ? 128 + interrupted : !well;
}
