/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * resume_waits.c - while both sides wait for each other after a break: what ends a wait, what does not,
 *                  and what is left of who came in vain
 */
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cleanup.h"
#include "failpoint.h"
#include "loop.h"
#include "wire.h"

#define FINE "chunk=64K,window=1,prefill=pull"
#define BREAK "dest.fault=delay:2000,tcp.serve.prefill=fail@9"
#define GUEST .touchers = 8, .writes = true, .touch_late = true

static void setup(void)
{
    image_new(4000);
}

static void until_listens(struct move *m)
{
    for (unsigned ms = 0; !ff_dest_port(m->dest); ms++, usleep(1000))
        must(ms < 20000);
}

static struct ff_link *dial(struct move *m)
{
    struct ff_link_params p = {.host = "127.0.0.1", .timeout_ms = 15000};
    struct ff_error err;
    struct ff_link *l;
    char port[16];

    until_listens(m);
    snprintf(port, sizeof(port), "%u", ff_dest_port(m->dest));
    p.port = port;
    must_ok(ff_tcp_connect(&p, -1, &l, &err), err);
    return l;
}

static void send_msg(struct ff_link *l, const uint8_t *buf, int len)
{
    struct ff_error err;

    must_ok(l->ops->send(l, buf, (uint32_t)len, &err), err);
}

/* What the move's own source would say; its answer */
static struct ff_link *come_back(struct move *m, struct ff_welcome *w)
{
    static struct ff_wire_region table[REGIONS_MAX];
    struct ff_hello own = {.n_regions = (uint16_t)m->n_regions, .config = "test", .regions = table};
    struct ff_resume again = {.version = FF_WIRE_VERSION, .oldest = FF_WIRE_VERSION, .epoch = 1};
    struct ff_link *l = dial(m);
    uint8_t buf[FF_MSG_MAX];
    char hex[FF_SESSION_TEXT];
    struct ff_error err;

    ff_source_session(m->source, hex);
    for (unsigned i = 0; i < FF_SESSION_LEN; i++) {
        char byte[3] = {hex[2 * i], hex[2 * i + 1], '\0'};
        again.session[i] = (uint8_t)strtoul(byte, NULL, 16);
    }
    for (unsigned i = 0; i < m->n_regions; i++) {
        table[i] = (struct ff_wire_region){.len_bytes = m->area[i].len_bytes, .psize = CELL};
        snprintf(table[i].name, sizeof(table[i].name), "region%u", i);
    }
    again.digest = ff_hello_digest(&own);
    send_msg(l, buf, ff_wire_put_resume(buf, &again));
    int len = l->ops->recv(l, buf, 15000, &err);
    must(len > 0 && ff_wire_type(buf, (size_t)len, &err) == FF_MSG_WELCOME);
    must_ok(ff_wire_get_welcome(buf, (size_t)len, w, &err), err);
    return l;
}

/* --- somebody is connected and silent when the time is over --- */

static void *silent_main(void *arg)
{
    return dial(arg);
}

static void recover_in_vain(struct move *m)
{
    struct ff_error err;
    struct ff_link *l;
    pthread_t t;

    must(!pthread_create(&t, NULL, silent_main, m));
    must(ff_dest_recover(m->dest, 1000, &err) == -ETIMEDOUT);
    must(!pthread_join(t, (void **)&l));
    l->ops->free(l);
}

static void no_go(struct move *m, bool source)
{
    struct ff_error err;

    if (source) {
        ff_source_pause(m->source);
        usleep(1500000);
        return;
    }
    recover_in_vain(m);
    must(ff_dest_wait_go(m->dest, &err) == -ENOTCONN);
}

static void stranger_before_go(void)
{
    static struct move m;

    loop_arm("source.gone=fail");
    m = (struct move){.tcp = true, .resumes = true, .broken = no_go};
    move_run(&m);
    must(m.src.rc == -ETIME && m.dst.rc == -ESTALE);
}

#define CELLS 64u /* the last one finds no memory for a while */

static void pause_before_last(struct move *m, enum stage stage)
{
    struct ff_stats st;

    if (stage != D_DONE)
        return;
    for (unsigned ms = 0; ff_dest_stats(m->dest, &st), st.bytes_present < (CELLS - 1) * CELL; ms++) {
        must(ms < 20000);
        usleep(1000);
    }
    usleep(100000); /* the last one has been read */
    ff_dest_pause(m->dest);
}

static void then_all_is_here(struct move *m, bool source)
{
    struct ff_error err;
    struct ff_stats st;

    if (source) {
        usleep(1500000);
        return;
    }
    recover_in_vain(m);
    for (unsigned ms = 0; ff_dest_stats(m->dest, &st), st.bytes_present < st.bytes_total; ms++) {
        must(ms < 20000);
        usleep(1000);
    }
    must_ok(ff_dest_wait_done(m->dest, &err), err);
}

static void stranger_before_done(void)
{
    static struct move m;
    char faults[64];

    snprintf(faults, sizeof(faults), "dest.install=fail:12@%u-%u", CELLS, CELLS + 100);
    loop_arm(faults);
    m = (struct move){.tcp = true,
                      .resumes = true,
                      .options = "prefill=off",
                      .n_regions = 1,
                      .cells = {CELLS},
                      .touchers = 1,
                      .touches = 30 * CELLS,
                      .touch_late = true,
                      .hook = pause_before_last,
                      .broken = then_all_is_here};
    move_run(&m);
    must_ok(m.dst.rc, m.dst.err);
    touchers_join(&m);
    verify_all(&m);
}

/* --- signals --- */

static pthread_t hit[2];
static atomic_bool enough;

static void ignore(int signal)
{
    (void)signal;
}

static void *signals_main(void *arg)
{
    (void)arg;
    while (!atomic_load(&enough)) {
        usleep(20000);
        pthread_kill(hit[0], SIGUSR1);
        pthread_kill(hit[1], SIGUSR1);
    }
    return NULL;
}

/* Nobody comes, and the time limits hold, though signals come all the time */
static void signalled(struct move *m, bool source)
{
    static pthread_barrier_t both;
    static pthread_t t;
    static atomic_bool first;
    struct sigaction sa = {.sa_handler = ignore};
    struct ff_error err;

    if (!source)
        pthread_barrier_init(&both, NULL, 2), atomic_store(&first, true);
    while (!atomic_load(&first))
        usleep(1000);
    hit[source] = pthread_self();
    sigaction(SIGUSR1, &sa, NULL);
    pthread_barrier_wait(&both);
    if (!source)
        must(!pthread_create(&t, NULL, signals_main, NULL));
    if (source) {
        struct ff_address *a = loop_address(1, ""); /* nobody listens there */
        must(ff_source_resume(m->source, a, 1000, &err) == -ETIMEDOUT);
        ff_address_free(a);
    } else {
        must(ff_dest_recover(m->dest, 1000, &err) == -ETIMEDOUT);
    }
    pthread_barrier_wait(&both);
    atomic_store(&enough, true);
    if (!source)
        pthread_join(t, NULL);
}

static void signals(void)
{
    static struct move m;

    m = (struct move){.options = FINE, GUEST, .broken = signalled};
    move_must_survive(&m, BREAK, 1);
}

/* --- an errno of the network's --- */

static void not_the_destinations_word(void)
{
    static struct move m;
    char faults[100];

    snprintf(faults, sizeof(faults), BREAK ",source.resume=fail:%d@1", ETIME);
    m = (struct move){.options = FINE, GUEST};
    move_must_survive(&m, faults, 1); /* one runner, too */
}

/* --- where it listens --- */

static unsigned first_port;

static void keep_port(struct move *m, enum stage stage)
{
    if (stage == D_ACCEPT)
        first_port = ff_dest_port(m->dest);
}

static void *give_port_back(void *fd)
{
    usleep(700000);
    close((int)(intptr_t)fd);
    return NULL;
}

/* Another process has the port at first, as an interface that is down has its address */
static void take_port(struct move *m, bool source)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)first_port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct ff_error err;
    pthread_t t;
    int one = 1, fd;

    if (source || atomic_load(&m->breaks_dst) > 1)
        return;
    ff_dest_interrupt(m->dest); /* which closes the port */
    must(ff_dest_recover(m->dest, 1000, &err) == -EINTR);
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    must(!bind(fd, (struct sockaddr *)&at, sizeof(at)) && !listen(fd, 8));
    must(!pthread_create(&t, NULL, give_port_back, (void *)(intptr_t)fd));
    pthread_detach(t);
}

static void port_taken(void)
{
    static struct move m;

    m = (struct move){.options = FINE, GUEST, .hook = keep_port, .broken = take_port};
    move_must_survive(&m, BREAK, 1);
}

/* Somebody takes the connection, and says nothing: no link is left over that would be waited for */
static void mute_peer(struct move *m, bool source)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(at);
    struct ff_error err;

    if (!source)
        return;
    FF_AUTO_CLOSE int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    must(!bind(fd, (struct sockaddr *)&at, sizeof(at)) && !listen(fd, 8));
    must(!getsockname(fd, (struct sockaddr *)&at, &len));
    struct ff_address *a = loop_address(ntohs(at.sin_port), "");
    must(ff_source_resume(m->source, a, 300, &err) == -ETIMEDOUT);
    must(ff_source_wait_done(m->source, &err) == -ENOTCONN);
    ff_address_free(a);
}

static void mute(void)
{
    static struct move m;

    m = (struct move){.options = FINE, GUEST, .broken = mute_peer};
    move_must_survive(&m, BREAK, 1);
}

/* It is told where to listen while it waits: the same place, and then another */
static void listen_meanwhile(struct move *m, bool source)
{
    struct ff_address *any, *a;
    struct ff_error err;

    if (!source || atomic_load(&m->breaks_src) > 1)
        return;
    until_listens(m);
    usleep(300000);
    unsigned port = ff_dest_port(m->dest);
    must_ok(ff_dest_listen(m->dest, NULL, &err), err);
    must(ff_dest_port(m->dest) == port);
    any = loop_address(0, "");
    must_ok(ff_dest_listen(m->dest, any, &err), err);
    must(ff_dest_port(m->dest) != port);
    a = loop_address(ff_dest_port(m->dest), "");
    must_ok(ff_source_resume(m->source, a, 10000, &err), err);
    ff_source_pause(m->source); /* the harness does it once more, at the first place */
    ff_address_free(any);
    ff_address_free(a);
}

static void listens_meanwhile(void)
{
    static struct move m;

    m = (struct move){.options = FINE, GUEST, .broken = listen_meanwhile};
    move_must_survive(&m, BREAK, 1);
}

/* --- the link that broke --- */

/* Freed before anybody comes */
static void old_link_gone(struct move *m, bool source)
{
    for (unsigned ms = 0; source && strcmp(ff_dest_link(m->dest), "none"); ms++, usleep(1000))
        must(ms < 20000);
}

static void old_link(void)
{
    static struct move m;

    m = (struct move){.options = FINE, GUEST, .broken = old_link_gone};
    move_must_survive(&m, BREAK ",tcp.serve.prefill=fail@14", 2);
}

/* --- a GO after NOT-STARTED --- */

static void go_too_late(struct move *m, bool source)
{
    uint8_t buf[FF_MSG_MAX];
    struct ff_welcome w;

    if (!source)
        return;
    ff_source_pause(m->source);
    struct ff_link *l = come_back(m, &w);
    must(w.answer == FF_ANSWER_NOT_STARTED);
    send_msg(l, buf, ff_wire_put_empty(buf, FF_MSG_WITHDRAWN));
    send_msg(l, buf, ff_wire_put_empty(buf, FF_MSG_GO));
    must(wait_flag(&m->dst.ended, 10000));
    l->ops->free(l);
    move_cancel_source(m);
}

static void wait_go_again(struct move *m, enum stage stage)
{
    struct ff_error err;

    if (stage != D_END)
        return;
    must(m->dst.rc == -ESTALE && !ff_dest_port(m->dest));
    must(ff_dest_wait_go(m->dest, &err) == -ECANCELED);
}

static void sealed(void)
{
    static struct move m;

    loop_arm("source.gone=fail");
    m = (struct move){.tcp = true, .resumes = true, .broken = go_too_late, .hook = wait_go_again};
    move_run(&m);
    must(!m.ran && m.src.rc == -ECANCELED);
}

/* --- who has the session, and stops --- */

static void stop_after_welcome(struct move *m, bool source)
{
    static atomic_bool done;
    struct ff_welcome w;
    struct ff_error err;

    if (!source) {
        must(ff_dest_recover(m->dest, 500, &err) == -ETIMEDOUT);
        atomic_store(&done, true);
        return;
    }
    struct ff_link *l = come_back(m, &w);
    must(w.answer == FF_ANSWER_RUNNING);
    must_ok(l->ops->open_queues(l, w.session, 15000, &err), err);
    must(wait_flag(&done, 15000));
    l->ops->free(l);
}

static void stops(void)
{
    static struct move m;

    m = (struct move){.options = FINE ",timeout=1", GUEST, .broken = stop_after_welcome};
    move_must_survive(&m, BREAK, 1);
}

/* --- how long a peer may be silent --- */

/* One answer takes 3 s, with timeout=1 */
static unsigned breaks_of_silence(const char *options)
{
    static struct move m;

    m = (struct move){.options = options};
    move_must_survive(&m, "tcp.serve.prefill=delay:3000000@5", 0);
    return atomic_load(&m.breaks_dst);
}

static void silence(void)
{
    must(breaks_of_silence(FINE ",timeout=1"));
    must(!breaks_of_silence(FINE ",timeout=1,reconnect=0")); /* it could not be mended */
}

/* --- links that bring nothing --- */

static void *cancel_main(void *arg)
{
    struct move *m = arg;

    usleep(3000000);
    move_cancel_source(m);
    ff_dest_cancel(m->dest);
    return NULL;
}

static void cancel_soon(struct move *m, enum stage stage)
{
    pthread_t t;

    if (stage == D_DONE)
        must(!pthread_create(&t, NULL, cancel_main, m) && !pthread_detach(t));
}

static void in_vain(void)
{
    static struct move m;

    loop_arm("tcp.serve.fault=fail@5+"); /* a page that cannot be read there */
    m = (struct move){
        .tcp = true, .resumes = true, .options = "prefill=off", GUEST, .hook = cancel_soon};
    move_run(&m);
    must(m.src.rc == -ECANCELED && m.dst.rc == -ECANCELED);
    printf("      %u links in 3 s\n", atomic_load(&m.breaks_src));
    must(atomic_load(&m.breaks_src) > 3 && atomic_load(&m.breaks_src) < 60);
}

/* --- cancelled while they wait --- */

static void *cancel_dest(void *arg)
{
    usleep(300000);
    ff_dest_cancel(((struct move *)arg)->dest);
    return NULL;
}

static void *cancel_source(void *arg)
{
    usleep(300000);
    move_cancel_source(arg);
    return NULL;
}

/* Each alone: nobody comes */
static void cancel_later(struct move *m, bool source)
{
    pthread_t t;

    if (source)
        must(wait_flag(&m->dst.ended, 20000));
    must(!pthread_create(&t, NULL, source ? cancel_source : cancel_dest, m) && !pthread_detach(t));
}

static void cancelled(void)
{
    static struct move m;

    loop_arm("tcp.serve.prefill=fail@9");
    m = (struct move){.tcp = true, .resumes = true, .options = FINE, .broken = cancel_later};
    move_run(&m);
    must(m.ran && m.src.rc == -ECANCELED && m.dst.rc == -ECANCELED);
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"a stranger stays, no GO", stranger_before_go, 0},
        {"a stranger stays, all is here", stranger_before_done, 0},
        {"signals", signals, 0},
        {"ETIME of the network's", not_the_destinations_word, 0},
        {"the port is taken at first", port_taken, 0},
        {"somebody else is there, mute", mute, 0},
        {"listens meanwhile", listens_meanwhile, 0},
        {"the old link has gone", old_link, 0},
        {"GO after NOT-STARTED", sealed, 0},
        {"a source that stops", stops, 0},
        {"silence", silence, 60},
        {"links in vain", in_vain, 0},
        {"cancelled while they wait", cancelled, 0},
    };
    return loop_main(argc, argv, setup, tests, FF_ARRAY_LEN(tests));
}
