/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * visit_home.c - a guest that visits another host comes back: what is done before its way home (visit_attach.c)
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      here                                        there
 *                                                          what was plugged in is taken out
 *                                                          counted: what it has got there, and what it waited for
 *              the way home
 */
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "autojson.h"
#include "visit.h"

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
    bool commits = visit_commits(m);

    return xprintf("farfork attach --return on both hosts%s%s: here with %s, at %s/2.qmp there: see VISITS in farfork(1)",
                   m->back.go || commits ? ", after x-farfork-give-up here" : "",
                   commits ? " and block-commit of each overlay there" : "", m->side_qmp, m->s.hosts[0].rundir);
}

/* --- home --- */

static uint64_t count_of(const json_t *o, const char *key)
{
    json_int_t n = json_integer_value(json_object_get(o, key));

    return n > 0 ? (uint64_t)n : 0;
}

/* What the guest has got there, as the process beside its QEMU there says: the one here hears of it a while later */
static void count_there(struct move *m)
{
    FF_AUTO_JSON json_t *info = NULL, *status = NULL;
    struct visit *v = m->visit;
    struct ff_error ignored;

    *v->had = '\0';
    if (move_ask(m, "query-migrate", NULL, &info, &ignored) || strcmp(text_of(info, "status"), "postcopy-active"))
        return;
    if (!move_ask(m, "query-status", NULL, &status, &ignored))
        snprintf(v->had, sizeof(v->had), "%s", text_of(status, "status"));
    const json_t *x = json_object_get(info, "x-rdma-postcopy");
    m->present_bytes = FF_MAX(m->present_bytes, count_of(x, "present-bytes"));
    m->faults = FF_MAX(m->faults, count_of(x, "faults"));
    v->prefill_bytes = FF_MAX(v->prefill_bytes, count_of(x, "prefill-bytes"));
    v->fault_bytes = FF_MAX(v->fault_bytes, count_of(x, "fault-bytes"));
}

int visit_come_home(struct move *m, struct ff_error *why)
{
    struct visit *v = m->visit;
    int rc = move_check_there(m, why);

    v->tries++;
    if (!rc)
        rc = visit_data_unplug(m, why);
    if (rc)
        return rc;
    count_there(m);
    visit_ask_touched(m);
    v->coming_ms = ff_now_exact_ms();
    return visit_attach_home(m, why);
}
