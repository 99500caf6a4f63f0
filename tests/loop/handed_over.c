/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * handed_over.c - a source on the agent's host gives it the whole image, without a link
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cleanup.h"
#include "family.h"

static void setup(void)
{
    image_new(3000);
}

/* --- to children --- */

/* With the source gone: the children go on, and those come that come later */
static void hand_over(bool loop, bool all)
{
    struct family *f = family_new();

    f->n_children = 5;
    f->loop = loop;
    f->lend = true;
    f->lend_all = all;
    f->hand_over = true;
    f->child[1].when = WHEN_HERE;
    f->child[2].when = WHEN_COMPLETE;
    family_start(f);
    family_source(f, S_CONNECT);
    wait_count(f->events[FF_CHILD_ATTACHED], 4);
    usleep(30000); /* none runs yet */
    must(!atomic_load(&f->ended) && !atomic_load(&f->events[FF_CHILD_RUNNING]));
    for (unsigned i = 0; i < 5; i++)
        must(!atomic_load(&f->child[i].may_start));
    family_source(f, S_GO);
    ff_source_free(f->source);
    f->source = NULL;
    family_must_succeed(f);
    must(f->stats.bytes_lent == f->stats.image.bytes_total);
    must(!f->stats.image.faults && !f->stats.child_faults);
}

static void handed_over_all(void)
{
    hand_over(false, true);
}

/* What is not lent is copied */
static void handed_over_in_part(void)
{
    hand_over(false, false);
}

static void loop_handed_over(void)
{
    hand_over(true, false);
}

/* --- to an agent, in this process --- */

struct receiver {
    pthread_t thread;
    struct ff_agent *a;
    int rc;
    struct ff_error err;
    atomic_bool ended;
};

static void *receive(void *arg)
{
    struct receiver *r = arg;

    r->rc = ff_agent_receive(r->a, &r->err);
    atomic_store(&r->ended, true);
    return NULL;
}

struct giver {
    char dir[32], path[64];
    struct ff_address *to;
    struct receiver receiver;
    struct ff_source *source;
    struct area area;
};

static void giver_new(struct giver *g)
{
    struct ff_error err;

    *g = (struct giver){.dir = "/tmp/farfork-loop-XXXXXX", .receiver = {.rc = 1}};
    must(loop_mkdtemp(g->dir));
    snprintf(g->path, sizeof(g->path), "%s/agent", g->dir);
    g->to = loop_address(0, "");
    must_ok(ff_agent_new(g->to, g->path, &g->receiver.a, &err), err);
    area_new(&g->area, MEM_ANON, 16 * CELL);
    struct ff_region r = {.name = "x", .host = g->area.host, .len_bytes = g->area.len_bytes,
                          .psize = CELL, .fd = -1, .zero_fill = true};
    must_ok(ff_source_new(g->to, &g->source, &err), err);
    must_ok(ff_source_add_region(g->source, &r, &err), err);
}

static int give(struct giver *g)
{
    struct ff_error err;

    return ff_source_hand_over(g->source, g->path, "test", "state", 5, &err);
}

static void giver_free(struct giver *g)
{
    ff_source_free(g->source);
    ff_agent_free(g->receiver.a);
    ff_address_free(g->to);
    must(!rmdir(g->dir));
}

static int connect_to(unsigned port)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                             .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    must(fd >= 0);
    if (!connect(fd, (struct sockaddr *)&sa, sizeof(sa)))
        return fd;
    close(fd);
    return -1;
}

/* Before the agent waits for a source at all */
static void handed_over_early(void)
{
    struct giver g;
    struct ff_agent_stats st;
    struct ff_error err;

    giver_new(&g);
    unsigned port = ff_agent_port(g.receiver.a);
    must(ff_source_let_run(g.source, &err) == -EINVAL);
    must(!give(&g));
    must_ok(ff_agent_receive(g.receiver.a, &err), err);
    must_ok(ff_source_let_run(g.source, &err), err);
    must(ff_source_let_run(g.source, &err) < 0 && give(&g) == -EBUSY);
    must_ok(ff_agent_wait(g.receiver.a, &err), err);
    ff_agent_stats(g.receiver.a, &st);
    must(st.bytes_lent == 16 * CELL && st.image.bytes_present == st.bytes_lent);
    must(!strcmp(ff_agent_link(g.receiver.a), "none") && ff_agent_port(g.receiver.a) == port);
    must(connect_to(port) < 0); /* nobody listens any more */
    giver_free(&g);
}

/* The source goes, or dies, before it has said that the image stays as it is: none has run */
static void handed_over_and_taken_back(void)
{
    struct family *f = family_new();

    f->n_children = 4;
    f->hand_over = f->lend_all = true;
    f->child[3].when = WHEN_HERE;
    family_start(f);
    family_source(f, S_CONNECT);
    wait_count(f->events[FF_CHILD_ATTACHED], 4);
    ff_source_free(f->source);
    f->source = NULL;
    must(wait_flag(&f->ended, 10000) && atomic_load(&f->agent_rc) == -ECONNRESET);
    must(strstr(f->agent_error, "the source ended before it let children run"));
    for (unsigned i = 0; i < 4; i++)
        family_reap(f->child[i].pid, NEVER_RAN << 8);
    must(!atomic_load(&f->events[FF_CHILD_RUNNING]));
    wait_count(f->events[FF_CHILD_LOST], 4);
    family_free(f);
}

/* While somebody waits for the source's word, the agent is told to end */
static void handed_over_and_cancelled(void)
{
    struct giver g;
    struct ff_error err;

    giver_new(&g);
    must(!give(&g));
    must_ok(ff_agent_receive(g.receiver.a, &err), err);
    ff_agent_cancel(g.receiver.a);
    must(ff_agent_wait(g.receiver.a, &err) == -ECANCELED);
    must(ff_source_let_run(g.source, &err) == -ECONNABORTED && strstr(err.text, "canceled"));
    giver_free(&g);
}

/* While somebody has connected, and says nothing */
static void handed_over_beside_a_link(void)
{
    struct giver g;

    giver_new(&g);
    must(!pthread_create(&g.receiver.thread, NULL, receive, &g.receiver));
    int silent = connect_to(ff_agent_port(g.receiver.a));
    must(silent >= 0);
    usleep(50000);
    must(!give(&g) && wait_flag(&g.receiver.ended, 10000) && !g.receiver.rc);
    pthread_join(g.receiver.thread, NULL);
    close(silent);
    giver_free(&g);
}

static void handed_over_too_late(void)
{
    struct giver g;

    giver_new(&g);
    ff_agent_cancel(g.receiver.a);
    must(give(&g) == -EBUSY);
    must(!pthread_create(&g.receiver.thread, NULL, receive, &g.receiver));
    must(wait_flag(&g.receiver.ended, 10000) && g.receiver.rc == -ECANCELED);
    pthread_join(g.receiver.thread, NULL);
    must(give(&g) == -EBUSY);
    giver_free(&g);
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"all lent", handed_over_all, 0},
        {"copied in part", handed_over_in_part, 0},
        {"loop", loop_handed_over, 0},
        {"taken back", handed_over_and_taken_back, 0},
        {"early", handed_over_early, 0},
        {"cancelled", handed_over_and_cancelled, 0},
        {"beside a link", handed_over_beside_a_link, 0},
        {"too late", handed_over_too_late, 0},
    };
    return loop_main(argc, argv, setup, tests, FF_ARRAY_LEN(tests));
}
