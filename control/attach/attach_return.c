/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * attach_return.c - a guest that went by attaching, with visit=on, comes back into a QEMU that is made anew
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      only what the guest wrote elsewhere travels: all else is here still, in the QEMU that it went from, whose
 *              threads are held since its GO.
 *
 * Picture      here                                                    there
 *              source A -- QEMU, held ===== the visit's link ========= destination B -- QEMU, runs
 *                 | memory, by process_vm_readv                           | page tables: what was written
 *              destination D -- QEMU, new <==== this return's link ===== source C -- the same QEMU
 *
 *              D's --return names A's monitor, C's names B's. That monitor answers with the session of the way out and, from
 *              A, with the addresses of memory. C and D compare sessions when they connect, so that another guest's memory,
 *              or that of another visit, is refused.
 *              D has precopy=1: its pre-copy iteration reads A's memory (ff_dest_on_pass()); C sends the DIRTY pages.
 *              When D has every page it tells A, which ends its QEMU. Then C receives DONE, tells B, and their QEMU is ended.
 * Invariants   1. A's memory does not change from its GO on: its threads are held.
 *              2. Each page that was written there is DIRTY; an unwritten one may be, too. Pages land write-protected
 *                 (ff_dest_elsewhere()), and B's userfaultfd stays until that QEMU ends.
 *              3. Until C's GO the guest stays there, and B fetches missing pages from A. B does not know of C.
 *              4. Before the new QEMU starts, the held one closes its sockets and its ends of network devices
 *                 (x-farfork-let-go): two QEMUs of one command line cannot both have them.
 *              A child of a fork that takes its parent's place (--image, --view) is the same, without a visit: D reads the files
 *              of which the child's memory is private views, and C's DIRTY pages are those that are no page of the file.
 * Limits       Refused: memory of a named file, since both QEMUs would map the same one; huge pages of hugetlbfs, which an
 *              iteration cannot discard; free-page-reporting=on (discards.h). This host needs room for the guest's memory
 *              a second time until D has every page (check_room()).
 */
#include <errno.h>
#include <stdio.h>
#include <sys/uio.h>
#include <unistd.h>

#include "attach_private.h"
#include "autojson.h"
#include "failpoint.h"
#include "rundir.h"
#include "farfork-return.h"
#include "foreign.h"

#define ASK "x-farfork-visit"
#define TELL "x-farfork-returned"
#define LIMIT_MS 10000

struct attach_earlier {
    char session[FF_SESSION_TEXT];
    pid_t pid;
    struct outside_block *blocks; /* as this side's main memory has them */
    struct outside_memory *file;
    unsigned n;
    struct ff_foreign *memory;
};

/* --- who moved it before answers --- */

int attach_give_up_command(struct attach *a, struct ff_error *why)
{
    int rc = a->is_source && a->source && a->stage == ATTACH_RUNS ? ff_source_give_up(a->source, why)
                                                                  : ff_error_set(why, EINVAL, "its guest visits nobody");
    a->gave_up |= !rc;
    return rc;
}

int attach_visit_command(struct attach *a, json_t **result, struct ff_error *why)
{
    char session[FF_SESSION_TEXT] = "";

    if (a->is_source && ff_address_fallback(a->address) && !a->gave_up) /* it could run here, and where it is home */
        return ff_error_set(why, EBUSY, "its guest may be taken back: give x-farfork-give-up first");
    json_t *blocks = json_array();

    if (a->stage != ATTACH_RUNS || (a->dest && !ff_address_visit(a->address))) {
        json_decref(blocks);
        return ff_error_set(why, EINVAL, "its guest visits nobody: it does not run elsewhere, or came to stay");
    }
    if (a->is_source)
        ff_source_session(a->source, session);
    else
        ff_dest_session_text(a->dest, session);
    for (unsigned i = 0; i < a->n_main; i++)
        json_array_append_new(blocks, json_pack("{ss sI sI si}", "name", a->main[i].name, "hva", (json_int_t)a->main[i].hva,
                                                "bytes", (json_int_t)a->main[i].len_bytes, "page", (int)a->main[i].psize));
    *result = json_pack("{ss si so}", "session", session, "pid", (int)a->pid, "blocks", blocks);
    return 0;
}

int attach_returned_command(struct attach *a, const json_t *arguments, struct ff_error *why)
{
    FF_AUTO_JSON json_t *is = NULL;
    int rc = attach_visit_command(a, &is, why);

    if (!rc && strcmp(text_of(is, "session"), text_of(arguments, "session")))
        rc = ff_error_set(why, EINVAL, "this guest went by session %s, not %s", text_of(is, "session"),
                          text_of(arguments, "session"));
    if (rc)
        return rc;
    a->returned = true;
    if (a->source)
        ff_source_cancel(a->source);
    if (a->dest)
        ff_dest_cancel(a->dest);
    pthread_cond_broadcast(&a->changed);
    return 0;
}

/* A QEMU of the same command line is about to start here. The one that is held never runs again */
int attach_let_go_command(struct attach *a, struct ff_error *why)
{
    FF_AUTO_JSON json_t *ignored = NULL;
    int rc = attach_visit_command(a, &ignored, why);

    if (!rc && !a->hold)
        rc = ff_error_set(why, EINVAL, "no QEMU is held");
    return rc ? rc : hold_let_go_of_names(a->hold, why);
}

bool attach_has_returned(struct attach *a)
{
    pthread_mutex_lock(&a->lock);
    bool has = a->returned;
    pthread_mutex_unlock(&a->lock);
    return has;
}

/* --- asked for, before anything else --- */

static int ask_who_moved(struct attach *a, const char *command, json_t *arguments, json_t **result, struct ff_error *err)
{
    struct qmp *q = NULL;
    int rc = qmp_connect(a->o->returns, a->stop_fd, LIMIT_MS, &q, err);

    if (rc)
        json_decref(arguments);
    else
        rc = qmp_command(q, command, arguments, result, err);
    qmp_free(q);
    return rc ? ff_error_context(err, "--return %s", a->o->returns) : 0;
}

static const json_t *block_named(const json_t *blocks, const struct outside_block *b)
{
    const json_t *is = json_find(blocks, "name", b->name);

    return is && (uint64_t)json_integer_value(json_object_get(is, "bytes")) == b->len_bytes &&
                   (uint32_t)json_integer_value(json_object_get(is, "page")) == b->psize
               ? is : NULL;
}

static int open_block(struct attach_earlier *e, unsigned i, const struct outside_block *mine, const json_t *blocks,
                      struct ff_error *err)
{
    const json_t *is = block_named(blocks, mine);

    e->file[i].fd = -1;
    if (!is)
        return ff_error_set(err, EINVAL, "block %s: the QEMU that the guest went from has none of that name, length and page "
                            "size", mine->name);
    e->blocks[i] = *mine;
    e->blocks[i].hva = (uint64_t)json_integer_value(json_object_get(is, "hva"));
    int rc = outside_open(e->pid, &e->blocks[i], false, &e->file[i], err);
    if (!rc && e->file[i].kind == OUTSIDE_FILE)
        return ff_error_set(err, ENOTSUP, "block %s: memory of a named file: the QEMU made anew would have it, too", mine->name);
    if (!rc && e->file[i].is_shared && e->file[i].fd < 0)
        rc = ff_error_set(err, EACCES, "block %s: its file cannot be opened", mine->name);
    return rc;
}

/* Both have all of it for a while; without room the kernel would end one of them, and the guest with it */
static int check_room(const struct attach_earlier *e, bool views, struct ff_error *err)
{
    long long has_kib = outside_number(e->pid, views ? "RssAnon:" : "VmRSS:");
    unsigned long long free_kib = 0;
    char line[128];
    FILE *info = fopen("/proc/meminfo", "re");

    for (unsigned i = 0; views && has_kib >= 0 && i < e->n; i++) { /* that process maps what it touched alone */
        struct stat st;
        if (e->blocks[i].psize > 4096) /* of a pool of its own */
            continue;
        has_kib = fstat(e->file[i].fd, &st) ? -1 : has_kib + (long long)st.st_blocks / 2;
    }
    while (info && !free_kib && fgets(line, sizeof(line), info))
        if (sscanf(line, "MemAvailable: %llu", &free_kib) != 1)
            free_kib = 0;
    if (info)
        fclose(info);
    if (has_kib >= 0 && free_kib > (unsigned long long)has_kib && !ff_failpoint("attach.room"))
        return 0;
    return ff_error_set(err, ENOMEM, "memory of the guest is here twice until all has come: %lld MiB, and %llu MiB are free: free "
                        "memory of this host, and try again", has_kib >> 10, free_kib >> 10);
}

/* The image's file; an agent has it open for its children */
static int open_view(struct attach_earlier *e, unsigned i, const struct outside_block *mine, struct ff_error *err)
{
    e->file[i].fd = -1;
    e->blocks[i] = *mine;
    e->blocks[i].hva = 0;
    int rc = outside_locate(e->pid, &e->blocks[i], err);
    if (!rc)
        rc = outside_open_view(e->pid, outside_number(e->pid, "PPid:"), &e->blocks[i], &e->file[i], err);
    e->file[i].is_shared = true; /* as it is read here */
    return rc;
}

static int open_views(struct attach *a, struct attach_earlier *e, struct ff_error *err)
{
    int rc = outside_may(a->o->view, true, err);

    e->pid = a->o->view;
    e->blocks = calloc(a->n_main + 1, sizeof(*e->blocks));
    e->file = calloc(a->n_main + 1, sizeof(*e->file));
    if (!e->blocks || !e->file)
        return ff_error_set(err, ENOMEM, "attach: out of memory");
    for (; e->n < a->n_main && !rc; e->n++)
        rc = open_view(e, e->n, &a->main[e->n], err);
    if (!rc && process_start_time(e->pid) != a->o->view_start)
        rc = ff_error_set(err, ESTALE, "another process has that number by now");
    return rc ? ff_error_context(err, "the image, of process %d", (int)e->pid) : 0;
}

int attach_earlier_open(struct attach *a, struct ff_error *err)
{
    FF_AUTO_JSON json_t *is = NULL;

    if (!a->o->returns && !a->o->view)
        return 0;
    struct attach_earlier *e = a->earlier = calloc(1, sizeof(*e));
    if (!e)
        return ff_error_set(err, ENOMEM, "attach: out of memory");
    if (a->o->view)
        return open_views(a, e, err);
    int rc = ask_who_moved(a, ASK, NULL, &is, err);
    if (rc)
        return rc;
    snprintf(e->session, sizeof(e->session), "%s", text_of(is, "session"));
    e->pid = (pid_t)json_integer_value(json_object_get(is, "pid"));
    if (!*e->session || e->pid <= 0)
        return ff_error_set(err, EPROTO, "--return %s: " ASK ": no session, or no pid", a->o->returns);
    if (a->is_source)
        return e->pid == a->pid ? 0
                   : ff_error_set(err, EINVAL, "--return %s: it has moved a guest to process %d, not to %d", a->o->returns,
                                  (int)e->pid, (int)a->pid);
    e->blocks = calloc(a->n_main + 1, sizeof(*e->blocks));
    e->file = calloc(a->n_main + 1, sizeof(*e->file));
    if (!e->blocks || !e->file)
        return ff_error_set(err, ENOMEM, "attach: out of memory");
    rc = ff_foreign_open(e->pid, &e->memory, err);
    for (; e->n < a->n_main && !rc; e->n++)
        rc = open_block(e, e->n, &a->main[e->n], json_object_get(is, "blocks"), err);
    return rc;
}

void attach_earlier_close(struct attach *a)
{
    struct attach_earlier *e = a->earlier;

    for (unsigned i = 0; e && i < e->n; i++)
        ff_close_fd(&e->file[i].fd);
    if (e && e->memory)
        ff_foreign_unref(e->memory);
    if (e) {
        free(e->blocks);
        free(e->file);
    }
    free(e);
    a->earlier = NULL;
}

void attach_config(const struct attach *a, char out[ATTACH_CONFIG_MAX])
{
    const char *image = a->o->image;

    snprintf(out, ATTACH_CONFIG_MAX, ATTACH_CONFIG "%s%s", image ? ", image " : a->earlier ? ", return of " : "",
             image ? image : a->earlier ? a->earlier->session : "");
}

/* --- its memory --- */

static int read_file(const struct attach_earlier *e, unsigned i, uint64_t offset, uint32_t len, uint8_t *into,
                     struct ff_error *err)
{
    for (uint32_t done = 0; done < len;) {
        ssize_t n = pread(e->file[i].fd, into + done, len - done, (off_t)(e->file[i].fd_offset + offset + done));

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return ff_error_set(err, n ? errno : EIO, "block %s: read its file: %s", e->blocks[i].name,
                                n ? strerror(errno) : "it is too short");
        done += (uint32_t)n;
    }
    return 0;
}

static int bring(void *opaque, uint32_t region, uint64_t offset, uint32_t len, uint8_t *into, uint8_t *zero,
                 struct ff_error *err)
{
    struct attach *a = opaque;
    const struct attach_earlier *e = a->earlier;
    const struct ff_foreign_rest rest = {.zeros = !e->file[region].has_file, .file_fd = -1, .psize = e->blocks[region].psize};
    uint8_t poison[FF_FOREIGN_GRANULES / 8] = {0};
    int rc = e->file[region].is_shared
                 ? read_file(e, region, offset, len, into, err)
                 : ff_foreign_read(e->memory, &rest, e->blocks[region].hva + offset, len, rest.psize, zero, poison, into, err);

    for (size_t i = 0; i < sizeof(poison) && !rc; i++)
        if (poison[i])
            rc = ff_error_set(err, EIO, "block %s: a page that cannot be read (poisoned memory)", e->blocks[region].name);
    return rc ? ff_error_context(err, "memory of the QEMU that the guest went from") : 0;
}

int attach_earlier_use(struct attach *a, struct ff_error *err)
{
    if (!a->earlier)
        return 0;
    if (!ff_address_precopy(a->address))
        return ff_error_set(err, EINVAL, "want precopy=1: what is here already comes before the guest stops there");
    ff_dest_on_pass(a->dest, bring, a);
    return check_room(a->earlier, a->o->view > 0, err);
}

/* The guest is here, with everything; or C's side, to B. Who does not hear it holds a QEMU that nobody needs */
void attach_tell_returned(struct attach *a)
{
    struct ff_error why = {0};

    if (a->o->returns && a->earlier && ask_who_moved(a, TELL, json_pack("{ss}", "session", a->earlier->session), NULL, &why))
        attach_say_why(a, "unconfirmed", &why);
}
