/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * fork_verify.c - do agents have the parent's image, and nobody else's?
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      an agent on another host listens on a port, and takes the image of the first that
 *              comes with the fork's key, which each of its hosts has. It makes a number for it,
 *              the session, which only that source learns. So when agent and parent name one
 *              session, the image is the parent's.
 * Failure      an agent that has another image fails as a host; its children end, also those that
 *              run. A parent that does not answer any more cannot be asked: that is noted.
 * Limits       it is known once the image is there: children may run for that moment.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "autojson.h"
#include "fork.h"

#define ASK_LIMIT_MS 2000

/* What a line of x-query-ramblock ends with: largest size, address, ro or rw; before 8.0 that size alone; 0: none such */
static uint64_t block_bytes(const char *line, size_t len)
{
    FF_AUTO_FREE char *text = xprintf("%.*s", (int)len, line);
    char *last[3] = {"", "", ""}, *save = NULL, *end;

    for (char *w = strtok_r(text, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
        last[0] = last[1];
        last[1] = last[2];
        last[2] = w;
    }
    const char *size = strncmp(last[2], "0x", 2) ? last[0] : last[2];
    uint64_t bytes = strtoull(size, &end, 16);
    return !strncmp(size, "0x", 2) && !*end ? bytes : 0;
}

int fork_ask_memory(struct fork *f, struct ff_error *why)
{
    FF_AUTO_JSON json_t *answer = NULL;

    int rc = qmp_command(f->s.qmp, "x-query-ramblock", NULL, &answer, why);
    if (rc) /* a QEMU that refuses that: fork_check_parent() says what it is */
        return rc == -EREMOTEIO ? 0 : rc;
    for (const char *line = text_of(answer, "human-readable-text"); *line;) {
        size_t len = strcspn(line, "\n");
        f->memory_bytes += block_bytes(line, len);
        line += len + (line[len] == '\n');
    }
    return 0;
}

/* Nobody listens on this host: the agent's socket takes the connections */
char *fork_target_of(const struct fork *f, const struct host *h)
{
    FF_AUTO_FREE char *to = h->here ? xstrdup("unix") : host_at(h);

    FF_AUTO_FREE char *options = session_link_options(&f->s, h);
    bool many = f->group && h->keyed;
    return xprintf("rdma-postcopy:%s%s%s%s", to, options, many ? ",multicast=" : "",
                   many ? f->group : "");
}

const json_t *fork_find_target(const struct fork *f, const json_t *exports, const struct host *h)
{
    const json_t *e = json_find(exports, "id", f->s.o.id);
    const json_t *targets = json_object_get(e, "targets");
    FF_AUTO_FREE char *uri = fork_target_of(f, h);

    return h->here ? json_find(targets, "socket", h->socket)
                   : json_find(targets, "uri", uri);
}

bool fork_image_is_open(const struct fork *f, const struct host *h)
{
    return h->session && !h->verified && h->state != HOST_FAILED && !f->s.parent_silent && !f->source_lost;
}

static bool is_any_open(const struct fork *f)
{
    for (size_t i = 0; i < f->s.n_hosts; i++)
        if (fork_image_is_open(f, &f->s.hosts[i]))
            return true;
    return false;
}

static void fail_foreign(struct fork *f, struct host *h, const char *what)
{
    h->foreign = true;
    host_fail(&f->s, h,
              "its agent got an image that is not the parent's: another process reached the agent "
              "first; trust nothing of that host (%s)",
              what);
    for (size_t k = 0; k < f->s.n_vms; k++) {
        struct vm *child = &f->s.vms[k];
        if (&f->s.hosts[child->host] == h)
            vm_fail(child, "host %s: %s", h->node->host, h->error);
    }
}

void fork_verify_images(struct fork *f)
{
    FF_AUTO_JSON json_t *all = NULL;
    struct ff_error why;

    for (size_t i = 0; (f->s.parent_silent || f->source_lost) && i < f->s.n_hosts; i++) {
        struct host *h = &f->s.hosts[i];
        if (h->session && !h->verified && !h->here) /* here its socket has checked who gave it */
            session_note(&f->s,
                     "host %s: the parent does not answer, so the image there may not be its own",
                     h->node->host);
        h->verified |= h->session != NULL;
    }
    if (!f->exported || !is_any_open(f))
        return;
    qmp_limit(f->s.qmp, ASK_LIMIT_MS);
    if (qmp_command(f->s.qmp, "query-x-farfork-exports", NULL, &all, &why))
        return; /* it may be busy, or end */
    for (size_t i = 0; i < f->s.n_hosts; i++) {
        struct host *h = &f->s.hosts[i];
        const json_t *t = fork_image_is_open(f, h) ? fork_find_target(f, all, h) : NULL;
        const char *session = text_of(t, "session"), *status = text_of(t, "status");
        if (!t)
            continue;
        h->verified = *session && !strcmp(session, h->session);
        if (!h->verified && *session)
            fail_foreign(f, h, "the parent's is another");
        else if (!h->verified && !strcmp(status, "failed"))
            fail_foreign(f, h, text_of(t, "error"));
    }
}
