/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * promote.c - a child of a fork takes its parent's place: which child, its command line, its disks, its socket
 */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ask.h"
#include "autojson.h"
#include "move.h"
#include "promote.h"
#include "ps.h"
#include "rundir.h"
#include "starter.h"

#define BACK_LIMIT_MS 10000
#define BACK_TURN_MS 50
#define ASK_LIMIT_MS 10000
#define END_LIMIT_MS 3000

/* --- which child --- */

static bool is_meant(const json_t *fork, const json_t *vm, const char *child)
{
    FF_AUTO_FREE char *name = xprintf("%s.%d", text_of(fork, "id"), (int)json_integer_value(json_object_get(vm, "number")));

    return !strcmp(child, name) || !strcmp(child, text_of(vm, "qmp"));
}

/* FORK/NAME: of two templates that never ran the device state may be the same. NULL: an older agent's; to be freed */
static char *image_text(const json_t *fork)
{
    return *text_of(fork, "image_name") ? xprintf("%s/%s", text_of(fork, "id"), text_of(fork, "image_name")) : NULL;
}

static int take_child(struct promote *p, const json_t *fork, const json_t *vm, const char *parent, struct ff_error *why)
{
    p->number = (unsigned)json_integer_value(json_object_get(vm, "number"));
    p->child = xprintf("%s.%u", text_of(fork, "id"), p->number);
    if (!strcmp(text_of(fork, "image"), "none"))
        return ff_error_set(why, EINVAL, "%s: a guest that has moved here, and no child of a fork", p->child);
    if (rundir_look(vm, "pid") != PROCESS_ALIVE)
        return ff_error_set(why, ESRCH, "%s: it has ended, or that cannot be seen from here", p->child);
    p->child_pid = (pid_t)json_integer_value(json_object_get(vm, "pid"));
    p->child_qmp = xstrdup(text_of(vm, "qmp"));
    p->parent_qmp = parent ? defaults_absolute_path(parent) : xstrdup(text_of(fork, "parent"));
    FF_AUTO_FREE char *image = image_text(fork);
    p->image = image ? xstrdup(image) : xprintf("of child %s", p->child);
    return *p->parent_qmp == '/' ? 0 : ff_error_set(why, EINVAL, "%s: its parent is %s: want a QMP socket: --parent", p->child,
                                                    p->parent_qmp);
}

int promote_find(struct promote *p, const char *base, const char *child, const char *parent, struct ff_error *why)
{
    FF_AUTO_JSON json_t *forks = ps_forks(base);
    const json_t *found = NULL, *of = NULL;
    unsigned n = 0;
    size_t i, k;
    json_t *fork, *vm;

    json_array_foreach(forks, i, fork)
        json_array_foreach(json_object_get(fork, "children"), k, vm)
            if (is_meant(fork, vm, child)) {
                found = vm;
                of = fork;
                n++;
            }
    if (!n)
        return ff_error_set(why, ENOENT, "%s: no such child on this host: 'farfork forks' lists them (%s). One of another host "
                            "is promoted from there", child, base);
    if (n > 1)
        return ff_error_set(why, ENOTUNIQ, "%s: %u children have that name: name one by its QMP socket", child, n);
    return take_child(p, of, found, parent, why);
}

void promote_free(struct promote *p)
{
    free(p->child);
    free(p->child_qmp);
    free(p->parent_qmp);
    free(p->image);
    free(p->record);
    strv_free(&p->given_up);
    strv_free(&p->overlays);
}

/* --- the parent's command line --- */

static json_t *json_of(const struct strv *files)
{
    json_t *list = json_array();

    for (size_t i = 0; i < files->n; i++)
        json_array_append_new(list, json_string(files->v[i]));
    return list;
}

/* What it has written since the fork is in these */
static json_t *written_images(const json_t *block)
{
    json_t *list = json_array(), *b;
    size_t i;

    json_array_foreach(block, i, b) {
        const json_t *in = json_object_get(b, "inserted"), *image = json_object_get(in, "image");
        if (in && json_is_false(json_object_get(in, "ro")) && json_object_get(image, "backing-image"))
            json_array_append_new(list, json_string(text_of(image, "filename")));
    }
    return list;
}

/* Who acts on its end would make a second one of it */
static int check_parent_starter(pid_t pid, struct ff_error *why)
{
    struct starter s;
    int rc = 0;

    starter_find(pid, &s);
    if (s.unit || s.who)
        rc = ff_error_set(why, EBUSY, "the parent's QEMU (pid %d) is to end, and its end may start another one, or remove what the "
                          "guest uses, by %s: see to that first", (int)pid, s.unit ? s.unit : s.who);
    starter_free(&s);
    return rc;
}

/* A child here whose memory is private views of that image, and whose agent, which has its files open, lives; 0: none */
static pid_t find_view(const char *base, const char *image)
{
    FF_AUTO_JSON json_t *forks = *image ? ps_forks(base) : json_array();
    size_t i, k;
    json_t *fork, *vm;

    json_array_foreach(forks, i, fork) {
        FF_AUTO_FREE char *own = image_text(fork);
        json_array_foreach(json_object_get(fork, "children"), k, vm)
            if (own && !strcmp(own, image) && !strcmp(text_of(fork, "image"), "complete") &&
                rundir_look(vm, "pid") == PROCESS_ALIVE && rundir_look(fork, "agent") == PROCESS_ALIVE)
                return (pid_t)json_integer_value(json_object_get(vm, "pid"));
    }
    return 0;
}

static int look_at_parent(struct session *s, json_t *o, struct ff_error *why)
{
    FF_AUTO_JSON json_t *status = NULL, *block = NULL;
    int rc = session_find_parent(s, why);

    if (!rc)
        rc = check_parent_starter(s->parent_pid, why);
    if (!rc)
        rc = qmp_command(s->qmp, "query-status", NULL, &status, why);
    if (!rc)
        rc = qmp_command(s->qmp, "query-block", NULL, &block, why);
    if (rc)
        return rc;
    json_object_set_new(o, "argv", strv_json(s->parent_argv.v));
    json_object_set_new(o, "exe", json_string(s->parent_exe));
    json_object_set_new(o, "cwd", json_string(s->parent_cwd));
    json_object_set_new(o, "anywhere", json_boolean(s->anywhere));
    json_object_set_new(o, "pid", json_integer(s->parent_pid));
    json_object_set_new(o, "start", json_integer((json_int_t)s->parent_start));
    json_object_set_new(o, "ran", json_boolean(json_is_true(json_object_get(status, "running"))));
    json_object_set_new(o, "given_up", written_images(block));
    return 0;
}

int promote_look(const char *parent, const char *base, const char *image, unsigned timeout_s, json_t **out, struct ff_error *why)
{
    static const struct session_kind kind = {.program = "farfork promote", .where = "in the parent's place", .by_hand = ""};
    const struct session_options o = {.parent_path = parent, .timeout_s = timeout_s, .quiet = true};
    struct session s = {.signals = -1};
    json_t *found = json_object();
    int rc = session_init(&s, &kind, &o, why);

    s.signals = -1;
    if (!rc)
        rc = look_at_parent(&s, found, why);
    session_free(&s);
    if (rc) {
        json_decref(found);
        return ff_error_context(why, "the parent, %s", parent);
    }
    const pid_t view = find_view(base, image);
    json_object_set_new(found, "view", json_integer(view));
    json_object_set_new(found, "view_start", json_integer(view ? (json_int_t)process_start_time(view) : 0));
    *out = found;
    return 0;
}

/* The same of a parent on another host */
static int ask_parents_host(struct move *m, const struct node *n, json_t **out, struct ff_error *why)
{
    struct promote *p = m->promote;
    char *words[] = {"promote", "--look", p->parent_qmp, "--image", p->image, NULL};
    struct asked *a = xcalloc(1, sizeof(*a));

    *a = asked_new(json_pack("{ss ss ss ss}", "host", n->host, "launcher", m->s.o.launcher, "agent", m->s.o.agent, "rundir",
                             m->s.o.rundir ? m->s.o.rundir : ""));
    asked_start(a, words);
    asked_read(a, 1, m->s.o.timeout_s * 1000ull);
    json_t *said = a->code ? NULL : asked_answer(a);
    FF_AUTO_FREE char *no = asked_why(a);
    asked_free(a, 1);
    *out = said;
    return said ? 0 : ff_error_set(why, EIO, "host %s: %s", n->host, no);
}

static int take_command_line(struct move *m, const json_t *o, struct ff_error *why)
{
    struct promote *p = m->promote;
    const json_t *w;
    size_t i;

    p->parent_pid = (pid_t)json_integer_value(json_object_get(o, "pid"));
    p->parent_start = (uint64_t)json_integer_value(json_object_get(o, "start"));
    p->parent_ran = json_is_true(json_object_get(o, "ran"));
    p->view = p->is_here ? p->child_pid : (pid_t)json_integer_value(json_object_get(o, "view"));
    p->view_start = p->is_here ? m->s.parent_start : (uint64_t)json_integer_value(json_object_get(o, "view_start"));
    if (!json_array_size(json_object_get(o, "argv")) || p->parent_pid <= 0)
        return ff_error_set(why, EPROTO, "%s: its command line is not known", p->parent_qmp);
    if (p->is_here && p->parent_pid == p->child_pid)
        return ff_error_set(why, EINVAL, "%s is the child's own", p->parent_qmp);
    if (m->s.parent_pid != p->child_pid)
        return ff_error_set(why, ESTALE, "%s: process %d answers at its socket (permitted: %d)", p->child, (int)m->s.parent_pid, (int)p->child_pid);
    json_array_foreach(json_object_get(o, "given_up"), i, w)
        strv_add(&p->given_up, "%s", json_string_value(w));
    strv_free(&m->s.parent_argv);
    strv_add_json(&m->s.parent_argv, json_object_get(o, "argv"));
    free(m->s.parent_exe);
    free(m->s.parent_cwd);
    m->s.parent_exe = xstrdup(text_of(o, "exe"));
    m->s.parent_cwd = xstrdup(text_of(o, "cwd"));
    m->s.anywhere = json_is_true(json_object_get(o, "anywhere"));
    if (!p->view)
        session_note(&m->s, "no child of this fork is on %s: all memory travels, not only what the child has written", p->host);
    return 0;
}

int promote_take_place(struct move *m, struct ff_error *why)
{
    struct promote *p = m->promote;
    const struct node *n = &m->s.hostlist.v[0];
    FF_AUTO_JSON json_t *o = NULL;

    p->is_here = hostlist_is_here(n);
    int rc = p->is_here ? promote_look(p->parent_qmp, "", "", m->s.o.timeout_s, &o, why) : ask_parents_host(m, n, &o, why);
    return rc ? rc : take_command_line(m, o, why);
}

/* --- its disks --- */

/* The command line was another QEMU's: what it has as disks is what the child has */
static int check_images_there(struct move *m, struct ff_error *why)
{
    FF_AUTO_JSON json_t *block = NULL;
    int rc = move_ask(m, "query-block", NULL, &block, why);
    FF_AUTO_JSON json_t *images = move_images(m, block, NULL);

    if (rc || json_equal(images, m->images))
        return rc;
    FF_AUTO_FREE char *has = json_dumps(images, JSON_COMPACT), *wants = json_dumps(m->images, JSON_COMPACT);
    return ff_error_set(why, ENOTSUP, "the QEMU made anew has other disks than the child: %s (permitted: %s)", has, wants);
}

int promote_keep_disks(struct move *m, struct ff_error *why)
{
    struct promote *p = m->promote;
    int rc = check_images_there(m, why);

    if (!rc && m->owner.dir)
        rc = overlay_records_read(m->owner.dir, m->owner.number, &p->overlays, why);
    if (rc || !p->overlays.n)
        return rc;
    p->record = xstrdup(m->owner.dir);
    p->number = m->owner.number;
    overlay_records_forget(p->record, p->number);
    return 0;
}

static void give_disks_back(struct move *m)
{
    struct promote *p = m->promote;
    FF_AUTO_JSON json_t *list = json_of(&p->overlays);
    struct ff_error why;

    if (p->record && overlay_records_add(p->record, p->number, list, &why))
        session_note(&m->s, "the child's overlays stay when it ends: %s", why.text);
    strv_free(&p->overlays);
}

/* --- afterwards --- */

void promote_take_numbers(struct move *m, const json_t *info)
{
    const json_t *x = json_object_get(info, "x-rdma-postcopy");

    if (x)
        m->promote->came_bytes = (uint64_t)(json_integer_value(json_object_get(x, "prefill-bytes")) +
                                            json_integer_value(json_object_get(x, "fault-bytes")));
}

/* The process that held it may have been killed before it said so. In any other state than paused it is somebody else's */
static int bring_parent_back(struct promote *p, struct ff_error *why)
{
    uint64_t end = ff_now_ms() + BACK_LIMIT_MS;
    struct qmp *q = NULL;
    bool runs = false;
    int rc = qmp_connect(p->parent_qmp, -1, ASK_LIMIT_MS, &q, why);

    for (bool told = false; !rc && !runs && ff_now_ms() < end; told = true) {
        FF_AUTO_JSON json_t *status = NULL;
        struct ff_error ignored;
        rc = qmp_command(q, "query-status", NULL, &status, why);
        runs = json_is_true(json_object_get(status, "running"));
        if (!rc && !runs && strcmp(text_of(status, "status"), "paused"))
            rc = ff_error_set(why, EBUSY, "its guest is %s", text_of(status, "status"));
        else if (!rc && !runs && !told)
            qmp_command(q, "cont", NULL, NULL, &ignored); /* what it says next counts */
        else if (!rc && !runs)
            poll(NULL, 0, BACK_TURN_MS);
    }
    qmp_free(q);
    return rc || runs ? rc : ff_error_set(why, ETIMEDOUT, "it does not run");
}

/* The process beside the new QEMU has made it so */
static void check_socket_leads(struct move *m)
{
    const char *qmp = move_child(m)->qmp, *name = m->promote->parent_qmp;
    char to[PATH_MAX] = "";

    if (m->promote->is_here && (readlink(name, to, sizeof(to) - 1) < 0 || strcmp(to, qmp)))
        session_note(&m->s, "the guest's QMP socket is %s; %s does not lead there", qmp, name);
}

static void say_given_up(struct move *m)
{
    const struct promote *p = m->promote;

    for (size_t i = 0; i < p->given_up.n; i++)
        session_note(&m->s, m->outcome != MOVE_THERE ? "%s has what the parent wrote since the fork: keep it until all of the guest's memory is there"
                            : p->committed ? "%s has what the parent wrote since the fork; the image below it may have been written since: then it "
                                             "is of no use"
                                           : "%s has what the parent wrote since the fork: nobody uses it any more; remove it if you do "
                                             "not want it", p->given_up.v[i]);
    for (size_t i = 0; i < p->overlays.n; i++)
        session_note(&m->s, "%s is a disk of the guest now: it stays when the guest ends", p->overlays.v[i]);
}

/* They are in no record any more, and whoever is left needs them */
static void say_overlays(struct move *m)
{
    const struct promote *p = m->promote;

    for (size_t i = 0; i < p->overlays.n; i++)
        session_note(&m->s, "%s is the child's disk: keep it until you know where its guest is", p->overlays.v[i]);
}

/* The QEMU that was to have the parent's place is there no more: what ran in it, if anything did, does not run */
static bool has_successor_ended(struct move *m)
{
    const pid_t pid = move_child(m)->pid;
    const uint64_t end = ff_now_ms() + END_LIMIT_MS; /* its agent may have been told so a moment ago */

    while (pid > 0 && process_start_time(pid) && ff_now_ms() < end)
        poll(NULL, 0, BACK_TURN_MS);
    return pid > 0 && process_start_time(pid) == 0;
}

void promote_over(struct move *m)
{
    struct promote *p = m->promote;
    struct ff_error why;

    if (m->outcome == MOVE_THERE || m->outcome == MOVE_FOLLOWS) {
        check_socket_leads(m);
        promote_ports(m);
        say_given_up(m);
        return;
    }
    const bool stays = m->outcome == MOVE_HERE || m->outcome == MOVE_UNTOUCHED;
    if (stays)
        give_disks_back(m);
    else
        say_overlays(m);
    if (!m->sent || !p->parent_ran) { /* nobody has stopped it */
        p->parent_is_back = true;
        return;
    }
    if (!stays && (!p->is_here || !has_successor_ended(m)))
        session_note(&m->s, "the parent's QEMU (pid %d): %s", (int)p->parent_pid,
                     !p->is_here || process_look(p->parent_pid, p->parent_start) != PROCESS_GONE
                         ? "if it is there, give it cont only once you know that the child does not run in its place" : "it has ended");
    else if (!p->is_here)
        session_note(&m->s, "the parent goes on at %s; if it is paused there, the process beside the new QEMU was killed: give it cont",
                     p->host);
    else if (process_look(p->parent_pid, p->parent_start) == PROCESS_GONE)
        session_note(&m->s, "the parent, %s, has ended: its guest runs nowhere, unless somebody else has moved it", p->parent_qmp);
    else if (bring_parent_back(p, &why))
        session_note(&m->s, "the parent, %s: %s: give it cont", p->parent_qmp, why.text);
    else
        p->parent_is_back = true;
    if (p->parent_is_back && !stays)
        session_note(&m->s, "the parent, %s, goes on", p->parent_qmp);
}

void promote_print_json(const struct move *m, int code)
{
    const struct promote *p = m->promote;
    json_t *o = move_json(m, code);

    json_object_set_new(o, "child", json_string(p->child));
    json_object_set_new(o, "replaced", json_string(p->parent_qmp));
    json_object_set_new(o, "replaced_pid", json_integer(p->parent_pid));
    json_object_set_new(o, "replaced_ended", !p->is_here || !p->parent_pid ? json_null()
                        : json_boolean(process_look(p->parent_pid, p->parent_start) == PROCESS_GONE));
    json_object_set_new(o, "image_was_there", json_boolean(p->view > 0));
    json_object_set_new(o, "came_bytes", json_integer((json_int_t)p->came_bytes));
    json_object_set_new(o, "given_up", json_of(&p->given_up));
    json_object_set_new(o, "overlays", json_of(&p->overlays));
    move_put_json(o);
}

void promote_print_text(const struct move *m, int code)
{
    const struct promote *p = m->promote;

    if (m->outcome == MOVE_THERE)
        printf("%s is the guest now, at %s: %llu KiB came\n", p->child, p->parent_qmp, (unsigned long long)p->came_bytes >> 10);
    move_print_text(m, code);
    if (code == MOVE_EXIT_HERE && p->parent_is_back)
        fprintf(stderr, "farfork promote: the child is what it was, and so is its parent\n");
}
