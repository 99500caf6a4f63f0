/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * promote.c - a child of a fork takes its parent's place: which child, its command line, its disks, its socket
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "autojson.h"
#include "move.h"
#include "promote.h"
#include "ps.h"
#include "rundir.h"
#include "starter.h"

#define BACK_LIMIT_MS 10000
#define BACK_TURN_MS 50
#define ASK_LIMIT_MS 10000

/* --- which child --- */

static bool is_meant(const json_t *fork, const json_t *vm, const char *child)
{
    FF_AUTO_FREE char *name = xprintf("%s.%d", text_of(fork, "id"), (int)json_integer_value(json_object_get(vm, "number")));

    return !strcmp(child, name) || !strcmp(child, text_of(vm, "qmp"));
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
    p->image = xprintf("%.48s of %d", p->child, (int)json_integer_value(json_object_get(fork, "agent")));
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
        return ff_error_set(why, ENOENT, "%s: no such child on this host: 'farfork forks' lists them (%s)", child, base);
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

/* What it has written since the fork is in these */
static void note_given_up(struct promote *p, const json_t *block)
{
    size_t i;
    json_t *b;

    json_array_foreach(block, i, b) {
        const json_t *in = json_object_get(b, "inserted"), *image = json_object_get(in, "image");
        if (in && json_is_false(json_object_get(in, "ro")) && json_object_get(image, "backing-image"))
            strv_add(&p->given_up, "%s", text_of(image, "filename"));
    }
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

static int look_at_parent(struct promote *p, struct session *s, struct ff_error *why)
{
    FF_AUTO_JSON json_t *status = NULL, *block = NULL;
    int rc = session_find_parent(s, why);

    if (!rc && s->parent_pid == p->child_pid)
        rc = ff_error_set(why, EINVAL, "%s is the child's own", p->parent_qmp);
    if (!rc)
        rc = check_parent_starter(s->parent_pid, why);
    if (!rc)
        rc = qmp_command(s->qmp, "query-status", NULL, &status, why);
    if (!rc)
        rc = qmp_command(s->qmp, "query-block", NULL, &block, why);
    if (rc)
        return rc;
    note_given_up(p, block);
    p->parent_pid = s->parent_pid;
    p->parent_start = s->parent_start;
    p->parent_ran = json_is_true(json_object_get(status, "running"));
    return 0;
}

int promote_take_place(struct move *m, struct ff_error *why)
{
    struct promote *p = m->promote;
    struct session_options o = {.parent_path = p->parent_qmp, .id = m->s.o.id, .timeout_s = m->s.o.timeout_s, .quiet = true};
    struct session s = {.signals = -1};
    int rc = session_init(&s, m->s.kind, &o, why);

    s.signals = m->s.signals;
    if (!rc)
        rc = look_at_parent(p, &s, why);
    if (!rc) {
        strv_free(&m->s.parent_argv);
        free(m->s.parent_exe);
        free(m->s.parent_cwd);
        m->s.parent_argv = s.parent_argv;
        m->s.parent_exe = s.parent_exe;
        m->s.parent_cwd = s.parent_cwd;
        m->s.anywhere = s.anywhere;
        s.parent_argv = (struct strv){0};
        s.parent_exe = s.parent_cwd = NULL;
    }
    s.signals = -1;
    session_free(&s);
    return rc ? ff_error_context(why, "the parent, %s", p->parent_qmp) : 0;
}

/* --- its disks --- */

static json_t *json_of(const struct strv *files)
{
    json_t *list = json_array();

    for (size_t i = 0; i < files->n; i++)
        json_array_append_new(list, json_string(files->v[i]));
    return list;
}

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

/* The process that held it may have been killed before it said so */
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
        if (!rc && !runs && !told)
            qmp_command(q, "cont", NULL, NULL, &ignored); /* what it says next counts */
        else if (!rc && !runs)
            poll(NULL, 0, BACK_TURN_MS);
    }
    qmp_free(q);
    return rc || runs ? rc : ff_error_set(why, ETIMEDOUT, "it does not run");
}

static void lead_to_guest(struct move *m)
{
    const char *qmp = move_child(m)->qmp, *name = m->promote->parent_qmp;
    FF_AUTO_FREE char *made = xprintf("%s.%d", name, (int)getpid());

    if (symlink(qmp, made) || rename(made, name)) {
        session_note(&m->s, "the guest's QMP socket is %s; %s could not be made to lead there: %s", qmp, name, strerror(errno));
        unlink(made);
    }
}

static void say_given_up(struct move *m)
{
    const struct promote *p = m->promote;

    for (size_t i = 0; i < p->given_up.n; i++)
        session_note(&m->s, "%s has what the parent wrote since the fork: nobody uses it any more; remove it if you do not want it",
                     p->given_up.v[i]);
    for (size_t i = 0; i < p->overlays.n; i++)
        session_note(&m->s, "%s is a disk of the guest now: it stays when the guest ends", p->overlays.v[i]);
}

void promote_over(struct move *m)
{
    struct promote *p = m->promote;
    struct ff_error why;

    if (m->outcome == MOVE_THERE || m->outcome == MOVE_FOLLOWS) {
        lead_to_guest(m);
        promote_ports(m);
        say_given_up(m);
        return;
    }
    if (m->outcome != MOVE_HERE && m->outcome != MOVE_UNTOUCHED) {
        session_note(&m->s, "the parent's QEMU (pid %d): %s", (int)p->parent_pid,
                     process_look(p->parent_pid, p->parent_start) == PROCESS_ALIVE
                         ? "it is there yet: give it cont only once you know that the child never ran in its place" : "it has ended");
        return;
    }
    give_disks_back(m);
    if (p->parent_pid && p->parent_ran && bring_parent_back(p, &why))
        session_note(&m->s, "the parent, %s: %s: give it cont", p->parent_qmp, why.text);
}

void promote_print_json(const struct move *m, int code)
{
    const struct promote *p = m->promote;
    json_t *o = move_json(m, code);

    json_object_set_new(o, "child", json_string(p->child));
    json_object_set_new(o, "replaced", json_string(p->parent_qmp));
    json_object_set_new(o, "replaced_pid", json_integer(p->parent_pid));
    json_object_set_new(o, "replaced_ended",
                        json_boolean(p->parent_pid && process_look(p->parent_pid, p->parent_start) == PROCESS_GONE));
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
    if (code == MOVE_EXIT_HERE && p->parent_pid)
        fprintf(stderr, "farfork promote: the child is what it was, and so is its parent\n");
}
