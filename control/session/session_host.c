/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * session_host.c - an agent on a host: start it through the launcher, talk to it, end it
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "fork.h"
#include "launcher.h"

#define WRITE_LIMIT_MS 10000

int host_resolve(struct host *h, struct why *why)
{
    const char *name = h->here && !h->node->address_given ? "127.0.0.1" : h->node->address;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list;
    char text[NI_MAXHOST];
    int rc = getaddrinfo(name, NULL, &hints, &list);

    if (rc)
        return refuse(why, EHOSTUNREACH, "no address for \"%s\": %s; name one: %s=ADDRESS", name,
                      gai_strerror(rc), h->node->host);
    rc = getnameinfo(list->ai_addr, list->ai_addrlen, text, sizeof(text), NULL, 0, NI_NUMERICHOST);
    if (!rc)
        h->address = xprintf(list->ai_family == AF_INET6 ? "[%s]" : "%s", text);
    freeaddrinfo(list);
    return rc ? refuse(why, EHOSTUNREACH, "no address for \"%s\"", name) : 0;
}

static size_t children_on(const struct clone *c, const struct host *h)
{
    size_t n = 0;

    for (size_t k = 0; k < c->n_children; k++)
        n += &c->hosts[c->children[k].host] == h;
    return n;
}

/* The command line of the agent */
static void agent_argv(const struct clone *c, const struct host *h, struct words *w)
{
    const struct clone_options *o = c->o;

    words_add(w, "%s", o->agent);
    words_add(w, "agent");
    if (o->move) {
        words_add(w, "--timeout");
        words_add(w, "%u", o->timeout_s);
    } else {
        AUTO_FREE char *at = h->here ? xstrdup("unix") : xprintf("%s:0", h->address);
        words_add(w, "--listen");
        words_add(w, "%s%s%s", at, o->link_options ? "," : "",
                  o->link_options ? o->link_options : "");
        words_add(w, "--memory");
        words_add(w, "%llu", (unsigned long long)c->memory_bytes);
    }
    /* one alone has nobody to share with; a script looks at its arguments, perhaps */
    if (!o->move && !o->qemu && children_on(c, h) > 1) {
        words_add(w, "--fork-server");
        words_add(w, "%s", c->parent_exe);
    }
    words_add(w, "--children");
    words_add(w, "%zu", children_on(c, h));
    words_add(w, "--id");
    words_add(w, "%s", o->id);
    words_add(w, "--node");
    words_add(w, "%s", h->name);
    words_add(w, "--parent");
    words_add(w, "%s", o->parent_path);
    if (o->rundir) {
        words_add(w, "--rundir");
        words_add(w, "%s", o->rundir);
    }
}

int host_launch(struct clone *c, struct host *h, struct why *why)
{
    struct words w = {0};

    agent_argv(c, h, &w);
    AUTO_FREE char *line = h->here ? NULL : launch_line(c->o->launcher, h->node->host, w.v);
    int rc = remote_start(&h->run, w.v, line, why);
    words_free(&w);
    return rc;
}

void host_send(struct host *h, json_t *command)
{
    if (h->run.in >= 0 && lines_write_json(h->run.in, command, WRITE_LIMIT_MS))
        remote_close_input(&h->run); /* its end is heard on the other pipe */
    json_decref(command);
}

void host_fail(struct clone *c, struct host *h, const char *fmt, ...)
{
    struct why w;
    va_list ap;

    if (h->state == HOST_FAILED)
        return;
    va_start(ap, fmt);
    vsnprintf(w.text, sizeof(w.text), fmt, ap);
    va_end(ap);
    h->state = HOST_FAILED;
    h->error = xstrdup(w.text);
    for (size_t i = 0; i < c->n_children; i++)
        if (&c->hosts[c->children[i].host] == h && c->children[i].state != CHILD_COMPLETE &&
            c->children[i].state != CHILD_ENDED)
            child_fail(&c->children[i], "host %s: %s", h->node->host, w.text);
}

/* The launcher has ended, and with it the agent or the way to it */
static void ended(struct clone *c, struct host *h)
{
    int status;
    bool known = remote_ended(&h->run, &status);

    if (h->let_go)
        return;
    const char *words = h->run.words ? h->run.words : "no message";
    if (known && WIFEXITED(status))
        host_fail(c, h, "the agent there ended with exit code %d: %s", WEXITSTATUS(status), words);
    else
        host_fail(c, h, "the agent there ended: %s", words);
}

void host_hear(struct clone *c, struct host *h)
{
    char *line;

    if (h->run.out < 0) {
        remote_hear(&h->run);
        return;
    }
    bool over = remote_hear(&h->run);
    while ((line = lines_next(&h->run.out_lines))) {
        json_t *e = json_loads(line, 0, NULL);
        if (e)
            clone_event(c, h, e);
        else if (*line) /* a login shell that greets, a launcher that complains */
            remote_words(&h->run, line);
        json_decref(e);
    }
    if (over)
        ended(c, h);
}

void host_close_input(struct host *h)
{
    remote_close_input(&h->run);
}

void host_close(struct host *h, int limit_ms)
{
    h->ended |= remote_end(&h->run, limit_ms) && h->ending;
}
