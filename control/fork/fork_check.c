/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * fork_check.c - agents answer, and say whether their hosts have what children need
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      find out before the freeze what would fail after it. This file says what will be
 *              needed; the agent of each host looks (preflight.c).
 * Failure      a host that lacks something is of no use, and says what; the others go on. One that
 *              hangs holds up the others for LATE_MS, or LATE_TIMES as long as they took.
 */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "autojson.h"
#include "fork.h"
#include "qemu_opts.h"
#include "preflight.h"
#include "same_file.h"

#define LATE_MS 10000 /* a login that asks name servers in vain */
#define LATE_TIMES 4
#define FDS_HOST 6    /* the pipes of a launcher, while it is started */
#define FDS_CHILD 6   /* of an agent: connection, port, log, userfaultfd, and while it is started */
#define FDS_REST 64   /* of any process: libraries, devices, connections */

/* --- rounds: each host is asked something and answers, or is late --- */

static bool waits(const struct fork *f, const struct host *h)
{
    return h->state == HOST_STARTING || (f->checking && h->state == HOST_LISTENING && !h->checked);
}

/* Until the others have answered for long */
static bool waits_yet(const struct fork *f, const struct host *of)
{
    double last = 0, now = ff_now_exact_ms();

    if (!waits(f, of))
        return false;
    for (size_t i = 0; i < f->s.n_hosts; i++) {
        const struct host *h = &f->s.hosts[i];
        if (!waits(f, h) && h->state != HOST_FAILED && h->answered_ms > last)
            last = h->answered_ms;
    }
    double took = LATE_TIMES * (last - f->round_ms);
    return last <= 0 || now <= last + (took > LATE_MS ? took : LATE_MS);
}

static void fail_after(struct fork *f, struct host *h, unsigned s, const char *others)
{
    host_fail(&f->s, h, "no answer within %u s%s%s%s: %s", s, others, h->run.words ? ": " : "",
              h->run.words ? h->run.words : "",
              h->state == HOST_STARTING ? "can the launcher get there without a password?"
                                        : "does its scratch folder (--scratch) hang?");
}

static void fail_silent(struct fork *f, struct host *h)
{
    fail_after(f, h, f->s.o.timeout_s, "");
}

static int play_round(struct fork *f, struct ff_error *why)
{
    size_t good = 0;
    int rc = fork_pump(f, waits_yet, fail_silent, (int)f->s.o.timeout_s * 1000);

    for (size_t i = 0; !rc && i < f->s.n_hosts; i++) {
        struct host *h = &f->s.hosts[i];
        if (waits(f, h))
            fail_after(f, h, (unsigned)((ff_now_exact_ms() - f->round_ms) / 1e3), ", while other hosts answered");
        good += h->state != HOST_FAILED;
    }
    return rc || good ? rc : ff_error_set(why, EHOSTUNREACH, "no host can be used");
}

int fork_wait_hosts(struct fork *f, struct ff_error *why)
{
    f->round_ms = f->s.begin_ms;
    return play_round(f, why);
}

/* --- what is needed --- */

static unsigned open_files(pid_t pid)
{
    FF_AUTO_FREE char *path = xprintf("/proc/%d/fd", (int)pid);
    DIR *d = opendir(path);
    unsigned n = 0;

    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n;
}

int fork_check_descriptors(struct fork *f, struct ff_error *why)
{
    int rc = preflight_descriptors(0, "this program", FDS_REST + FDS_HOST * f->s.n_hosts, why);

    return rc ? rc : preflight_descriptors(f->s.parent_pid, "the parent",
                                           open_files(f->s.parent_pid) + FDS_REST, why);
}

static unsigned descriptors(const struct fork *f, unsigned children)
{
    unsigned agent = FDS_REST + FDS_CHILD * children;
    unsigned child = FDS_REST + open_files(f->s.parent_pid);

    return agent > child ? agent : child;
}

/* All memory is lent on this host, but for what the freeze copies: none is missing then */
static bool lends_all(const json_t *memory)
{
    size_t i;
    json_t *m;

    json_array_foreach(memory, i, m)
        if (!json_is_true(json_object_get(m, "share")))
            return false;
    return json_array_size(memory);
}

static json_t *subjects(struct fork *f, const struct host *h)
{
    FF_AUTO_JSON json_t *kvm = NULL, *memory = NULL;
    json_t *list = json_array();
    struct ff_error none; /* an accelerator that does not say is none that is checked */

    qmp_command(f->s.qmp, "query-kvm", NULL, &kvm, &none);
    qmp_command(f->s.qmp, "query-memdev", NULL, &memory, &none);
    if (json_is_true(json_object_get(kvm, "enabled")))
        json_array_append_new(list, json_string("kvm"));
    if (!h->here || !lends_all(memory))
        json_array_append_new(list, json_string("userfaultfd"));
    return list;
}

/* Backends of the child's NICs that its QEMU, or its host, may lack; others have side effects */
static void add_backends(json_t *program, const struct strv *argv)
{
    for (size_t i = 1; i < argv->n; i++) {
        const char *option = argv->v[i - 1];
        if (!qemu_option_is(option, "netdev") && !qemu_option_is(option, "nic") &&
            !qemu_option_is(option, "net"))
            continue;
        FF_AUTO_FREE char *type = qemu_opts_get_first(argv->v[i], "type");
        FF_AUTO_FREE char *br = qemu_opts_get(argv->v[i], "br"),
                          *helper = qemu_opts_get(argv->v[i], "helper");
        FF_AUTO_FREE char *id = xprintf("p%zu", i);
        bool bridge = type && !strcmp(type, "bridge");
        if (!bridge && (!type || strcmp(type, "user")))
            continue;
        json_t *o = json_pack("{ss ss}", "type", type, "id", id);
        if (bridge && br)
            json_object_set_new(o, "br", json_string(br));
        if (bridge && helper)
            json_object_set_new(o, "helper", json_string(helper));
        FF_AUTO_FREE char *text = json_dumps(o, JSON_COMPACT);
        json_decref(o);
        json_array_append_new(program, json_string("-netdev"));
        json_array_append_new(program, json_string(text));
    }
}

/* NULL: the program that the parent runs, with what the parent has */
static json_t *program_of(struct fork *f, const struct host *h)
{
    bool known = h->here && !f->s.o.qemu && f->o->net != NET_USER && f->o->net != NET_BRIDGE;
    struct strv argv = {0};
    struct ff_error ignored; /* fork_check_argv() has refused what it refuses */

    if (known || fork_argv_on(f, h, &argv, &ignored))
        return NULL;
    /* qtest starts quickest, and is a module that may not be there */
    json_t *program = json_pack("[s,s,s,s,s,s,s,s,s,s,s,s]", f->s.parent_exe, "-M", "none",
                                "-accel", "qtest", "-accel", "tcg", "-nodefaults", "-display",
                                "none", "-qmp", "stdio");
    add_backends(program, &argv);
    strv_free(&argv);
    return program;
}

/* --- flags of the processor --- */

static bool names_machine(const char *option)
{
    /* with several threads a processor says that it has some */
    static const char *const names[] = {"M", "machine", "accel", "cpu", "smp", "overcommit", "global"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (qemu_option_is(option, names[i]))
            return true;
    return qemu_option_is(option, "enable-kvm");
}

/* A machine of the children's type, with their CPU and nothing else */
static json_t *bare_machine(struct fork *f, const struct host *h)
{
    static const char *const kept[] = {"type", "accel", "kernel-irqchip", "kernel_irqchip", NULL};
    struct strv argv = {0};
    struct ff_error ignored;

    if (fork_argv_on(f, h, &argv, &ignored))
        return NULL;
    json_t *program = json_pack("[s,s,s,s,s,s,s]", f->s.parent_exe, "-S", "-nodefaults", "-display",
                                "none", "-qmp", "stdio");
    for (size_t i = 1; i < argv.n; i++) {
        if (!names_machine(argv.v[i]))
            continue;
        json_array_append_new(program, json_string(argv.v[i]));
        if (qemu_option_is(argv.v[i], "enable-kvm") || ++i == argv.n)
            continue;
        bool machine = qemu_option_is(argv.v[i - 1], "M") || qemu_option_is(argv.v[i - 1], "machine");
        FF_AUTO_FREE char *few =
            machine ? qemu_opts_only(argv.v[i], "type", kept) : xstrdup(argv.v[i]);
        json_array_append_new(program, json_string(few));
    }
    strv_free(&argv);
    return program;
}

static int ask_cpu(struct fork *f, const char *path, const char *property, json_t **value)
{
    struct ff_error none;

    return qmp_command(f->s.qmp, "qom-get", json_pack("{ss ss}", "path", path, "property", property),
                       value, &none);
}

/* Where the parent's first CPU is, and its registers of flags, by one command; asked once, for all
 * hosts */
static json_t *cpu_of(struct fork *f)
{
    FF_AUTO_JSON json_t *cpus = NULL;
    json_t *words = NULL;
    struct ff_error none;

    qmp_command(f->s.qmp, "query-cpus-fast", NULL, &cpus, &none);
    const char *path = text_of(json_array_get(cpus, 0), "qom-path");
    ask_cpu(f, path, "feature-words", &words);
    return json_pack("{ss so*}", "cpu", path, "words", words);
}

/* The names of all flags that it has, a command each, some 440: where a host lacks some */
static json_t *flags_of(struct fork *f)
{
    const char *path = text_of(f->cpu, "cpu");
    FF_AUTO_JSON json_t *list = NULL;
    json_t *flags = json_array(), *o;
    struct ff_error none;
    size_t i;

    qmp_command(f->s.qmp, "qom-list", json_pack("{ss}", "path", path), &list, &none);
    json_array_foreach(list, i, o) {
        const char *name = text_of(o, "name");
        FF_AUTO_JSON json_t *value = NULL;
        if (!strcmp(text_of(o, "type"), "bool") && !strchr(name, '_') && /* another name of one */
            !ask_cpu(f, path, name, &value) && json_is_true(value))
            json_array_append_new(flags, json_string(name));
    }
    return flags;
}

/* NULL: it is the parent's own, or cannot be known */
static json_t *processor_of(struct fork *f, const struct host *h)
{
    json_t *program = h->here && !f->s.o.qemu ? NULL : bare_machine(f, h);

    if (!program)
        return NULL;
    if (!f->cpu)
        f->cpu = cpu_of(f);
    json_t *o = json_copy(f->cpu);
    json_object_set_new(o, "program", program);
    return o;
}

static void ask_host(struct fork *f, struct host *h)
{
    json_t *files = json_array();
    unsigned children = 0;

    for (size_t k = 0; k < f->s.n_vms; k++) {
        const struct vm_spec s = {.number = f->s.vms[k].number};
        if (&f->s.hosts[f->s.vms[k].host] != h)
            continue;
        FF_AUTO_JSON json_t *its = fork_disks_files(f->disks, &s);
        json_array_extend(files, its);
        children++;
    }
    uint64_t bytes = fork_disks_room(f->disks, children);
    json_t *want = json_pack("{so si so}", "files", files, "descriptors",
                             (int)descriptors(f, children), "checks", subjects(f, h));
    json_t *program = program_of(f, h), *processor = processor_of(f, h);
    if (!f->s.anywhere)
        json_object_set_new(want, "cwd", json_string(f->s.parent_cwd));
    if (f->same && !h->here)
        json_object_set_new(want, "same", same_files_ask(f->same));
    if (bytes) {
        json_object_set_new(want, "folder", json_string(fork_disks_scratch(f->disks)));
        json_object_set_new(want, "bytes", json_integer((json_int_t)bytes));
    }
    if (program)
        json_object_set_new(want, "program", program);
    if (processor)
        json_object_set_new(want, "processor", processor);
    host_send(h, json_pack("{so}", "check", want));
}

/* Children on other hosts open them by their names */
static bool opens_images(const struct fork *f)
{
    bool any = false;

    for (size_t i = 0; i < f->s.n_hosts; i++)
        any |= f->s.hosts[i].state == HOST_LISTENING && !f->s.hosts[i].here;
    return any && !f->o->nbd && !f->o->same_disks;
}

static int check_hosts(struct fork *f, struct ff_error *why)
{
    bool again = false;

    f->checking = true;
    f->round_ms = ff_now_exact_ms();
    for (size_t i = 0; i < f->s.n_hosts; i++)
        if (f->s.hosts[i].state == HOST_LISTENING)
            ask_host(f, &f->s.hosts[i]);
    int rc = play_round(f, why);
    for (size_t i = 0; !rc && i < f->s.n_hosts; i++) {
        struct host *h = &f->s.hosts[i];
        if (h->state != HOST_LISTENING || !h->lacks_flags)
            continue;
        if (!again) /* these fail, and say which */
            json_object_set_new(f->cpu, "flags", flags_of(f));
        again = true;
        h->checked = false;
        ask_host(f, h);
    }
    return again ? play_round(f, why) : rc;
}

int fork_check_hosts(struct fork *f, struct ff_error *why)
{
    f->same = opens_images(f) ? same_files_marked(fork_disks_images(f->disks)) : NULL;
    int rc = check_hosts(f, why);

    same_files_free(f->same);
    f->same = NULL;
    return rc;
}
