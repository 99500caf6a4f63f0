/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * fork_verify.c - do agents have the parent's image, and nobody else's?
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      an agent on another host listens on a port, and takes the image of the first that
 *              comes. It makes a number for it, the session, which only that source learns. So when
 *              agent and parent name one session, the image is the parent's.
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

/* What a line of x-query-ramblock ends with: largest size, address, ro or rw; 0: none such */
static uint64_t block_bytes(const char *line, size_t len)
{
    AUTO_FREE char *text = xprintf("%.*s", (int)len, line);
    char *last[3] = {"", "", ""}, *save = NULL, *end;

    for (char *w = strtok_r(text, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
        last[0] = last[1];
        last[1] = last[2];
        last[2] = w;
    }
    uint64_t bytes = strtoull(last[0], &end, 16);
    return !strncmp(last[0], "0x", 2) && !*end ? bytes : 0;
}

int clone_ask_memory(struct clone *c, struct why *why)
{
    AUTO_JSON json_t *answer = NULL;

    int rc = qmp_command(c->qmp, "x-query-ramblock", NULL, &answer, why);
    if (rc) /* a QEMU that refuses that: clone_check_parent() says what it is */
        return rc == -EREMOTEIO ? 0 : rc;
    for (const char *line = text_of(answer, "human-readable-text"); *line;) {
        size_t len = strcspn(line, "\n");
        c->memory_bytes += block_bytes(line, len);
        line += len + (line[len] == '\n');
    }
    return 0;
}

const json_t *clone_find_named(const json_t *list, const char *key, const char *name)
{
    size_t i;
    json_t *item;

    json_array_foreach(list, i, item)
        if (!strcmp(text_of(item, key), name))
            return item;
    return NULL;
}

const json_t *clone_find_target(const struct clone *c, const json_t *exports, const struct host *h)
{
    const json_t *e = clone_find_named(exports, "id", c->o->id);
    const json_t *targets = json_object_get(e, "targets");
    AUTO_FREE char *uri = clone_target_of(c, h);

    return h->here ? clone_find_named(targets, "socket", h->socket)
                   : clone_find_named(targets, "uri", uri);
}

static bool is_open(const struct clone *c, const struct host *h)
{
    return h->session && !h->verified && h->state != HOST_FAILED && !c->parent_silent;
}

bool clone_images_verified(const struct clone *c)
{
    for (size_t i = 0; i < c->n_hosts; i++)
        if (is_open(c, &c->hosts[i]))
            return false;
    return true;
}

static void fail_foreign(struct clone *c, struct host *h, const char *what)
{
    h->foreign = true;
    host_fail(c, h, "the image that its agent was given is not the parent's: somebody else reached "
                    "the agent first, and nothing of that host can be trusted (%s)", what);
    for (size_t k = 0; k < c->n_children; k++) {
        struct child *child = &c->children[k];
        if (&c->hosts[child->host] == h)
            child_fail(child, "host %s: %s", h->node->host, h->error);
    }
}

void clone_verify_images(struct clone *c)
{
    AUTO_JSON json_t *all = NULL;
    struct why why;

    for (size_t i = 0; c->parent_silent && i < c->n_hosts; i++) {
        struct host *h = &c->hosts[i];
        if (h->session && !h->verified && !h->here) /* here its socket has checked who gave it */
            words_add(&c->notes, "host %s: the parent does not answer: it is not known whether the "
                                 "image there is its own", h->node->host);
        h->verified |= h->session != NULL;
    }
    if (!c->exported || clone_images_verified(c))
        return;
    qmp_limit(c->qmp, ASK_LIMIT_MS);
    if (qmp_command(c->qmp, "query-x-farfork-exports", NULL, &all, &why))
        return; /* it may be busy, or end */
    for (size_t i = 0; i < c->n_hosts; i++) {
        struct host *h = &c->hosts[i];
        const json_t *t = is_open(c, h) ? clone_find_target(c, all, h) : NULL;
        const char *session = text_of(t, "session"), *status = text_of(t, "status");
        if (!t)
            continue;
        h->verified = *session && !strcmp(session, h->session);
        if (!h->verified && *session)
            fail_foreign(c, h, "the parent's is another");
        else if (!h->verified && !strcmp(status, "failed"))
            fail_foreign(c, h, text_of(t, "error"));
    }
}
