/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * move_domain.c - farfork move --domain: both sides of a domain's move, and what they say
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      farfork move --launcher--> attach --destination --domain NAME   (1) libvirt restores it; listens
 *              farfork move ------------> attach --source --domain NAME        (2) moves it
 *              Both get the key and the domain by their input, and say events by their output, a JSON object a line.
 * Ownership    each is in a process group of its own. Once the guest was let go it stays until
 *              the memory is there, also without this program.
 * Failure      the source's exit code says where the guest is. Before GO the end of its input, or
 *              of the destination's, ends the move: the guest goes on here. A source that was killed has let go of
 *              its guest only if the kernel has ended the QEMU with it (hold.h): else the domain is resumed here.
 */
#include "move_domain.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "autojson.h"
#include "defaults.h"
#include "launcher.h"
#include "libvirt.h"
#include "move.h"
#include "qmp_secret.h"
#include "signals.h"
#include "spawn.h"
#include "xml_scan.h"

#define WRITE_LIMIT_MS 10000
#define END_LIMIT_MS 60000 /* of the destination's, once the source's has ended: libvirt ends its QEMU */
#define KILLED_LIMIT_MS 5000 /* the kernel frees its memory first */

struct domain_side {
    struct spawn run;
    bool over;           /* its output has ended */
    json_int_t port;     /* destination */
    json_t *ended;       /* its summary; NULL: not yet */
    bool lost;           /* source: it only holds its QEMU any more */
    char *reason, *note; /* why it came to nothing; what else is to be said */
    int code;
    bool killed;
};

struct domain_move {
    const struct domain_options *o;
    struct domain_side here, there;
    char *host, *address, *key, *given; /* the second line of both inputs */
    bool persistent, undefine, was_running;
    int signals, qemu_fd;
    bool interrupted; /* before there was a side here */
    struct ff_error why;
};

/* --- what they say --- */

static void take_text(char **to, const json_t *e)
{
    free(*to);
    *to = xstrdup(text_of(e, "reason"));
}

static void on_side_line(void *opaque, const char *line)
{
    struct domain_side *side = opaque;
    FF_AUTO_JSON json_t *e = json_loads(line, 0, NULL);
    const char *name = e ? text_of(e, "event") : "";

    if (!e && *line) /* a login shell that greets, a launcher that complains */
        spawn_add_error(&side->run, line);
    if (!strcmp(name, "listening"))
        side->port = json_integer_value(json_object_get(e, "port"));
    else if (!strcmp(name, "failed") || !strcmp(name, "lost") || !strcmp(name, "stuck") ||
             !strcmp(name, "nowhere") || !strcmp(name, "incomplete"))
        take_text(&side->reason, e);
    else if (!strcmp(name, "unconfirmed") || !strcmp(name, "waiting") || !strcmp(name, "refused"))
        take_text(&side->note, e);
    else if (!strcmp(name, "ended"))
        side->ended = json_incref(e);
    side->lost |= !strcmp(name, "lost");
}

static void read_side(struct domain_side *side)
{
    char *line;
    int status;

    if (side->over || !side->run.pid)
        return;
    side->over = spawn_on_output(&side->run);
    while ((line = jsonl_next(&side->run.out_lines)))
        on_side_line(side, line);
    if (!side->over)
        return;
    bool ended = spawn_ended(&side->run, END_LIMIT_MS, &status);
    side->killed = ended && WIFSIGNALED(status);
    side->code = ended && WIFEXITED(status) ? WEXITSTATUS(status) : MOVE_EXIT_TROUBLE;
}

/* Why a side ended; @who: for one without a reason */
static const char *reason_of(const struct domain_side *side, const char *who)
{
    return side->reason && *side->reason ? side->reason : side->run.words ? side->run.words : who;
}

/* --- the domain --- */

/* What the destination restores: with secrets, which --migratable has; the CPU as the running guest has it */
static int look_at_domain(struct domain_move *m, struct ff_error *why)
{
    FF_AUTO_FREE char *xml = NULL, *runs = NULL, *cpu = NULL, *define = NULL, *status = NULL, *text = NULL;
    const char *name = m->o->name;
    pid_t pid;
    int rc = domain_pid(name, &pid, why);

    if (rc)
        return rc;
    m->qemu_fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (m->qemu_fd < 0)
        return ff_error_set(why, errno, "domain %s: its process %d: %s", name, (int)pid, strerror(errno));
    rc = libvirt_monitor(name, "{\"execute\":\"query-status\"}", -1, &status, why);
    FF_AUTO_JSON json_t *answer = rc ? NULL : json_loads(status, 0, NULL);
    m->was_running = json_is_true(json_object_get(json_object_get(answer, "return"), "running"));
    if (!rc)
        rc = libvirt_ask(LIBVIRT_XML_MOVES, name, NULL, &xml, why);
    if (!rc)
        rc = libvirt_ask(LIBVIRT_XML, name, NULL, &runs, why);
    if (!rc)
        rc = xml_element(runs, "/domain/cpu", &cpu, why);
    if (!rc && m->persistent)
        rc = libvirt_ask(LIBVIRT_XML_DEFINED, name, NULL, &define, why);
    if (rc)
        return rc;
    FF_AUTO_JSON json_t *o = json_pack("{ss ss* ss* sb}", "xml", xml, "cpu", cpu, "define", define,
                                       "undefine", m->undefine);
    text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    if (!text)
        return ff_error_set(why, EPROTO, "domain %s: its XML is no UTF-8", name);
    m->given = xprintf("%s\n", text);
    return 0;
}

/* --- run --- */

/* The side here says whether it ends; one that holds its QEMU, since nobody knows who has the guest, goes on doing so */
static void pass_signal(struct domain_move *m)
{
    struct signalfd_siginfo s;

    while (read(m->signals, &s, sizeof(s)) == sizeof(s))
        if (m->here.run.pid && !m->here.lost)
            kill(m->here.run.pid, (int)s.ssi_signo);
        else
            m->interrupted = true;
}

/* Once, until something was said, at most @limit_ms */
static void wait_sides(struct domain_move *m, int limit_ms)
{
    struct pollfd f[] = {{.fd = m->signals, .events = POLLIN},
                         {.fd = m->there.over ? -1 : m->there.run.out, .events = POLLIN},
                         {.fd = m->there.over ? -1 : m->there.run.err, .events = POLLIN},
                         {.fd = m->here.over ? -1 : m->here.run.out, .events = POLLIN},
                         {.fd = m->here.over ? -1 : m->here.run.err, .events = POLLIN}};

    if (poll(f, FF_ARRAY_LEN(f), limit_ms) <= 0)
        return;
    if (f[0].revents)
        pass_signal(m);
    read_side(&m->there);
    read_side(&m->here);
}

static void add_common(const struct domain_move *m, struct strv *w, const char *side)
{
    strv_add(w, "attach");
    strv_add(w, "--json");
    strv_add(w, "--%s", side);
    strv_add(w, "--domain");
    strv_add(w, "%s", m->o->name);
}

static void add_link(const struct domain_move *m, struct strv *w, json_int_t port)
{
    const char *more = m->o->link_options;

    strv_add(w, "%s:%d%s%s", m->address, (int)port, more ? "," : "", more ? more : "");
}

/* @line: by the launcher; NULL: here */
static int start_side(struct domain_move *m, struct domain_side *side, const struct strv *w,
                      const char *line)
{
    int rc = spawn_start(&side->run, w->v, line, &m->why);

    if (rc)
        return rc;
    rc = key_line_write(side->run.in, m->key, WRITE_LIMIT_MS);
    if (!rc)
        rc = jsonl_write(side->run.in, m->given, strlen(m->given), WRITE_LIMIT_MS);
    return rc && rc != -EPIPE /* its last words say why */
               ? ff_error_set(&m->why, -rc, "give a side its key and domain: %s", strerror(-rc))
               : 0;
}

static int start_destination(struct domain_move *m)
{
    const struct domain_options *o = m->o;
    FF_AUTO_FREE char *own = defaults_agent();
    uint64_t end = ff_now_ms() + o->timeout_s * 1000ull;
    struct strv w = {0};

    strv_add(&w, "%s", o->agent ? o->agent : own);
    add_common(m, &w, "destination");
    add_link(m, &w, 0);
    FF_AUTO_FREE char *line =
        launcher_line(o->launcher ? o->launcher : launcher_default(), m->host, w.v);
    int rc = start_side(m, &m->there, &w, line);
    strv_free(&w);
    while (!rc && !m->there.port && !m->there.over) {
        wait_sides(m, MOVE_TURN_MS);
        if (m->interrupted)
            return ff_error_set(&m->why, EINTR, "ended by a signal");
        if (ff_now_ms() > end)
            return ff_error_set(&m->why, ETIMEDOUT, "%s: nobody listens there within %u s", m->host,
                                o->timeout_s);
    }
    return rc || m->there.port ? rc
                               : ff_error_set(&m->why, ECHILD, "%s: %s",
                                              m->host, reason_of(&m->there, "no message"));
}

static int start_source(struct domain_move *m)
{
    FF_AUTO_FREE char *own = defaults_agent();
    struct strv w = {0};

    strv_add(&w, "%s", own);
    add_common(m, &w, "source");
    add_link(m, &w, m->there.port);
    int rc = start_side(m, &m->here, &w, NULL);
    strv_free(&w);
    return rc;
}

/* Of a source that was killed */
static int give_back_domain(struct domain_move *m)
{
    struct pollfd ended = {.fd = m->qemu_fd, .events = POLLIN};
    struct ff_error why;

    spawn_close_input(&m->there.run);
    if (poll(&ended, 1, KILLED_LIMIT_MS)) { /* or nobody knows */
        ff_error_set(&m->why, ECHILD, "the side here was killed, and the QEMU here has ended with it");
        return MOVE_EXIT_TROUBLE;
    }
    ff_error_set(&m->why, ECHILD, "the side here was killed");
    int rc = m->was_running ? libvirt_ask(LIBVIRT_RESUME, m->o->name, NULL, NULL, &why) : 0;
    if (rc)
        m->here.note = xstrdup(why.text);
    return MOVE_EXIT_HERE;
}

static int run_sides(struct domain_move *m)
{
    int rc = look_at_domain(m, &m->why);

    if (!rc)
        rc = start_destination(m);

    if (!rc)
        rc = start_source(m);
    while (!rc && !m->here.over && !m->here.lost)
        wait_sides(m, -1);
    int code = rc ? MOVE_EXIT_HERE : m->here.lost ? MOVE_EXIT_TROUBLE : m->here.killed ? give_back_domain(m) : m->here.code;
    if (code == MOVE_EXIT_HERE)
        spawn_close_input(&m->there.run); /* it may wait for a source still */
    uint64_t end = ff_now_ms() + END_LIMIT_MS;
    while (m->there.run.pid && !m->there.over && !m->interrupted && ff_now_ms() < end)
        wait_sides(m, MOVE_TURN_MS);
    return code;
}

/* --- before and after --- */

/* USER@HOST for the launcher, and HOST alone, which may be in brackets */
static int take_host(struct domain_move *m, struct ff_error *why)
{
    const char *uri = m->o->uri, *from = strstr(uri, "://");
    size_t len = from ? strcspn(from + 3, "/?") : 0;
    FF_AUTO_FREE char *authority = from ? xstrdup(from + 3) : xstrdup("");

    authority[len] = '\0';
    char *host = strrchr(authority, '@') ? strrchr(authority, '@') + 1 : authority;
    char *port = strrchr(host, ':');
    if (port && !strchr(port, ']'))
        *port = '\0';
    if (!*host)
        return ff_error_set(why, EINVAL,
                            "%s: want a URI of libvirt's with a host, such as "
                            "qemu+ssh://HOST/system",
                            uri);
    m->host = xstrdup(authority);
    bool brackets = *host == '[';
    host[brackets ? strcspn(host, "]") : strlen(host)] = '\0';
    return host_numeric(m->o->address ? m->o->address : host + brackets, "--address", &m->address,
                        why);
}

/* As virsh migrate has them; the other ones would need that */
static int take_words(struct domain_move *m, struct ff_error *why)
{
    for (char *const *word = m->o->words; *word; word++) {
        if (strcmp(*word, "--persistent") && strcmp(*word, "--undefinesource"))
            return ff_error_set(why, EINVAL, "%s: no word for a move without virsh migrate (permitted: --persistent, "
                                             "--undefinesource)", *word);
        *(strcmp(*word, "--persistent") ? &m->undefine : &m->persistent) = true;
    }
    return 0;
}

static int prepare_domain(struct domain_move *m)
{
    int rc = m->o->launcher ? launcher_check(m->o->launcher, &m->why) : launcher_check_step(&m->why);

    if (!rc)
        rc = take_host(m, &m->why);
    if (!rc)
        rc = take_words(m, &m->why);
    if (!rc)
        rc = key_text_make(&m->key, &m->why);
    if (rc)
        return rc;
    m->signals = signals_take();
    return 0;
}

static double summary_ms(const struct domain_move *m, const char *name)
{
    return m->here.ended ? json_number_value(json_object_get(m->here.ended, name)) : 0;
}

static void print_domain(const struct domain_move *m, int code)
{
    const char *state = code == 0 ? "there" : code == MOVE_EXIT_HERE ? "here" : "unclear";
    const char *note = m->here.note ? m->here.note : "";

    if (m->o->json) {
        FF_AUTO_JSON json_t *o =
            json_pack("{ss ss ss si ss ss sO*}", "domain", m->o->name, "host",
                      m->host ? m->host : "", "state", state, "exit_code", code, "error",
                      m->why.text, "note", note, "source", m->here.ended);
        FF_AUTO_FREE char *line = json_dumps(o, JSON_COMPACT);
        printf("%s\n", line ? line : "{}");
        return;
    }
    if (!code)
        printf("moved %s to %s: down %.1f ms, %.0f ms in all\n", m->o->name, m->host,
               summary_ms(m, "downtime_ms"), summary_ms(m, "total_ms"));
    fflush(stdout);
    if (*m->why.text)
        fprintf(stderr, "farfork move: %s\n", m->why.text);
    if (*note)
        fprintf(stderr, "farfork move: note: %s\n", note);
    if (code == MOVE_EXIT_HERE)
        fprintf(stderr, "farfork move: the domain is here still\n");
    else if (code)
        fprintf(stderr, "farfork move: see virsh domstate --reason %s, on both hosts\n",
                m->o->name);
}

/* Where the guest was let go a side goes on without this program: only its pipes end */
static void free_side(struct domain_side *side, int code)
{
    if (code == MOVE_EXIT_HERE || code == EXIT_USAGE)
        spawn_end(&side->run, END_LIMIT_MS);
    ff_close_fd(&side->run.in);
    ff_close_fd(&side->run.out);
    ff_close_fd(&side->run.err);
    spawn_free(&side->run);
    json_decref(side->ended);
    free(side->reason);
    free(side->note);
}

int move_domain_run(const struct domain_options *o)
{
    struct domain_move m = {.o = o, .here.run = SPAWN_NONE, .there.run = SPAWN_NONE, .signals = -1, .qemu_fd = -1};
    int code = EXIT_USAGE;

    if (!prepare_domain(&m)) {
        code = run_sides(&m);
        if (code && !*m.why.text)
            ff_error_set(&m.why, EIO, "%s", reason_of(&m.here, "the side here ended"));
        print_domain(&m, code);
    } else {
        fprintf(stderr, "farfork move: %s\n", m.why.text);
    }
    free_side(&m.here, code);
    free_side(&m.there, code);
    key_text_free(m.key);
    free(m.host);
    free(m.address);
    free(m.given);
    ff_close_fd(&m.qemu_fd);
    ff_close_fd(&m.signals);
    return code;
}
