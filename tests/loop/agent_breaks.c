/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * agent_breaks.c - children, agents and sources that end early, and peers that talk nonsense
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "cleanup.h"
#include "family.h"
#include "failpoint.h"
#include "files.h"
#include "stranger.h"

#define STATUS(code) ((code) << 8)

static void setup(void)
{
    image_new(3000);
}

/* The source, this process, takes its time with the first read for a fault. No thread yet */
static void slow_source(void)
{
    struct ff_error err;

    must_ok(ff_failpoints_arm("tcp.serve.fault=delay:5000000@1", &err), err);
}

/* --- a child dies --- */

static void child_killed(void)
{
    struct family *f = family_new();

    f->n_children = 5;
    f->options = "prefill=off";
    f->child[0].only_peek = true;
    for (unsigned i = 1; i < 5; i++)
        f->child[i].when = WHEN_COMPLETE; /* here: when they are told to */
    family_start(f);
    slow_source();
    family_source(f, S_RUNNING);
    wait_count(f->faults_so_far, 1ul);
    must(!atomic_load(&f->child[0].peeked)); /* its page is on its way */
    must(!kill(f->child[0].pid, SIGKILL));
    family_reap(f->child[0].pid, SIGKILL);
    f->child[0].pid = 0;
    atomic_store(&f->late_may_start, true);
    family_source(f, S_DONE);
    family_must_succeed(f);
    must(atomic_load(&f->events[FF_CHILD_LOST]) == 1);
    must(atomic_load(&f->events[FF_CHILD_COMPLETE]) == 4);
}

/* --- the agent, or its source, dies --- */

/* Each child: one thread in a page that is missing */
static struct family *peekers(void)
{
    struct family *f = family_new();

    f->n_children = 3;
    f->options = "prefill=off,reconnect=0"; /* agent_resume.c has the rest */
    for (unsigned i = 0; i < 3; i++)
        f->child[i].only_peek = true;
    family_start(f);
    slow_source();
    family_source(f, S_RUNNING);
    wait_count(f->faults_so_far, 3ul);
    return f;
}

/* They were told, and nobody read anything: not even after a while */
static void must_wait_on(struct family *f, const char *says)
{
    for (unsigned i = 0; i < 3; i++) {
        struct family_child *k = &f->child[i];
        must(wait_flag(&k->done, 20000));
        if (!atomic_load(&k->rc) || !strstr(k->error, says))
            loop_fail(__FILE__, __LINE__, "child %u: %d: \"%s\" is not in: %s", i,
                      atomic_load(&k->rc), says, k->error);
    }
    usleep(300000); /* time in which nothing may happen */
    for (unsigned i = 0; i < 3; i++) {
        struct family_child *k = &f->child[i];
        must(!atomic_load(&k->peeked) && thread_asleep(k->pid, atomic_load(&k->peek_tid)));
    }
}

static void must_end(struct family *f)
{
    atomic_store(&f->children_may_end, true);
    for (unsigned i = 0; i < 3; i++)
        family_reap(f->child[i].pid, STATUS(4));
}

static void agent_killed(void)
{
    struct family *f = peekers();

    must(!kill(f->agent_pid, SIGKILL));
    family_reap(f->agent_pid, SIGKILL);
    f->agent_pid = 0;
    must_wait_on(f, "the peer has ended");
    must_end(f);
    family_source(f, S_DONE);
    must(f->source_rc);
    family_free(f);
}

static void link_lost(void)
{
    struct family *f = peekers();

    ff_source_stop(f->source);
    must_wait_on(f, "the image was lost");
    must(wait_flag(&f->ended, 10000) && atomic_load(&f->agent_rc));
    wait_count(f->events[FF_CHILD_LOST], 3);
    family_free(f); /* the agent ends, as it should: with status 0 */
    must_wait_on(f, "the image was lost");
    must_end(f);
}

static void agent_gives_up(void)
{
    struct family *f = family_new();

    f->n_children = 3;
    for (unsigned i = 0; i < 3; i++)
        f->child[i].only_peek = true;
    f->options = "prefill=off";
    f->child[2].later_us = 300000; /* the others have not lost the image by then */
    f->faults = "dest.install=fail:14"; /* for want of memory it would wait */
    family_start(f);
    family_source(f, S_DONE);
    must(f->source_rc && f->source_stage >= S_RUNNING);
    must_wait_on(f, "injected");
    must(wait_flag(&f->ended, 10000) && atomic_load(&f->agent_rc) == -EFAULT);
    family_free(f);
    must_wait_on(f, "injected");
    must_end(f);
}

/* The source gives up before GO: nobody was given any memory */
static void source_gives_up(void)
{
    struct family *f = family_new();

    f->n_children = 3;
    family_start(f);
    wait_count(f->children_so_far, 3ul);
    family_source(f, S_READY);
    ff_source_free(f->source);
    f->source = NULL;
    must(wait_flag(&f->ended, 10000) && atomic_load(&f->agent_rc) == -EREMOTEIO);
    for (unsigned i = 0; i < 3; i++) {
        family_reap(f->child[i].pid, STATUS(3));
        must(atomic_load(&f->child[i].rc) == -EREMOTEIO && !atomic_load(&f->child[i].attached));
        must(strstr(f->child[i].error, "the source gave up"));
    }
    family_free(f);
}

/* --- what does not fit --- */

static void other_machine(void)
{
    struct family *f = family_new();

    f->n_children = 3;
    f->child[1].config = "another";
    family_start(f);
    family_source(f, S_DONE);
    family_reap(f->child[1].pid, STATUS(3));
    f->child[1].pid = 0;
    must(atomic_load(&f->child[1].rc) == -EINVAL);
    must(strstr(f->child[1].error, "\"another\"") && strstr(f->child[1].error, "\"test\""));
    family_must_succeed(f);
}

static void lent_too_short(void)
{
    struct family *f = family_new();

    f->n_children = 1;
    f->lend = true;
    family_start(f);
    must(!ftruncate(f->area[0].fd, 1000 * CELL));
    family_source(f, S_DONE);
    must(f->source_rc == -EREMOTEIO && f->source_stage == S_CONNECT);
    must(strstr(f->source_err.text, "the lent file has"));
    must(wait_flag(&f->ended, 10000) && atomic_load(&f->agent_rc) == -EINVAL);
    family_reap(f->child[0].pid, STATUS(3));
    family_free(f);
}

static void lent_too_late(void)
{
    struct family *f = family_new();
    struct ff_source *other;
    struct ff_error err;
    struct area a;

    f->n_children = 1;
    family_start(f);
    family_source(f, S_CONNECT);
    area_new(&a, MEM_MEMFD, 16 * CELL);
    struct ff_region r = {.name = "x", .host = a.host, .len_bytes = a.len_bytes, .psize = CELL,
                          .fd = a.fd, .zero_fill = true};
    struct ff_address *to = loop_address(1, "");
    must_ok(ff_source_new(to, &other, &err), err);
    ff_address_free(to);
    must_ok(ff_source_add_region(other, &r, &err), err);
    must(ff_source_lend(other, f->path, &err) == -EBUSY);
    must(ff_source_lend(other, "/nonexistent/agent", &err) == -ENOENT);
    must(ff_source_hand_over(other, f->path, "test", "state", 5, &err) == -EBUSY);
    must(ff_source_hand_over(other, "/nonexistent/agent", "test", "state", 5, &err) == -ENOENT);
    must(ff_source_hand_over(other, f->path, "test", "", 0, &err) == -EFBIG);
    ff_source_free(other);
    close(a.fd);
    family_source(f, S_DONE);
    family_must_succeed(f);
}

/* --- nonsense --- */

static void say_bytes(const struct family *f, const void *bytes, size_t n, const char *what)
{
    int sock = stranger(f);

    must(send(sock, bytes, n, MSG_NOSIGNAL) == (ssize_t)n);
    must_be_dropped(sock, what);
}

static void say_type(const struct family *f, enum ff_clone_type type, const char *what)
{
    int sock = stranger(f);
    struct ff_clone_msg m = {.type = type,
                             .n = 1,
                             .code = 5,
                             .state_bytes = 1,
                             .fd = {sock},
                             .n_fds = type == FF_CLONE_MEMORY || type == FF_CLONE_IMAGE};
    struct ff_error err;

    must_ok(ff_clone_send(sock, &m, &err), err);
    must_be_dropped(sock, what);
}

enum wrong { OVERLAP, NOT_ALIGNED, NO_SUCH_REGION, WRONG_LENGTH, NO_FD, NO_UFFD, TOO_EARLY };

/* As far as the agent lets it go: files are only heard of once the image is there */
static void half_a_child(const struct family *f, enum wrong wrong)
{
    struct ff_clone_msg m, watch = {.type = FF_CLONE_WATCH, .n_fds = wrong == NO_UFFD};
    struct ff_wire_region r[2] = {{.psize = 0}};
    int sock = stranger(f), event = eventfd(0, 0);
    struct ff_error err;
    char what[32];

    snprintf(what, sizeof(what), "half a child %d", wrong);
    m = stranger_hello(r);
    if (wrong == OVERLAP)
        m.host[1] = m.host[0];
    else if (wrong == NOT_ALIGNED)
        m.host[1] += 17;
    else if (wrong == NO_SUCH_REGION)
        strcpy(r[1].name, "other");
    else if (wrong == WRONG_LENGTH)
        r[1].len_bytes += CELL;
    must_ok(ff_clone_send(sock, &m, &err), err);
    if (wrong == TOO_EARLY)
        must_ok(ff_clone_send_type(sock, FF_CLONE_RUNNING, &err), err);
    if (wrong == NO_FD || wrong == NO_UFFD) {
        must_ok(ff_clone_expect(sock, -1, &m, 10000, &err), err);
        must(m.type == FF_CLONE_IMAGE);
        ff_clone_close(&m);
        must_ok(ff_clone_expect(sock, -1, &m, 10000, &err), err);
        must(m.type == FF_CLONE_MEMORY && m.n == 2);
        ff_clone_close(&m);
        watch.fd[0] = event;
        must_ok(ff_clone_send(sock, &watch, &err), err);
    }
    must_be_dropped(sock, what);
    close(event);
}

static void lend_nonsense(const struct family *f)
{
    struct ff_wire_region r[2] = {{.psize = 0}};
    struct ff_clone_msg m = stranger_hello(r),
                        files = {.type = FF_CLONE_MEMORY, .n = 1, .n_fds = 1};
    struct ff_error err;

    for (unsigned i = 0; i < 3; i++) {
        int sock = stranger(f);
        m.lends = true;
        m.number = i == 0 ? 0 : i == 1 ? 3 : 1; /* of two regions */
        files.fd[0] = sock;
        files.memory[0].region = 2;
        must_ok(ff_clone_send(sock, &m, &err), err);
        if (i == 2)
            must_ok(ff_clone_send(sock, &files, &err), err);
        must_be_dropped(sock, "a lender");
    }
}

/* An image that is none: each is refused for its own reason, and the agent waits for a better
 * one */
static void hand_over_nonsense(const struct family *f)
{
    enum { ALL_LENT, NO_FILES, ONE_OF_TWO, ONE_TWICE };
    enum { GOOD, NO_FILE, UNSEALED };
    static const struct {
        const char *says;
        int files, state;
        uint64_t state_bytes;
    } kinds[] = {
        {"IMAGE out of order", NO_FILES, GOOD, 100},
        {"region1: handed over, but not lent", ONE_OF_TWO, GOOD, 100},
        {"region1: handed over, but not lent", ONE_TWICE, GOOD, 100},
        {"is not sealed", ALL_LENT, NO_FILE, 100},
        {"is not sealed", ALL_LENT, UNSEALED, 100},
        {"no file of 101 bytes", ALL_LENT, GOOD, 101},
        {"the lent file has 0x5dc000 bytes", ALL_LENT, GOOD, 100},
    };
    struct ff_wire_region r[2] = {{.psize = 0}};
    struct ff_clone_msg m = stranger_hello(r), answer;
    struct ff_error err;
    struct area a;
    int sealed = memfd_create("state", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    must(sealed >= 0 && !ftruncate(sealed, 100) && !fcntl(sealed, F_ADD_SEALS, FF_SEALS_WHOLE));
    area_new(&a, MEM_MEMFD, r[0].len_bytes);
    for (unsigned i = 0; i < FF_ARRAY_LEN(kinds); i++) {
        struct ff_clone_msg files = {.type = FF_CLONE_MEMORY};
        struct ff_clone_msg whole = {
            .type = FF_CLONE_IMAGE, .state_bytes = kinds[i].state_bytes, .n_fds = 1};
        int sock = stranger(f), how = kinds[i].files;
        m.lends = true;
        m.number = how == NO_FILES || how == ONE_OF_TWO ? 1 : 2;
        r[1].len_bytes =
            (i + 1 < FF_ARRAY_LEN(kinds) ? 501 : 2000) * CELL; /* larger than the file */
        for (unsigned k = 0; how != NO_FILES && k < m.number; k++) {
            files.memory[k].region = how == ONE_TWICE ? 0 : k;
            files.fd[k] = a.fd;
            files.n_fds = ++files.n;
        }
        must_ok(ff_clone_send(sock, &m, &err), err);
        if (files.n) {
            must_ok(ff_clone_send(sock, &files, &err), err);
            must_ok(ff_clone_expect(sock, -1, &answer, 10000, &err), err);
            must(answer.type == FF_CLONE_ATTACHED);
        }
        whole.fd[0] = kinds[i].state == NO_FILE ? sock : kinds[i].state == UNSEALED ? a.fd : sealed;
        must_ok(ff_clone_send(sock, &whole, &err), err);
        must(ff_clone_expect(sock, -1, &answer, 10000, &err) < 0);
        if (!strstr(err.text, kinds[i].says))
            loop_fail(__FILE__, __LINE__, "\"%s\" is not in: %s", kinds[i].says, err.text);
        close(sock);
    }
    close(sealed);
    close(a.fd);
    must(!munmap(a.host, a.len_bytes));
}

static void nonsense(void)
{
    struct family *f = family_new();
    static const uint8_t zeros[300], huge[100000];

    f->n_children = 3;
    f->child[2].when = WHEN_HERE;
    f->options = "prefill=off";
    family_start(f);
    int silent = stranger(f); /* for all the time */
    say_bytes(f, "GET / HTTP/1.1\r\n\r\n", 18, "HTTP");
    say_bytes(f, zeros, sizeof(zeros), "zeros");
    say_bytes(f, huge, sizeof(huge), "too long");
    say_bytes(f, "\1\0\0\0ENOLCFFF", 12, "a magic number, almost");
    for (unsigned t = FF_CLONE_REFUSE; t <= FF_CLONE_LAST; t++)
        say_type(f, (enum ff_clone_type)t, ff_clone_name((enum ff_clone_type)t));
    half_a_child(f, OVERLAP);
    half_a_child(f, NOT_ALIGNED);
    half_a_child(f, TOO_EARLY);
    lend_nonsense(f);
    hand_over_nonsense(f);
    family_source(f, S_RUNNING);
    for (unsigned w = NO_SUCH_REGION; w <= NO_UFFD; w++)
        half_a_child(f, (enum wrong)w);
    family_source(f, S_DONE);
    family_must_succeed(f);
    close(silent);
}

/* There is no pager for whoever claims to miss memory */
static void nonsense_after_hand_over(void)
{
    struct family *f = family_new();

    f->n_children = 2;
    f->hand_over = true;
    family_start(f);
    family_source(f, S_GO);
    half_a_child(f, NO_SUCH_REGION);
    half_a_child(f, WRONG_LENGTH);
    half_a_child(f, NO_UFFD);
    family_must_succeed(f);
}

/* --- calls --- */

struct waiter {
    pthread_t thread;
    struct ff_agent *a;
    struct ff_child *c;
    int rc;
    struct ff_error err;
    atomic_bool ended;
};

static void *wait_for_source(void *arg)
{
    struct waiter *w = arg;

    w->rc = ff_agent_receive(w->a, &w->err);
    atomic_store(&w->ended, true);
    return NULL;
}

static void *wait_for_image(void *arg)
{
    struct waiter *w = arg;

    w->rc = ff_child_attach(w->c, "test", &w->err);
    atomic_store(&w->ended, true);
    return NULL;
}

static void cancelled(void)
{
    struct ff_address *to = loop_address(0, "");
    char dir[] = "/tmp/farfork-loop-XXXXXX", path[64];
    struct waiter parent = {.rc = 1}, child = {.rc = 1};
    struct ff_agent *second;
    struct ff_agent_stats st = {.children = 0};
    struct ff_error err;
    struct area a;

    must(loop_mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/agent", dir);
    must_ok(ff_agent_new(to, path, &parent.a, &err), err);
    must(ff_agent_new(to, path, &second, &err) == -EADDRINUSE);
    must_ok(ff_child_new(path, 7, &child.c, &err), err);
    area_new(&a, MEM_ANON, 16 * CELL);
    struct ff_region r = {.name = "x", .host = a.host, .len_bytes = a.len_bytes, .psize = CELL,
                          .fd = -1};
    must_ok(ff_child_add_region(child.c, &r, &err), err);
    must(!pthread_create(&parent.thread, NULL, wait_for_source, &parent));
    must(!pthread_create(&child.thread, NULL, wait_for_image, &child));
    for (unsigned i = 0; i < 10000 && st.children != 1; i++, usleep(1000))
        ff_agent_stats(parent.a, &st);
    must(st.children == 1);
    ff_child_cancel(child.c);
    must(wait_flag(&child.ended, 10000) && child.rc == -ECANCELED);
    ff_agent_cancel(parent.a);
    must(wait_flag(&parent.ended, 10000) && parent.rc == -ECANCELED);
    pthread_join(parent.thread, NULL);
    pthread_join(child.thread, NULL);
    ff_child_free(child.c);
    ff_agent_free(parent.a);
    ff_address_free(to);
    must(!rmdir(dir));
}

static void refused_options(void)
{
    static const struct {
        const char *options, *path, *says;
        int rc;
    } cases[] = {
        {",precopy=1", "/tmp/farfork-none/agent", "precopy=1", -EINVAL},
        {",landing=continue", "/tmp/farfork-none/agent", "landing=copy", -EINVAL},
        {"", "/tmp/farfork-none/agent", "No such file", -ENOENT},
        {"", "", "permitted 1..107", -ENAMETOOLONG},
    };
    struct ff_agent *a;
    struct ff_child *c;
    struct ff_error err;

    for (unsigned i = 0; i < FF_ARRAY_LEN(cases); i++) {
        struct ff_address *to = loop_address(0, cases[i].options);
        must(ff_agent_new(to, cases[i].path, &a, &err) == cases[i].rc);
        must(strstr(err.text, cases[i].says));
        ff_address_free(to);
    }
    must_ok(ff_child_new("/tmp/farfork-none/agent", 0, &c, &err), err);
    must(ff_child_attach(c, "test", &err) == -EINVAL); /* no regions */
    must(ff_child_wait_done(c, &err) == -EINVAL);
    ff_child_free(c);
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"child killed in a fault", child_killed, 40},
        {"agent killed", agent_killed, 40},
        {"link lost", link_lost, 40},
        {"agent cannot install", agent_gives_up, 40},
        {"source gives up", source_gives_up, 0},
        {"another machine", other_machine, 0},
        {"lent, too short", lent_too_short, 0},
        {"lent, too late", lent_too_late, 0},
        {"nonsense", nonsense, 40},
        {"nonsense after all was handed over", nonsense_after_hand_over, 40},
        {"cancel", cancelled, 40},
        {"refused options", refused_options, 0},
    };
    return loop_main(argc, argv, setup, tests, FF_ARRAY_LEN(tests));
}
