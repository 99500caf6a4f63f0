/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * domain_books.c - a domain that is forked: what libvirt is asked, and what it has to know; see domain_books.h
 */
#include "domain_books.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "autojson.h"
#include "failpoint.h"
#include "jsonl.h"
#include "libvirt.h"
#include "rundir.h"

#define WRITE_LIMIT_MS 10000
#define RESUME_LIMIT_MS 60000 /* a libvirtd that is started anew is there after a few seconds */
#define RESUME_ROUNDS 5
#define HELD_LIMIT_MS 30000   /* vmclone asks for nothing while a domain stands still: it is stopped */
#define TURN_MS 200
#define ASK_STATUS "{\"execute\":\"query-status\"}"

struct domain_books {
    char *domain, *overlays;
    pid_t pid, keeper;
    int fd;      /* of this process; the other end is the other's */
    int turn_fd; /* locked: nobody else forks this domain */
    struct jsonl_reader in;
    bool held;     /* keeper: the guest may stand still, and is to go on */
    json_t *made;  /* keeper: [{"target", "overlay"}], planned or there */
    char *xml;     /* keeper: of the snapshot that makes these */
    bool planned;  /* keeper: that is to come */
};

/* --- the keeper --- */

/* libvirt refuses to resume a domain that runs: somebody did so, or it never stood still. QEMU itself
 * is asked: the answer comes behind that of an export which nobody waits for any more */
static bool domain_runs(const struct domain_books *b)
{
    FF_AUTO_FREE char *line = NULL;
    struct ff_error ignored;

    if (libvirt_monitor(b->domain, ASK_STATUS, -1, &line, &ignored))
        return false;
    FF_AUTO_JSON json_t *answer = json_loads(line, 0, NULL);
    return json_is_true(json_object_get(json_object_get(answer, "return"), "running"));
}

static int keep_resume(struct domain_books *b, struct ff_error *why)
{
    uint64_t end = ff_now_ms() + RESUME_LIMIT_MS;
    struct ff_error ended;
    pid_t pid;
    int rc;

    while ((rc = libvirt_ask(LIBVIRT_RESUME, b->domain, NULL, NULL, why)) && !domain_runs(b) && ff_now_ms() < end &&
           !domain_pid(b->domain, &pid, &ended) && pid == b->pid)
        poll(NULL, 0, TURN_MS);
    if (rc && domain_runs(b))
        rc = 0;
    b->held &= rc != 0;
    b->planned = false; /* overlays of now are not those of the freeze */
    return rc ? ff_error_context(why, "domain %s stands still: virsh resume it", b->domain) : 0;
}

/* With @format, for two texts; both of them as XML has them */
static void add_xml(char **xml, const char *format, const char *target, const char *file)
{
    const char *from[] = {target, file};
    char *text[2];

    for (int i = 0; i < 2; i++) {
        char *to = text[i] = xcalloc(6 * strlen(from[i]) + 1, 1);
        for (const char *c = from[i]; *c; c++)
            to += strchr("&<>\"'\n", *c) ? sprintf(to, "&#%d;", *c) : sprintf(to, "%c", *c);
    }
    FF_AUTO_FREE char *more = xprintf(format, text[0], text[1]), *old = *xml;
    *xml = xprintf("%s%s", old, more);
    free(text[0]);
    free(text[1]);
}

static char *overlay_for(const struct domain_books *b, const char *id, const char *target, const char *source,
                         struct ff_error *why)
{
    const char *slash = strrchr(source, '/'), *base = slash ? slash + 1 : source, *earlier = strstr(base, ".fork-");
    int len = (int)(earlier ? (size_t)(earlier - base) : strlen(base));
    struct stat st;

    if (!b->overlays && (!slash || stat(source, &st) || !S_ISREG(st.st_mode))) {
        ff_error_set(why, EINVAL, "disk %s: %s is no file: say where the parent's overlay is to be (--overlays FOLDER)",
                     target, source);
        return NULL;
    }
    FF_AUTO_FREE char *folder = b->overlays ? xstrdup(b->overlays) : xprintf("%.*s", (int)(slash - source), source);
    char *path = xprintf("%s/%.*s.fork-%s-%s.qcow2", folder, len, base, id, target);
    if (lstat(path, &st)) /* libvirt would take a file that is empty */
        return path;
    ff_error_set(why, EEXIST, "disk %s: %s exists: take another fork id (--id)", target, path);
    free(path);
    return NULL;
}

/* An image of @images leaves it */
static bool take_from_images(json_t *images, const char *source)
{
    size_t i;
    json_t *image;

    json_array_foreach(images, i, image)
        if (!strcmp(json_string_value(image), source))
            return !json_array_remove(images, i);
    return false;
}

/* @images that libvirt has get an overlay, all other disks none; what is found leaves @images */
static int add_disks(struct domain_books *b, const char *id, const json_t *disks, json_t *images, struct ff_error *why)
{
    const json_t *d;
    size_t i;

    json_array_foreach(disks, i, d) {
        const char *target = text_of(d, "target"), *source = text_of(d, "source");
        if (!*source || !take_from_images(images, source)) {
            if (*source) /* an empty drive has no snapshot anyway */
                add_xml(&b->xml, "<disk name='%s' snapshot='no'/>", target, "");
            continue;
        }
        FF_AUTO_FREE char *overlay = overlay_for(b, id, target, source, why);
        if (!overlay)
            return -EEXIST;
        add_xml(&b->xml, "<disk name='%s' snapshot='external'><driver type='qcow2'/>"
                         "<source file='%s'/></disk>", target, overlay);
        json_array_append_new(b->made, json_pack("{ss ss}", "target", target, "overlay", overlay));
    }
    return 0;
}

static int list_books_disks(const struct domain_books *b, json_t **out, struct ff_error *why)
{
    FF_AUTO_FREE char *text = NULL;
    int rc = libvirt_ask(LIBVIRT_DISKS, b->domain, NULL, &text, why);

    *out = rc ? NULL : json_loads(text, 0, NULL);
    return rc || *out ? rc : ff_error_set(why, EPROTO, "domain %s: its disks are no list", b->domain);
}

static int keep_plan(struct domain_books *b, const char *id, const json_t *asked, bool go_on, struct ff_error *why)
{
    FF_AUTO_JSON json_t *images = json_deep_copy(asked), *disks = NULL;
    size_t i;
    json_t *image;

    if (b->xml || !rundir_name_valid(id) || !json_is_array(images))
        return ff_error_set(why, EINVAL, "domain %s: a snapshot that has no id", b->domain);
    json_array_foreach(images, i, image)
        if (!json_is_string(image))
            return ff_error_set(why, EINVAL, "domain %s: a snapshot of no file", b->domain);
    b->xml = xprintf("<domainsnapshot><name>farfork-%s</name><disks>", id);
    int rc = list_books_disks(b, &disks, why);
    if (!rc)
        rc = add_disks(b, id, disks, images, why);
    if (!rc && json_array_size(images))
        rc = ff_error_set(why, ENOENT,
                          "domain %s: libvirt has no disk with image %s (virsh domblklist): it "
                          "cannot give it an overlay", b->domain, json_string_value(json_array_get(images, 0)));
    add_xml(&b->xml, "</disks></domainsnapshot>", "", "");
    b->planned = !rc;
    b->held = !rc && go_on;
    return rc;
}

/* Has libvirt all that was to be made for its disks' images? -ENODATA: none of these disks is in what it says, or it says
 * nothing, and why */
static int has_overlays(const struct domain_books *b, struct ff_error *why)
{
    FF_AUTO_JSON json_t *disks = NULL;
    size_t i, n = 0;
    json_t *m;
    bool listed = false;

    ff_error_set(why, ENODATA, "it has no such disk");
    if (list_books_disks(b, &disks, why))
        return -ENODATA;
    json_array_foreach(b->made, i, m) {
        const json_t *d = json_find(disks, "target", text_of(m, "target"));
        listed |= d != NULL;
        n += d && !strcmp(text_of(d, "source"), text_of(m, "overlay"));
    }
    return listed ? n == json_array_size(b->made) : -ENODATA;
}

static bool is_stopped_now(const struct domain_books *b)
{
    FF_AUTO_FREE char *line = NULL;
    struct ff_error ignored;

    if (libvirt_monitor(b->domain, ASK_STATUS, -1, &line, &ignored))
        return false;
    FF_AUTO_JSON json_t *a = json_loads(line, 0, NULL);
    return json_is_false(json_object_get(json_object_get(a, "return"), "running"));
}

/* Whether they are there is what libvirt has then, whatever it answered. Then the guest goes on */
static int keep_snapshot(struct domain_books *b, struct ff_error *why)
{
    struct ff_error refused = {0}, unknown = {0}, ignored;

    if (!b->planned)
        return ff_error_set(why, EINVAL, "domain %s: it was let go on, or no overlay was planned", b->domain);
    b->planned = false;
    ff_failpoint("books.snapshot");
    int made = libvirt_ask(LIBVIRT_SNAPSHOT, b->domain, b->xml, NULL, &refused);
    int has = has_overlays(b, &unknown), rc = 0;
    bool stood_still = is_stopped_now(b);
    ff_failpoint("books.resume");
    if (b->held)
        keep_resume(b, &ignored);
    if (has < 0) /* it may write to them: they stay planned, for keep_commit() */
        rc = ff_error_set(why, EBUSY, "%s: whether the domain goes on in its overlays is unknown: look "
                          "by virsh domblklist %s", unknown.text, b->domain);
    else if (!has) {
        json_array_clear(b->made);
        rc = ff_error_set(why, EREMOTEIO, "%s", made ? refused.text : "libvirt: snapshot: no overlay is there");
    } else if (!stood_still)
        rc = ff_error_set(why, EBUSY, "the domain was continued before libvirt had made its overlays, or QEMU does not "
                          "say: its memory and its disks are of two moments; fork it again");
    return rc;
}

static int keep_commit(struct domain_books *b, struct ff_error *why)
{
    struct ff_error ignored;
    size_t i;
    json_t *m;
    int rc = 0;

    if (json_array_size(b->made) && has_overlays(b, &ignored) != 1) /* what is on top may be another fork's, or a snapshot */
        return ff_error_set(why, EBUSY, "domain %s: that its disks are this fork's overlays is not known: they stay (virsh "
                            "domblklist)", b->domain);
    json_array_foreach(b->made, i, m) {
        if (!rc && (rc = libvirt_ask(LIBVIRT_COMMIT, b->domain, text_of(m, "target"), NULL, why)))
            ff_error_context(why, "its overlay %s stays", text_of(m, "overlay"));
        if (!rc && unlink(text_of(m, "overlay")) < 0)
            rc = ff_error_set(why, errno, "remove %s: %s", text_of(m, "overlay"), strerror(errno));
    }
    json_array_clear(b->made);
    return rc;
}

static int keep_one(struct domain_books *b, const json_t *asked, char **answer, struct ff_error *why)
{
    const char *command = text_of(asked, "do");

    if (!strcmp(command, "monitor"))
        return libvirt_monitor(b->domain, text_of(asked, "line"), -1, answer, why);
    if (!strcmp(command, "plan"))
        return keep_plan(b, text_of(asked, "id"), json_object_get(asked, "images"),
                         json_is_true(json_object_get(asked, "go-on")), why);
    if (!strcmp(command, "snapshot"))
        return keep_snapshot(b, why);
    if (!strcmp(command, "commit"))
        return keep_commit(b, why);
    return b->held && !strcmp(command, "resume") ? keep_resume(b, why) : 0;
}

static void keep_answer(struct domain_books *b, const char *line)
{
    FF_AUTO_JSON json_t *asked = json_loads(line, 0, NULL);
    FF_AUTO_FREE char *answer = NULL;
    struct ff_error why = {0};
    int rc = asked ? keep_one(b, asked, &answer, &why)
                   : ff_error_set(&why, EPROTO, "the keeper was asked nothing");
    FF_AUTO_JSON json_t *said = json_pack("{si ss ss}", "rc", rc, "error", rc ? why.text : "",
                                          "answer", answer ? answer : "");

    if (!said) /* no UTF-8 */
        said = json_pack("{si ss ss}", "rc", -EPROTO, "error", "libvirt: what it says is no text",
                         "answer", "");
    jsonl_write_json(b->fd, said, WRITE_LIMIT_MS); /* one that is gone is heard of below */
}

static _Noreturn void keeper_main(struct domain_books *b)
{
    struct pollfd p = {.fd = b->fd, .events = POLLIN};
    struct ff_error ignored;
    char *line;
    pid_t pid;

    setsid();
    ff_failpoints_start(&ignored);
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int i = 0; i < 3 && nothing >= 0; i++) /* nobody waits for it */
        dup2(nothing, i);
    while (!b->in.ended) {
        int n = poll(&p, 1, b->held ? HELD_LIMIT_MS : -1);
        if (n < 0 && errno != EINTR)
            break;
        if (!n)
            keep_resume(b, &ignored);
        if (n > 0 && jsonl_read(&b->in, b->fd))
            break;
        while ((line = jsonl_next(&b->in)))
            keep_answer(b, line);
    }
    for (int i = 0; b->held && i < RESUME_ROUNDS && !domain_pid(b->domain, &pid, &ignored) &&
                    pid == b->pid; i++)
        keep_resume(b, &ignored);
    _exit(0);
}

/* --- the other one --- */

static int ask_keeper(struct domain_books *b, json_t *question, char **answer, struct ff_error *why)
{
    FF_AUTO_JSON json_t *q = question;
    struct pollfd p = {.fd = b->fd, .events = POLLIN};
    char *line = NULL;
    int rc = q ? jsonl_write_json(b->fd, q, WRITE_LIMIT_MS) : -EINVAL;

    while (!rc && !(line = jsonl_next(&b->in)) && !b->in.ended)
        if (poll(&p, 1, -1) > 0)
            rc = jsonl_read(&b->in, b->fd);
    FF_AUTO_JSON json_t *said = line ? json_loads(line, 0, NULL) : NULL;
    if (!said)
        return ff_error_set(why, EPIPE, "domain %s: the process that asks libvirt has ended: see "
                            "virsh domstate --reason %s", b->domain, b->domain);
    rc = (int)json_integer_value(json_object_get(said, "rc"));
    if (rc)
        return ff_error_set(why, -rc, "%s", text_of(said, "error"));
    if (answer)
        *answer = xstrdup(text_of(said, "answer"));
    return 0;
}

/* Its descriptor, which has the lock */
static int wait_turn(const char *domain, unsigned timeout_s, struct ff_error *why)
{
    FF_AUTO_FREE char *path = domain_pid_file(domain);
    uint64_t end = ff_now_ms() + timeout_s * 1000ull;
    int fd = open(path, O_RDONLY | O_CLOEXEC), rc;
    bool said = false;

    if (fd < 0)
        return ff_error_set(why, errno, "%s: %s", path, strerror(errno));
    while ((rc = flock(fd, LOCK_EX | LOCK_NB)) && errno == EWOULDBLOCK && ff_now_ms() < end) {
        if (!said)
            fprintf(stderr, "domain %s: another fork of it is made: waiting, at most for %u s\n",
                    domain, timeout_s);
        said = true;
        poll(NULL, 0, TURN_MS);
    }
    if (!rc)
        return fd;
    rc = errno == EWOULDBLOCK
             ? ff_error_set(why, ETIMEDOUT, "domain %s: others have forked it for %u s", domain,
                            timeout_s)
             : ff_error_set(why, errno, "lock %s: %s", path, strerror(errno));
    close(fd);
    return rc;
}

int domain_books_open(const char *domain, const char *overlays, unsigned timeout_s,
                      struct domain_books **out, struct ff_error *why)
{
    pid_t pid;
    int pair[2];

    if (geteuid())
        return ff_error_set(why, EPERM, "domain %s: run this as root, who may ask libvirt; what it "
                            "starts runs as the domain's user", domain);
    int rc = domain_pid(domain, &pid, why);
    int turn = rc ? rc : wait_turn(domain, timeout_s, why);
    if (turn < 0)
        return turn;
    rc = domain_pid(domain, &pid, why); /* it may have been started anew meanwhile */
    if (rc) {
        close(turn);
        return rc;
    }
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair)) {
        rc = errno;
        close(turn);
        return ff_error_set(why, rc, "socketpair: %s", strerror(rc));
    }
    struct domain_books *b = xcalloc(1, sizeof(*b));
    *b = (struct domain_books){.domain = xstrdup(domain), .pid = pid, .made = json_array(),
                               .turn_fd = turn,
                               .overlays = overlays ? xstrdup(overlays) : NULL};
    b->keeper = fork();
    b->fd = pair[b->keeper == 0];
    close(pair[b->keeper != 0]);
    if (!b->keeper)
        keeper_main(b);
    if (b->keeper < 0)
        rc = ff_error_set(why, errno, "fork: %s", strerror(errno));
    if (rc) {
        domain_books_close(b);
        return rc;
    }
    *out = b;
    return 0;
}

void domain_books_done(struct domain_books *b)
{
    ff_close_fd(&b->fd);
    if (b->keeper > 0) /* it lets the guest go on first */
        waitpid(b->keeper, NULL, 0);
    b->keeper = 0;
    ff_close_fd(&b->turn_fd);
}

void domain_books_close(struct domain_books *b)
{
    if (!b)
        return;
    domain_books_done(b);
    jsonl_free(&b->in);
    json_decref(b->made);
    free(b->domain);
    free(b->overlays);
    free(b);
}

pid_t domain_books_pid(const struct domain_books *b)
{
    return b->pid;
}

/* What QEMU refuses is in its answer: without one nobody knows what became of the command */
int domain_books_monitor(void *opaque, const char *line, int fd, char **answer, struct ff_error *why)
{
    if (fd >= 0)
        return ff_error_set(why, EOPNOTSUPP, "pass a descriptor: not while it is forked");
    int rc = ask_keeper(opaque, json_pack("{ss ss}", "do", "monitor", "line", line), answer, why);

    return rc && rc != -ESRCH && rc != -ENOENT ? -ETIMEDOUT : rc;
}

int domain_books_resume(struct domain_books *b, struct ff_error *why)
{
    return ask_keeper(b, json_pack("{ss}", "do", "resume"), NULL, why);
}

int domain_books_plan(struct domain_books *b, const char *id, const json_t *images, bool go_on, struct ff_error *why)
{
    return ask_keeper(b, json_pack("{ss ss sO sb}", "do", "plan", "id", id, "images", images, "go-on",
                                   go_on), NULL, why);
}

int domain_books_snapshot(struct domain_books *b, struct ff_error *why)
{
    return ask_keeper(b, json_pack("{ss}", "do", "snapshot"), NULL, why);
}

int domain_books_commit(struct domain_books *b, struct ff_error *why)
{
    return ask_keeper(b, json_pack("{ss}", "do", "commit"), NULL, why);
}
