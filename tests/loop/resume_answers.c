/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * resume_answers.c - a source that comes back after a break: who is heard, what is answered, where,
 *                    and how long both wait
 */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "by_hand.h"
#include "cleanup.h"
#include "dest_private.h"
#include "failpoint.h"
#include "tcp_wire.h"

#define FINE "chunk=64K,window=1"
#define SLOW_FAULTS "dest.fault=delay:2000," /* prefill is to break, not to come too late */
#define GUEST .touchers = 8, .writes = true, .touch_late = true

static void setup(void)
{
    image_new(4000);
}

/* --- who comes back, and who does not --- */

static unsigned n_refused;

static void refused(struct move *m, const uint8_t *msg, int len, const char *says)
{
    struct ff_link *l = hand_say(m, msg, len);

    hand_refused(l, says);
    l->ops->free(l);
    n_refused++;
}

/* It has all that the move's source has, and offers other memory */
static void other_image(struct move *m, const struct ff_resume *again)
{
    static struct ff_publish pub = {.segment_bytes = FF_WIRE_SEGMENT_MIN, .n_keys = 1};
    static uint8_t buf[FF_MSG_MAX];
    struct ff_welcome w;
    struct ff_error err;

    struct ff_link *l = hand_say(m, buf, ff_wire_put_resume(buf, again));
    int len = l->ops->recv(l, buf, 15000, &err);
    must(len > 0 && ff_wire_type(buf, (size_t)len, &err) == FF_MSG_WELCOME);
    must_ok(ff_wire_get_welcome(buf, (size_t)len, &w, &err), err);
    must(w.answer == FF_ANSWER_RUNNING && w.epoch == 2);
    must(memcmp(w.session, again->session, sizeof(w.session))); /* of its queues alone */
    must_ok(l->ops->open_queues(l, w.session, 15000, &err), err);
    len = ff_wire_put_publish(buf, &pub, m->n_regions);
    must_ok(l->ops->send(l, buf, (uint32_t)len, &err), err);
    must(l->ops->recv(l, buf, 15000, &err) < 0 && err.code != ETIMEDOUT);
    l->ops->free(l);
}

static void strangers_come(struct move *m, bool source)
{
    static uint8_t buf[FF_MSG_MAX];
    struct ff_wire_region r = {.name = "region0", .len_bytes = CELL, .psize = CELL};
    struct ff_hello h = {
        .version = FF_WIRE_VERSION, .oldest = FF_WIRE_VERSION, .n_regions = 1, .regions = &r};
    struct ff_resume again, good;

    if (!source)
        return;
    good = again = hand_resume(m);
    refused(m, buf, ff_wire_put_hello(buf, &h, NULL), "waits for its own source");
    again.session[0] ^= 1;
    refused(m, buf, ff_wire_put_resume(buf, &again), "the session is not that");
    again = good;
    again.digest ^= 1;
    refused(m, buf, ff_wire_put_resume(buf, &again), "not as it was in the move's HELLO");
    again = good;
    again.epoch = 2;
    refused(m, buf, ff_wire_put_resume(buf, &again), "epoch 2 (there was none after 1)");
    again.version = again.oldest = FF_WIRE_VERSION + 1;
    refused(m, buf, ff_wire_put_resume(buf, &again), "use the same Farfork release");
    other_image(m, &good);
}

static void strangers(void)
{
    static struct move m;

    m = (struct move){.options = FINE ",prefill=pull", GUEST, .broken = strangers_come};
    move_must_survive(&m, SLOW_FAULTS "tcp.serve.prefill=fail@9", 1);
    must(n_refused == 5);
}

/* Who says RESUME to a destination that has no move, is told so */
static void too_early(struct move *m, enum stage stage)
{
    static uint8_t buf[FF_MSG_MAX];
    struct ff_resume again = {.version = FF_WIRE_VERSION, .oldest = FF_WIRE_VERSION, .epoch = 1};

    if (stage == S_CONNECT)
        refused(m, buf, ff_wire_put_resume(buf, &again), "no move here");
}

static void resume_too_early(void)
{
    static struct move m;

    m = (struct move){.tcp = true, .hook = too_early};
    move_run(&m);
    move_must_succeed(&m);
    must(n_refused == 1);
}

/* --- while the link is up, as far as the destination knows --- */

static uint8_t hand_buf[FF_MSG_MAX];
static pthread_t by_hand;

/* The source has lost the link, and this side has not: the next one is taken, and then no earlier
 * one */
static void *supersede_main(void *arg)
{
    struct move *m = arg;
    struct ff_wire_region r = {.name = "region0", .len_bytes = CELL, .psize = CELL};
    struct ff_hello h = {
        .version = FF_WIRE_VERSION, .oldest = FF_WIRE_VERSION, .n_regions = 1, .regions = &r};
    struct ff_resume again = hand_resume(m);
    struct ff_welcome w;
    struct ff_error err;

    refused(m, hand_buf, ff_wire_put_hello(hand_buf, &h, NULL), "waits for its own source");
    must(!atomic_load(&m->breaks_dst));
    struct ff_link *l = hand_say(m, hand_buf, ff_wire_put_resume(hand_buf, &again));
    int len = l->ops->recv(l, hand_buf, 15000, &err);
    must(len > 0 && ff_wire_type(hand_buf, (size_t)len, &err) == FF_MSG_WELCOME);
    must_ok(ff_wire_get_welcome(hand_buf, (size_t)len, &w, &err), err);
    must(w.answer == FF_ANSWER_RUNNING && w.epoch == 2);
    l->ops->free(l);

    struct ff_stats st;
    for (unsigned ms = 0; ff_dest_stats(m->dest, &st), !st.breaks; ms++, usleep(1000))
        must(ms < 20000); /* the move's own source is back */
    unsigned breaks = atomic_load(&m->breaks_dst);
    refused(m, hand_buf, ff_wire_put_resume(hand_buf, &again), "epoch 1 came too late, after link");
    ff_dest_stats(m->dest, &st);
    must(st.breaks == 1 && atomic_load(&m->breaks_dst) == breaks);
    return NULL;
}

static void supersede(struct move *m, enum stage stage)
{
    struct ff_resume again;

    if (stage == D_STATE) {
        again = hand_resume(m);
        refused(m, hand_buf, ff_wire_put_resume(hand_buf, &again), "has not let go of anything");
    }
    if (stage == D_DONE)
        must(!pthread_create(&by_hand, NULL, supersede_main, m));
    if (stage == D_END)
        pthread_join(by_hand, NULL);
}

static void superseded(void)
{
    static struct move m;

    m = (struct move){.options = FINE ",prefill=pull", .hook = supersede};
    move_must_survive(&m, "dest.prefill=delay:100000@1-30", 1);
    must(n_refused == 3);
}

/* Nobody can hear: the source is heard once this side has noticed the break as well */
static void no_ear(void)
{
    static struct move m;

    m = (struct move){.options = FINE ",prefill=pull", GUEST};
    move_must_survive(&m, "dest.ear=fail," SLOW_FAULTS "tcp.serve.prefill=fail@9", 1);
}

/* --- what the destination answers --- */

/* GO is lost: the destination never runs the guest, and the source may */
static void go_lost(const char *faults)
{
    static struct move m;

    loop_arm(faults);
    m = (struct move){.tcp = true, .resumes = true, GUEST};
    move_run(&m);
    if (m.src.rc != -ETIME || m.dst.rc != -ESTALE || m.ran || m.went ||
        !strstr(m.src.err.text, "never got GO"))
        loop_fail(__FILE__, __LINE__, "source %d: %s; destination %d: %s", m.src.rc, m.src.err.text,
                  m.dst.rc, m.dst.err.text);
}

static void not_started(void)
{
    go_lost("source.gone=fail");
}

/* The source forgets the answer: it is the same when it asks again */
static void not_started_twice(void)
{
    go_lost("source.gone=fail,source.resume=fail@1-2");
}

/* GO is read as the link goes: it is the destination's guest */
static void go_then_break(struct move *m, enum stage stage)
{
    if (stage != D_GO)
        return;
    for (unsigned ms = 0; atomic_load(&m->stage_src) < S_RUNNING; ms++, usleep(1000))
        must(ms < 20000);
    ff_source_pause(m->source);
}

static void go_read(void)
{
    static struct move m;

    m = (struct move){.options = FINE ",prefill=pull", GUEST, .hook = go_then_break};
    move_must_survive(&m, "source.done=delay:0", 1);
}

static void before_running(struct move *m, enum stage stage)
{
    if (stage == D_RUNNING)
        ff_dest_pause(m->dest);
}

static void running_lost(void)
{
    static struct move m;

    m = (struct move){.options = FINE ",prefill=push", GUEST, .hook = before_running};
    move_must_survive(&m, "source.done=delay:0", 1);
    must(atomic_load(&m.breaks_dst));
}

/* The link breaks while the guest is being started: there is another before RUNNING would be said */
static void while_it_starts(struct move *m, enum stage stage)
{
    struct ff_error err;

    if (stage != D_RUNNING)
        return;
    ff_dest_pause(m->dest);
    atomic_fetch_add(&m->breaks_dst, 1);
    must_ok(ff_dest_recover(m->dest, 20000, &err), err);
    must(ff_failpoint_hits("dest.beat") == 2); /* over each link the source hears that it is alive */
}

static void started_late(void)
{
    static struct move m;

    m = (struct move){.options = FINE, GUEST, .hook = while_it_starts};
    move_must_survive(&m, "source.done=delay:0,dest.beat=delay:0", 1);
    must(atomic_load(&m.breaks_dst) == 1); /* that one alone */
}

/* DONE is lost: the destination is complete, and says so to a source that asks */
static void done_lost(void)
{
    static struct move m;

    m = (struct move){.options = FINE, GUEST};
    move_must_survive(&m, "source.done=fail@1,source.resume=fail@1", 1);
    must(!atomic_load(&m.breaks_dst)); /* it was complete by then */
}

/* --- other addresses, limits, the end --- */

static struct ff_dest *_Atomic listens; /* to be told, also while one of its threads looks a name up (ld --wrap) */

int __real_getaddrinfo(const char *n, const char *s, const struct addrinfo *h, struct addrinfo **l);
int __wrap_getaddrinfo(const char *n, const char *s, const struct addrinfo *h, struct addrinfo **l);

int __wrap_getaddrinfo(const char *n, const char *s, const struct addrinfo *h, struct addrinfo **l)
{
    struct ff_dest *d = atomic_load(&listens);
    bool asks = d && !(h->ai_flags & AI_NUMERICHOST);

    for (unsigned ms = 0; asks && pthread_mutex_trylock(&d->listen_lock); ms++, usleep(1000))
        must(ms < 10000); /* others have it for a moment */
    if (asks)
        pthread_mutex_unlock(&d->listen_lock);
    return __real_getaddrinfo(n, s, h, l);
}

static void listen_elsewhere(struct move *m, bool source)
{
    struct ff_address *a;
    struct ff_error err;

    if (source) { /* it knows the new address from its operator */
        for (unsigned ms = 0; !ff_dest_port(m->dest); ms++, usleep(1000))
            must(ms < 20000);
        usleep(300000); /* it waits at its first address, and then elsewhere */
        a = loop_address(ff_dest_port(m->dest), "");
        must_ok(ff_source_resume(m->source, a, 20000, &err), err);
        ff_source_pause(m->source); /* the harness does it once more */
        ff_address_free(a);
        return;
    }
    if (atomic_load(&m->breaks_dst) > 1)
        return;
    a = loop_address(0, "");
    atomic_store(&listens, m->dest);
    must_ok(ff_dest_listen(m->dest, a, &err), err);
    atomic_store(&listens, NULL);
    ff_address_free(a);
}

static void elsewhere(void)
{
    static struct move m;

    m = (struct move){.options = FINE ",prefill=pull", GUEST, .broken = listen_elsewhere};
    move_must_survive(&m, SLOW_FAULTS "tcp.serve.prefill=fail@9", 1);
}

/* Without a key another user's process says, where the destination was, that it never got GO. It ends
 * with 0 when the source hangs up. */
static pid_t start_liar(unsigned *port)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct ff_welcome w = {.version = FF_WIRE_VERSION, .answer = FF_ANSWER_NOT_STARTED, .epoch = 1};
    uint8_t frame[TCP_CTRL_HEAD_LEN + 64], *msg = frame + TCP_CTRL_HEAD_LEN;
    socklen_t len = sizeof(sa);
    int ls = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char c;

    int n = ff_wire_put_welcome(msg, &w);
    tcp_ctrl_encode(frame, (uint32_t)n);
    must(!bind(ls, (struct sockaddr *)&sa, len) && !listen(ls, 64));
    must(!getsockname(ls, (struct sockaddr *)&sa, &len));
    *port = ntohs(sa.sin_port);
    pid_t pid = fork();
    must(pid >= 0);
    if (pid) {
        close(ls);
        return pid;
    }
    if (setresuid(12345, 12345, 12345))
        _exit(2);
    for (;;) {
        int fd = accept(ls, NULL, NULL);
        if (send(fd, frame, TCP_CTRL_HEAD_LEN + (size_t)n, MSG_NOSIGNAL) < 0)
            _exit(3);
        while (recv(fd, &c, 1, 0) > 0)
            ;
        close(fd);
    }
}

static void lied_to(struct move *m, bool source)
{
    struct ff_address *a;
    struct ff_error err;
    unsigned port;

    if (!source)
        return;
    pid_t pid = start_liar(&port);
    a = loop_address(port, "");
    int rc = ff_source_resume(m->source, a, 1500, &err);
    ff_address_free(a);
    kill(pid, SIGKILL);
    must(waitpid(pid, NULL, 0) == pid);
    must(rc == -ETIMEDOUT && strstr(err.text, "user 12345")); /* -ETIME would be a second runner */
    a = loop_address(ff_dest_port(m->dest), "");
    must_ok(ff_source_resume(m->source, a, 20000, &err), err);
    ff_source_pause(m->source); /* the harness does it once more */
    ff_address_free(a);
}

static void another_user(void)
{
    static struct move m;

    if (geteuid())
        loop_skip("only root can become another user");
    m = (struct move){.options = FINE ",prefill=pull", GUEST, .broken = lied_to};
    move_must_survive(&m, SLOW_FAULTS "tcp.serve.prefill=fail@9", 1);
}

/* Nobody comes; the guest is still the destination's, and the next try works */
static void give_up_first(struct move *m, bool source)
{
    struct ff_error err;

    if (source) { /* nobody listens there */
        struct ff_address *a = loop_address(1, "");
        must(ff_source_resume(m->source, a, 300, &err) == -ETIMEDOUT && *err.text);
        ff_address_free(a);
        must(ff_source_wait_done(m->source, &err) == -ENOTCONN);
        usleep(300000);
        return;
    }
    must(ff_dest_recover(m->dest, 1, &err) == -ETIMEDOUT);
    must(ff_dest_wait_done(m->dest, &err) < 0);
}

static void limits(void)
{
    static struct move m;

    m = (struct move){.options = FINE ",prefill=pull", GUEST, .broken = give_up_first};
    move_must_survive(&m, SLOW_FAULTS "tcp.serve.prefill=fail@9", 1);
}

/* Interrupted before or while they wait: the next call waits as ever, at the same address */
static void *interrupt_soon(void *opaque)
{
    struct move *m = opaque;

    for (unsigned ms = 0; !ff_dest_port(m->dest); ms++, usleep(1000))
        must(ms < 20000);
    ff_dest_interrupt(m->dest);
    return NULL;
}

static void interrupt_both(struct move *m, bool source)
{
    struct ff_error err;
    pthread_t thread;

    if (source) {
        ff_source_interrupt(m->source);
        must(ff_source_resume(m->source, NULL, 20000, &err) == -EINTR);
        return;
    }
    must(!pthread_create(&thread, NULL, interrupt_soon, m));
    must(ff_dest_recover(m->dest, 20000, &err) == -EINTR);
    pthread_join(thread, NULL);
    ff_dest_interrupt(m->dest);
    must(ff_dest_recover(m->dest, 20000, &err) == -EINTR);
    atomic_store(&listens, m->dest);
    must_ok(ff_dest_listen(m->dest, NULL, &err), err);
    must_ok(ff_dest_listen(m->dest, NULL, &err), err); /* there is a port there: its own */
    atomic_store(&listens, NULL);
}

static void interrupted(void)
{
    static struct move m;

    m = (struct move){.options = FINE ",prefill=pull", GUEST, .broken = interrupt_both};
    move_must_survive(&m, SLOW_FAULTS "tcp.serve.prefill=fail@9", 1);
}

/* Cancelled while they wait: both waits end */
static void cancel_both(struct move *m, bool source)
{
    if (source)
        move_cancel_source(m);
    else
        ff_dest_cancel(m->dest);
}

static void cancelled(void)
{
    static struct move m;

    loop_arm("tcp.serve.prefill=fail@9");
    m = (struct move){
        .tcp = true, .resumes = true, .options = FINE ",prefill=pull", .broken = cancel_both};
    move_run(&m);
    must(m.ran && m.src.rc == -ECANCELED && m.dst.rc == -ECANCELED);
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"strangers", strangers, 30},
        {"RESUME of no move", resume_too_early, 0},
        {"RESUME while the link is up", superseded, 60},
        {"RESUME, and nobody hears", no_ear, 30},
        {"GO lost: NOT-STARTED", not_started, 0},
        {"NOT-STARTED, asked twice", not_started_twice, 30},
        {"GO read: RUNNING", go_read, 30},
        {"RUNNING lost", running_lost, 30},
        {"a break while the guest is started", started_late, 30},
        {"DONE lost: COMPLETE", done_lost, 30},
        {"another address", elsewhere, 30},
        {"another user answers", another_user, 0},
        {"nobody comes at first", limits, 30},
        {"interrupted", interrupted, 30},
        {"cancelled", cancelled, 0},
    };
    return loop_main(argc, argv, setup, tests, FF_ARRAY_LEN(tests));
}
