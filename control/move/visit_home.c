/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * visit_home.c - a guest that visits another host comes back
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      here                                        there
 *                                                          what was plugged in is taken out
 *              the key                                     the key
 *              x-rdma-postcopy-return: listens
 *              query-migrate: its port
 *                                                          with --fallback go: overlays are committed (visit_disks.c)
 *                                                          migrate
 *              return-status: postcopy-active              it runs here; what it wrote follows
 *              completed, and query-status: running        postmigrate: of no use any more
 * States       of return-status here: setup, active        the guest is there; a try may fail
 *                                     failed               it is there, and goes on; another try is possible
 *                                     postcopy-active      it is here; its memory follows
 *                                     postcopy-paused      likewise, and the link is broken
 * Invariants   1. The QEMU there is ended only once the one here says that it runs the guest and has all of its
 *                 memory: its migration is completed, and the guest is in a state of a guest that is here (is_home()).
 *              2. A key of its own for each time that the QEMU here begins to listen; both have it while they are
 *                 told, and not longer.
 * Failure      before the guest runs here: it runs there as before. After that it is here, and needs the QEMU there
 *              until all is here, as after a move, the other way.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "autojson.h"
#include "qmp_secret.h"
#include "rundir.h"
#include "visit.h"

#define BACK_TURN_MS 50
#define HEAR_LIMIT_MS 2000
#define ANY_PORT "9" /* nothing is sent there */

/* --- this host's address --- */

/* The one that packets to @peer leave from; numeric, IPv6 in brackets */
static int address_towards(const char *peer, char **out, struct ff_error *why)
{
    size_t skip = *peer == '[', len = strlen(peer);
    FF_AUTO_FREE char *name = xprintf("%.*s", (int)(len - 2 * skip), peer + skip);
    struct addrinfo hints = {.ai_socktype = SOCK_DGRAM, .ai_flags = AI_NUMERICHOST}, *list;
    struct sockaddr_storage own;
    socklen_t own_len = sizeof(own);
    char text[NI_MAXHOST];

    if (getaddrinfo(name, ANY_PORT, &hints, &list))
        return ff_error_set(why, EHOSTUNREACH, "address %s cannot be read", peer);
    FF_AUTO_CLOSE int fd = socket(list->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int rc = fd < 0 || connect(fd, list->ai_addr, list->ai_addrlen) ||
             getsockname(fd, (struct sockaddr *)&own, &own_len)
                 ? errno : 0;
    bool is_v6 = list->ai_family == AF_INET6;
    freeaddrinfo(list);
    if (!rc && getnameinfo((struct sockaddr *)&own, own_len, text, sizeof(text), NULL, 0, NI_NUMERICHOST))
        rc = EHOSTUNREACH;
    if (rc)
        return ff_error_set(why, rc, "which address of this host reaches %s: %s; name it by --home", peer,
                            strerror(rc));
    text[strcspn(text, "%")] = '\0'; /* an interface of this host */
    *out = xprintf(is_v6 ? "[%s]" : "%s", text);
    return 0;
}

int visit_find_address(struct move *m, struct ff_error *why)
{
    struct visit *v = m->visit;

    if (v->address)
        return 0;
    if (v->o.home)
        return host_numeric(v->o.home, "--home ADDRESS", &v->address, why);
    return address_towards(move_host(m)->address, &v->address, why);
}

char *visit_by_hand(const struct move *m)
{
    const char *address = m->visit->address, *options = m->visit->link_options;
    bool commits = visit_commits(m);

    if (m->via == VIA_ATTACH)
        return xprintf("farfork attach --return on both hosts%s: here with %s, at %s/2.qmp there: see VISITS in farfork(1)",
                       commits ? ", after x-farfork-give-up here and block-commit of each overlay there" : "", m->side_qmp,
                       m->s.hosts[0].rundir);
    return xprintf("x-rdma-postcopy-return {\"uri\": \"rdma-postcopy:%s:0,%s%s,...\"} at %s here, whose query-migrate "
                   "shows the port then,%s and migrate {\"uri\": \"rdma-postcopy:%s:PORT,%s,...\"} at %s there: see VISITS "
                   "in farfork(1)", address, options, commits ? ",fallback=off" : "", m->s.o.parent_path,
                   commits ? " block-commit of each overlay there," : "", address, options, m->s.vms[0].qmp);
}

/* --- both are told --- */

static uint64_t count_of(const json_t *o, const char *key)
{
    json_int_t n = json_integer_value(json_object_get(o, key));

    return n > 0 ? (uint64_t)n : 0;
}

static bool is_any(const char *status, const char *a, const char *b)
{
    return !strcmp(status, a) || !strcmp(status, b);
}

/* What the guest has got there, by the QEMU there: the one here hears of it a while later. It says failed of a return,
 * and has the numbers of the way there again */
static void count_there(struct move *m)
{
    FF_AUTO_JSON json_t *info = NULL, *status = NULL;
    struct visit *v = m->visit;
    struct ff_error ignored;

    *v->had = '\0';
    if (move_ask(m, "query-migrate", NULL, &info, &ignored) ||
        (strcmp(text_of(info, "status"), "postcopy-active") && !is_any(text_of(info, "status"), "failed", "cancelled")))
        return;
    if (!move_ask(m, "query-status", NULL, &status, &ignored))
        snprintf(v->had, sizeof(v->had), "%s", text_of(status, "status"));
    const json_t *x = json_object_get(info, "x-rdma-postcopy");
    m->present_bytes = FF_MAX(m->present_bytes, count_of(x, "present-bytes"));
    m->faults = FF_MAX(m->faults, count_of(x, "faults"));
    v->prefill_bytes = FF_MAX(v->prefill_bytes, count_of(x, "prefill-bytes"));
    v->fault_bytes = FF_MAX(v->fault_bytes, count_of(x, "fault-bytes"));
}

/* The QEMU here waits for its guest from now on */
static int listen_here(struct move *m, struct ff_error *why)
{
    struct visit *v = m->visit;
    bool commits = visit_commits(m);
    FF_AUTO_FREE char *uri = xprintf("rdma-postcopy:%s:0,%s,key=" KEY_SECRET "%s", v->address, v->link_options,
                                     commits ? ",fallback=off" : "");
    uint64_t end = ff_now_ms() + (uint64_t)move_limit_ms(m);

    int rc = qmp_command(m->s.qmp, "x-rdma-postcopy-return", json_pack("{ss}", "uri", uri), NULL, why);
    if (commits && !rc) { /* where no answer came it may have given that up, or not */
        v->gave_up = true;
        m->back.go = false;
    }
    for (v->port = 0; !rc && !v->port; session_turn(&m->s, BACK_TURN_MS)) {
        FF_AUTO_JSON json_t *info = NULL;
        rc = qmp_command(m->s.qmp, "query-migrate", NULL, &info, why);
        const json_t *all = json_object_get(info, "socket-address");
        const json_t *at = json_array_size(all) ? json_array_get(all, json_array_size(all) - 1) : NULL;
        v->port = (unsigned)strtoul(text_of(at, "port"), NULL, 10);
        if (!rc && !v->port && ff_now_ms() > end)
            rc = ff_error_set(why, ETIMEDOUT, "the QEMU here does not show where it listens");
        if (v->port)
            break;
    }
    return rc;
}

/* A key that a killed program has left is in the way */
static int give_key_there(struct move *m, struct ff_error *why)
{
    struct ff_error ignored;
    int rc = session_send_key(&m->s, move_host(m), why);

    if (!rc)
        move_ask(m, "object-del", json_pack("{ss}", "id", KEY_SECRET), NULL, &ignored);
    return rc ? rc : move_ask_first(m, 1, NULL, NULL, why);
}

static void take_key_there(struct move *m)
{
    struct ff_error ignored;

    move_ask(m, "object-del", json_pack("{ss}", "id", KEY_SECRET), NULL, &ignored);
    move_forget_answer(m);
    host_send(move_host(m), json_pack("{sb}", "keep", true)); /* its agent needs it no more */
    move_wait_answer(m, "keep", "the agent there", &ignored);
}

static int send_there(struct move *m, struct ff_error *why)
{
    const struct visit *v = m->visit;
    FF_AUTO_FREE char *uri = xprintf("rdma-postcopy:%s:%u,%s,key=" KEY_SECRET, v->address, v->port, v->link_options);

    return move_ask(m, "migrate", json_pack("{ss}", "uri", uri), NULL, why);
}

/* A try before may have left it listening, with the key of then */
static bool listens_here(const struct move *m)
{
    return m->visit->port && !strcmp(m->returns, "setup");
}

static int begin_return(struct move *m, struct ff_error *why)
{
    /* nobody gives up a guest whose QEMU does not answer */
    int rc = visit_commits(m) ? move_ask(m, "query-status", NULL, NULL, why) : 0;

    if (!rc && !listens_here(m)) {
        key_text_free(m->s.key);
        m->s.key = NULL;
        rc = session_make_key(&m->s, why);
        if (!rc)
            rc = session_lend_key(&m->s, why);
        if (!rc)
            rc = listen_here(m, why);
        session_take_key(&m->s);
    }
    if (!rc)
        rc = visit_disks_commit(m, why);
    if (rc)
        return rc;
    rc = give_key_there(m, why);
    if (!rc)
        rc = send_there(m, why);
    take_key_there(m);
    return rc;
}

/* --- and followed --- */

/* What the last look has found */
struct look {
    json_t *here, *there; /* query-migrate; NULL: no answer */
    uint64_t bytes;       /* what has come */
};

/* The QEMU here says that the guest is here, with all of its memory, whatever has become of it: it may have failed, or
 * shut itself down, since */
static bool is_home(struct move *m, json_t **status)
{
    FF_AUTO_JSON json_t *info = NULL;
    struct ff_error why;

    if (qmp_command(m->s.qmp, "query-migrate", NULL, &info, &why) ||
        qmp_command(m->s.qmp, "query-status", NULL, status, &why))
        return false;
    const char *now = text_of(*status, "status");
    const char *back = text_of(json_object_get(info, "x-rdma-postcopy"), "return-status");
    return !strcmp(text_of(info, "status"), "completed") && (!*back || !strcmp(back, "completed")) &&
           *now && strcmp(now, "inmigrate") && !is_any(now, "finish-migrate", "postmigrate");
}

/* Of the QEMU there, which sends now */
static void take_there(struct move *m, const json_t *info)
{
    struct visit *v = m->visit;
    const json_t *x = json_object_get(info, "x-rdma-postcopy"), *down = json_object_get(info, "downtime");

    snprintf(v->there, sizeof(v->there), "%s", text_of(info, "status"));
    if (v->runs_here) /* before, it may show those of the way there */
        v->back_bytes = FF_MAX(v->back_bytes, count_of(x, "prefill-bytes") + count_of(x, "fault-bytes"));
    if (down)
        v->downtime_ms = (double)json_integer_value(down);
}

static void look_there(struct move *m, json_t **info)
{
    struct ff_error why;

    if (!move_ask(m, "query-migrate", NULL, info, &why))
        take_there(m, *info);
}

/* 0; -errno: the QEMU here has ended */
static int look_here(struct move *m, json_t **info, struct ff_error *why)
{
    int rc = qmp_command(m->s.qmp, "query-migrate", NULL, info, why);

    if (rc == -ETIMEDOUT)
        return 0;
    if (!rc) {
        snprintf(m->status, sizeof(m->status), "%s", text_of(*info, "status"));
        snprintf(m->returns, sizeof(m->returns), "%s",
                 text_of(json_object_get(*info, "x-rdma-postcopy"), "return-status"));
    }
    return rc;
}

static bool has_switched(const struct move *m)
{
    return is_any(m->returns, "postcopy-active", "postcopy-paused") || !strcmp(m->returns, "completed") ||
           !strcmp(m->status, "completed");
}

static void end_away(struct move *m, enum move_outcome o, const char *text)
{
    move_end_with(m, o, "%s", text);
    m->visit->over = true;
}

static void on_switch_back(struct move *m)
{
    struct visit *v = m->visit;

    v->runs_here = true;
    v->here_ms = ff_now_exact_ms();
    visit_say(m, "it runs here again, what it wrote follows");
}

/* Its numbers are whole when it has heard that everything is here; nothing else depends on that */
static void hear_last(struct move *m)
{
    uint64_t end = ff_now_ms() + HEAR_LIMIT_MS;

    for (; ff_now_ms() < end && !move_check_there(m, NULL); session_turn(&m->s, BACK_TURN_MS)) {
        FF_AUTO_JSON json_t *info = NULL;
        look_there(m, &info);
        if (!strcmp(m->visit->there, "completed"))
            return;
    }
}

/* true: it is home, with everything */
static bool end_home(struct move *m)
{
    FF_AUTO_JSON json_t *status = NULL;

    if (strcmp(m->status, "completed") || !is_home(m, &status))
        return false;
    m->visit->home_ms = ff_now_exact_ms();
    if (*m->visit->had && strcmp(text_of(status, "status"), m->visit->had))
        session_note(&m->s, "the guest is %s here, and was %s on %s", text_of(status, "status"), m->visit->had,
                 move_host(m)->node->host);
    hear_last(m);
    m->end_there = true;
    if (move_host(m)->state == HOST_FAILED)
        session_note(&m->s, "the QEMU on %s is of no use any more, and was not ended: vmclone --kill %s there does that",
                 move_host(m)->node->host, m->s.o.id);
    FF_AUTO_FREE char *text = m->visit->failed
                                  ? xprintf("it is home again, and could not work there: %s", m->visit->failure) : NULL;
    end_away(m, MOVE_HOME, text ? text : "");
    return true;
}

/* The guest is there, and stays. true: it is known, @why says the reason */
static bool has_failed(struct move *m, const struct look *l, struct ff_error *why)
{
    const struct visit *v = m->visit;
    FF_AUTO_JSON json_t *status = NULL;
    struct ff_error ignored;
    bool over_there = is_any(v->there, "failed", "cancelled");

    if ((!over_there && strcmp(m->returns, "failed")) || move_ask(m, "query-status", NULL, &status, &ignored) ||
        is_any(text_of(status, "status"), "finish-migrate", "postmigrate"))
        return false;
    const char *there = text_of(l->there, "error-desc");
    const char *here = text_of(json_object_get(l->here, "x-rdma-postcopy"), "return-error");
    ff_error_set(why, EIO, "the QEMU there: %s%s%s%s%s", v->there, *there ? ": " : "", there,
                 *here ? "; here: " : "", here);
    return true;
}

/* It runs here. true: what follows is not waited for any longer */
static bool is_left(struct move *m, uint64_t now, uint64_t changed_ms, uint64_t *paused_until)
{
    const char *host = move_host(m)->node->host;
    const struct vm *k = move_child(m);
    bool paused = is_any(m->returns, "postcopy-paused", "failed");
    FF_AUTO_FREE char *text = NULL;

    if (!paused)
        *paused_until = 0;
    else if (!*paused_until) {
        *paused_until = now + session_reconnect_ms(&m->s);
        visit_say(m, "the link broke on the way back: the guest waits for memory that it wrote on %s", host);
    }
    if (paused && (now > *paused_until || k->state == VM_FAILED)) {
        text = xprintf("the guest is here, until it touches memory that it wrote on %s and that did not come; %s%s: see "
                       "A LINK THAT BREAKS in farfork-rdma-postcopy(7)", host,
                       k->state == VM_FAILED ? "the QEMU there has ended: " : "the QEMU there was not ended",
                       k->state == VM_FAILED ? k->error : "");
        end_away(m, MOVE_BROKEN, text);
    } else if (!paused && now > changed_ms + (uint64_t)move_limit_ms(m)) {
        text = xprintf("the guest is here, and nothing that it wrote came from %s for %u s: keep the QEMU there until "
                       "query-migrate here says completed, then end it", host, m->s.o.timeout_s);
        end_away(m, MOVE_FOLLOWS, text);
    }
    return m->visit->over;
}

/* A signal on the way: it is not ended by one. true: left at the second one */
static bool on_signal_back(struct move *m, bool *said)
{
    struct visit *v = m->visit;
    const char *host = move_host(m)->node->host;
    FF_AUTO_FREE char *text = NULL;

    if (!m->s.interrupted)
        return false;
    m->s.interrupted = false;
    v->signalled = true;
    if (!*said) {
        visit_say(m, "it is on its way home; interrupt again to leave that to both QEMUs");
        *said = true;
        return false;
    }
    if (v->runs_here)
        text = xprintf("left: the guest is here, what it wrote on %s follows: keep the QEMU there until query-migrate "
                       "here says completed, then end it", host);
    else
        text = xprintf("left: the guest was on its way home from %s: query-migrate here says what came of that", host);
    end_away(m, v->runs_here ? MOVE_FOLLOWS : MOVE_UNCLEAR, text);
    return true;
}

/* The QEMU here has ended, and its last word was one of the way back */
static int on_lost_here(struct move *m, struct ff_error *why)
{
    uint64_t end = ff_now_ms() + HEAR_LIMIT_MS; /* it closes its sockets first */
    FF_AUTO_FREE char *text = NULL;
    bool runs;

    m->s.parent_gone = true;
    if (!m->visit->runs_here) {
        m->visit->over = move_follow_turn(m);
        return m->visit->over ? 0 : -EAGAIN;
    }
    while ((runs = process_look(m->s.parent_pid, m->s.parent_start) != PROCESS_GONE) && ff_now_ms() < end)
        session_turn(&m->s, BACK_TURN_MS);
    text = xprintf("the QEMU here %s the guest, which had come home: %s",
                   runs ? "does not answer any more; it has" : "has ended, with", why->text);
    m->s.parent_gone = !runs;
    end_away(m, runs ? MOVE_UNCLEAR : MOVE_LOST, text);
    return 0;
}

/* Nothing happens before the switch: the guest is to stay there. A cancel that comes too late says nothing */
static int stop_return(struct move *m, bool *cancelled, uint64_t *changed_ms)
{
    struct ff_error ignored;

    if (*cancelled) {
        FF_AUTO_FREE char *text = xprintf("the return from %s neither goes on nor ends: the QEMU there says %s, the one "
                                          "here %s; neither was ended", move_host(m)->node->host, m->visit->there,
                                          m->returns);
        end_away(m, MOVE_UNCLEAR, text);
        return 1;
    }
    *cancelled = true;
    *changed_ms = ff_now_ms();
    move_ask(m, "migrate_cancel", NULL, NULL, &ignored);
    return 0;
}

static void free_look(struct look *l)
{
    json_decref(l->here);
    json_decref(l->there);
    l->here = l->there = NULL;
}

int visit_follow_home(struct move *m, struct ff_error *why)
{
    struct visit *v = m->visit;
    uint64_t changed_ms = ff_now_ms(), paused_until = 0, bytes = 0;
    bool said = false, cancelled = false;
    char was[2 * sizeof(m->returns) + 2] = "", now[sizeof(was)];
    struct look l = {0};
    int rc = 0;

    for (;; session_turn(&m->s, BACK_TURN_MS)) {
        free_look(&l);
        if (move_child(m)->state != VM_FAILED && move_host(m)->state != HOST_FAILED)
            look_there(m, &l.there);
        if (look_here(m, &l.here, why)) {
            rc = on_lost_here(m, why);
            break;
        }
        if (!v->runs_here && has_switched(m))
            on_switch_back(m);
        if (end_home(m))
            break;
        snprintf(now, sizeof(now), "%s %s", m->returns, v->there);
        if (strcmp(was, now) || bytes != v->back_bytes)
            changed_ms = ff_now_ms();
        memcpy(was, now, sizeof(was));
        bytes = v->back_bytes;
        if (on_signal_back(m, &said) || (v->runs_here && is_left(m, ff_now_ms(), changed_ms, &paused_until)))
            break;
        if (v->runs_here)
            continue;
        if (has_failed(m, &l, why)) {
            rc = -EIO;
            break;
        }
        if (move_child(m)->state == VM_FAILED) { /* with its guest: what is that to the QEMU here? */
            rc = ff_error_set(why, ECHILD, "its QEMU on %s: %s", move_host(m)->node->host, move_child(m)->error);
            break;
        }
        if (ff_now_ms() > changed_ms + (uint64_t)move_limit_ms(m) && stop_return(m, &cancelled, &changed_ms))
            break;
    }
    free_look(&l);
    return rc;
}

int visit_come_home(struct move *m, struct ff_error *why)
{
    struct visit *v = m->visit;
    int rc = move_check_there(m, why);

    v->tries++;
    *v->there = '\0';
    if (!rc)
        rc = visit_data_unplug(m, why);
    if (!rc)
        count_there(m);
    if (!rc)
        visit_ask_touched(m);
    if (!rc && m->via != VIA_ATTACH)
        visit_keep_touched(m, m->s.parent_pid);
    v->coming_ms = ff_now_exact_ms();
    if (!rc && m->via == VIA_ATTACH)
        return visit_attach_home(m, why);
    if (!rc)
        rc = begin_return(m, why);
    return rc ? rc : visit_follow_home(m, why);
}
