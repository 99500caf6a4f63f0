/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * parent_serve.c - what was frozen gets to agents: a source of libfarfork for each; see parent.h
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>

#include "autojson.h"
#include "parent_private.h"
#include "qmp_secret.h"
#include "thread.h"

#define SCHEME "rdma-postcopy:"
#define KEY_OPTION ",key=" KEY_SECRET
#define TARGETS_MAX 256u
#define COPY_MAX (32ull << 20) /* as much as ff_source_hand_over() takes of what is in no file */
#define PIECE (64u << 10)
#define SMALL_PAGE 4096u

/* --- targets --- */

static int take_agent_address(struct parent *p, struct parent_target *t, struct ff_error *why)
{
    if (strncmp(t->uri, SCHEME, strlen(SCHEME)))
        return ff_error_set(why, EINVAL, "target '%s': want rdma-postcopy:HOST:PORT, or rdma-postcopy:unix", t->uri);
    FF_AUTO_FREE char *text = xstrdup(t->uri + strlen(SCHEME));
    char *key = strstr(text, KEY_OPTION), *after = key ? key + strlen(KEY_OPTION) : NULL;

    if (key && (*after == ',' || !*after))
        memmove(key, after, strlen(after) + 1);
    else
        key = NULL;
    t->passed = !strcmp(text, "unix") || !strncmp(text, "unix,", 5);
    if (t->passed && !t->socket)
        return ff_error_set(why, EINVAL, "target '%s': want the agent's socket, too", t->uri);
    if (key && !p->key)
        return ff_error_set(why, ENOENT, "target '%s': there is no object " KEY_SECRET, t->uri);
    int rc = ff_address_parse(text, &t->address, why);
    if (!rc && key)
        rc = ff_address_set_key(t->address, p->key, KEY_TEXT_LEN, why);
    if (!rc)
        rc = ff_address_resolve(t->address, why);
    return rc ? ff_error_context(why, "target '%s'", t->uri) : 0;
}

int parent_take_targets(struct parent *p, const json_t *targets, struct ff_error *why)
{
    const size_t n = json_array_size(targets);
    int rc = 0;

    if (!n || n > TARGETS_MAX)
        return ff_error_set(why, EINVAL, "an export needs an id and 1 to %u targets", TARGETS_MAX);
    p->target = xcalloc(n, sizeof(*p->target));
    for (size_t i = 0; i < n && !rc; i++) {
        const json_t *of = json_array_get(targets, i);
        struct parent_target *t = &p->target[p->n_targets++];

        *t = (struct parent_target){.p = p, .uri = xstrdup(text_of(of, "uri")), .status = "connecting"};
        pthread_mutex_init(&t->lock, NULL);
        if (*text_of(of, "socket"))
            t->socket = xstrdup(text_of(of, "socket"));
        rc = take_agent_address(p, t, why);
    }
    return rc;
}

void parent_free_targets(struct parent *p)
{
    for (unsigned i = 0; i < p->n_targets; i++) {
        struct parent_target *t = &p->target[i];

        if (t->has_thread)
            pthread_join(t->thread, NULL);
        ff_address_free(t->address);
        pthread_mutex_destroy(&t->lock);
        free(t->uri);
        free(t->socket);
    }
    ff_group_free(p->group);
    free(p->target);
    p->target = NULL;
    p->n_targets = 0;
}

/* --- regions --- */

/* Where the file is the image it is served; nobody writes to this mapping */
static int map_image_file(struct ff_region *r, struct ff_error *why)
{
    r->host = mmap(NULL, r->len_bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, r->fd, (off_t)r->fd_offset);
    return r->host != MAP_FAILED ? 0 : ff_error_set(why, errno, "memory of %s: map its file: %s", r->name, strerror(errno));
}

static bool all_zero_bytes(const uint8_t *p, size_t n)
{
    return !p[0] && !memcmp(p, p + 1, n - 1);
}

/* Little that is in no file is copied: so the image can be handed over whole */
static int copy_block(const struct parent *p, struct ff_region *r, struct ff_error *why)
{
    FF_AUTO_FREE uint8_t *some = xcalloc(1, PIECE);
    const uint64_t from = (uintptr_t)r->host;
    uint8_t *to = mmap(NULL, r->len_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (to == MAP_FAILED)
        return ff_error_set(why, errno, "memory of %s: copy it: %s", r->name, strerror(errno));
    r->host = to;
    r->zero_fill = true;
    for (uint64_t at = 0; at < r->len_bytes; at += PIECE) {
        const size_t n = (size_t)FF_MIN(r->len_bytes - at, (uint64_t)PIECE);
        struct iovec here = {some, n}, there = {(void *)(uintptr_t)(from + at), n};

        if (process_vm_readv(freeze_pid(p->freeze), &here, 1, &there, 1, 0) != (ssize_t)n)
            return ff_error_set(why, EFAULT, "memory of %s: copy it: the process that holds it cannot be read", r->name);
        if (!all_zero_bytes(some, n))
            memcpy(to + at, some, n);
    }
    return 0;
}

static int make_regions(struct parent *p, struct ff_error *why)
{
    uint64_t rest = 0;
    bool small = true;
    int rc = 0;

    p->region = xcalloc(p->n_blocks + 1, sizeof(*p->region));
    p->is_there = xcalloc(p->n_blocks + 1, sizeof(*p->is_there));
    for (unsigned i = 0; i < p->n_blocks; i++) {
        const struct outside_block *b = &p->blocks[i];
        const struct freeze_image m = freeze_image(p->freeze, i);

        p->region[i] = (struct ff_region){.name = b->name, .host = (void *)(uintptr_t)b->hva, .len_bytes = b->len_bytes,
                                          .psize = b->psize, .fd = m.fd, .fd_offset = m.fd_offset,
                                          .zero_fill = m.fd >= 0 || m.zeros || m.view_fd >= 0,
                                          .is_private = m.view_fd >= 0, .private_fd = m.view_fd};
        rest += m.fd < 0 ? b->len_bytes : 0;
        small &= m.fd >= 0 || b->psize == SMALL_PAGE;
    }
    for (unsigned i = 0; i < p->n_blocks && !rc; i++) {
        p->is_there[i] = p->region[i].fd < 0 && (!small || rest > COPY_MAX);
        p->any_there |= p->is_there[i];
        if (!p->is_there[i])
            rc = p->region[i].fd >= 0 ? map_image_file(&p->region[i], why) : copy_block(p, &p->region[i], why);
    }
    return rc;
}

static int parent_add_regions(struct parent *p, struct ff_source *s, struct ff_error *why)
{
    int rc = 0;

    for (unsigned i = 0; i < p->n_blocks && !rc; i++)
        rc = p->is_there[i] ? ff_source_add_region_of(s, &p->region[i], freeze_pid(p->freeze), why)
                            : ff_source_add_region(s, &p->region[i], why);
    return rc;
}

uint64_t parent_lent_bytes(const struct parent *p)
{
    uint64_t bytes = 0;
    bool lends = false;

    for (unsigned i = 0; i < p->n_targets; i++)
        lends |= p->target[i].socket != NULL;
    for (unsigned i = 0; lends && i < p->n_blocks; i++)
        bytes += freeze_image(p->freeze, i).fd >= 0 ? p->blocks[i].len_bytes : 0;
    return bytes;
}

/* --- a target --- */

static void tell_agent_status(struct parent_target *t, const char *status)
{
    pthread_mutex_lock(&t->lock);
    t->status = status;
    pthread_mutex_unlock(&t->lock);
}

/* Says which image is ours: before the agent can have all of it */
static void tell_session(struct parent_target *t, struct ff_source *s)
{
    char session[FF_SESSION_TEXT];

    ff_source_session(s, session);
    pthread_mutex_lock(&t->lock);
    memcpy(t->session, session, sizeof(session));
    pthread_mutex_unlock(&t->lock);
}

/* The agent has been let go: serve it until it has every page, over another link when one breaks, or until it says that
 * it ends */
static int serve_agent_on(struct parent_target *t, struct ff_source *s, int rc, struct ff_error *why)
{
    const int reconnect_ms = ff_address_reconnect_ms(t->address);

    for (;;) {
        if (!rc)
            rc = ff_source_wait_running(s, why);
        if (!rc)
            rc = ff_source_wait_done(s, why);
        if (!rc || rc == -ECANCELED || rc == -EREMOTEIO || t->passed || !reconnect_ms)
            return rc;
        tell_agent_status(t, "postcopy-paused");
        rc = ff_source_resume(s, NULL, reconnect_ms, why);
        if (rc)
            return rc;
        tell_agent_status(t, "active");
    }
}

static int serve_link(struct parent_target *t, struct ff_source *s, struct ff_error *why)
{
    const struct parent *p = t->p;
    int rc = ff_source_connect(s, p->config, why);

    if (!rc) {
        tell_session(t, s);
        tell_agent_status(t, "active");
        rc = ff_source_publish(s, why);
    }
    if (!rc)
        rc = ff_source_wait_watched(s, why);
    if (!rc)
        rc = ff_source_send_state(s, p->state, p->state_len, NULL, 0, why);
    if (!rc)
        rc = ff_source_wait_ready(s, why);
    if (rc)
        return rc;
    rc = ff_source_go(s, why);
    return rc == -ETIME ? rc : serve_agent_on(t, s, rc, why);
}

static int serve_one_source(struct parent_target *t, struct ff_source *s, struct ff_error *why)
{
    struct parent *p = t->p;
    int rc = parent_add_regions(p, s, why);

    if (rc)
        return rc;
    if (t->socket && !p->any_there) {
        rc = ff_source_hand_over(s, t->socket, p->config, p->state, p->state_len, why);
        if (!rc) {
            tell_session(t, s);
            return ff_source_let_run(s, why);
        }
    }
    /* whatever else was wrong: by a link it works, or the agent hears */
    rc = t->socket && (t->passed || rc == -EFBIG || p->any_there) ? ff_source_lend(s, t->socket, why) : 0;
    return rc ? rc : serve_link(t, s, why);
}

static void take_agent_progress(struct parent_target *t)
{
    struct ff_stats st;

    if (!t->source)
        return;
    ff_source_stats(t->source, &st);
    t->transferred = st.bytes_prefill + st.bytes_fault + st.bytes_duplicated;
}

static void *target_main(void *opaque)
{
    struct parent_target *t = opaque;
    struct ff_error why = {0};
    struct ff_source *s = NULL;
    int rc = ff_source_new(t->address, &s, &why);

    pthread_mutex_lock(&t->lock);
    t->source = s;
    if (t->canceled && s)
        ff_source_cancel(s);
    pthread_mutex_unlock(&t->lock);
    if (!rc && t->group)
        ff_source_use_group(s, t->group);
    if (!rc)
        rc = serve_one_source(t, s, &why);
    pthread_mutex_lock(&t->lock);
    take_agent_progress(t);
    t->source = NULL;
    pthread_mutex_unlock(&t->lock);
    ff_source_free(s); /* the agent has the reason or all it needs when this is to be seen */
    pthread_mutex_lock(&t->lock);
    t->why = why;
    t->status = rc ? "failed" : "completed";
    pthread_mutex_unlock(&t->lock);
    atomic_fetch_add(&t->p->n_done, 1);
    return NULL;
}

/* Of the targets on other hosts; NULL: multicast= is not in their addresses */
static struct ff_group *new_parent_group(const struct parent *p)
{
    const struct parent_target *remote = NULL;
    struct ff_group *g;
    unsigned n = 0;

    for (unsigned i = 0; i < p->n_targets; i++)
        if (!p->target[i].socket) {
            remote = &p->target[i];
            n++;
        }
    return remote && !ff_group_new(remote->address, n, &g, NULL) ? g : NULL;
}

int parent_serve(struct parent *p, struct ff_error *why)
{
    int rc = make_regions(p, why);

    if (rc)
        return rc;
    if (!p->any_there)
        freeze_drop(p->freeze);
    p->group = new_parent_group(p);
    for (unsigned i = 0; i < p->n_targets; i++) {
        struct parent_target *t = &p->target[i];

        t->group = t->socket ? NULL : p->group;
        t->has_thread = !ff_thread_start(&t->thread, target_main, t, "serve", why);
        if (t->has_thread)
            continue;
        t->why = *why;
        t->status = "failed";
        atomic_fetch_add(&p->n_done, 1);
    }
    return 0;
}

void parent_cancel(struct parent *p)
{
    for (unsigned i = 0; i < p->n_targets; i++) {
        struct parent_target *t = &p->target[i];

        pthread_mutex_lock(&t->lock);
        t->canceled = true;
        if (t->source)
            ff_source_cancel(t->source);
        pthread_mutex_unlock(&t->lock);
    }
}

json_t *parent_targets_info(struct parent *p)
{
    json_t *list = json_array();

    for (unsigned i = 0; i < p->n_targets; i++) {
        struct parent_target *t = &p->target[i];

        pthread_mutex_lock(&t->lock);
        take_agent_progress(t);
        json_t *o = json_pack("{ss ss sI}", "uri", t->uri, "status", t->status, "transferred-bytes",
                              (json_int_t)t->transferred);
        if (!strcmp(t->status, "failed"))
            json_object_set_new(o, "error", json_string(t->why.text));
        if (t->socket)
            json_object_set_new(o, "socket", json_string(t->socket));
        if (*t->session)
            json_object_set_new(o, "session", json_string(t->session));
        pthread_mutex_unlock(&t->lock);
        json_array_append_new(list, o);
    }
    return list;
}
