/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * command_line.c - a child's command line, from its parent's
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      two QEMUs cannot have one socket, log, disk or port, and a child is told where its
 *              memory is. One table says what becomes of each option; those that it does not
 *              know are copied, those of disks too: these are the child's already.
 * Limits       which options take no argument is a list of QEMU 10.0's; an option of a later
 *              QEMU that takes none is followed by an option all the same, and "-x -y" is read so.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "command_line.h"
#include "rewrite.h"
#include "identity.h"
#include "option_files.h"
#include "qemu_opts.h"

static rewrite_fn rewrite_name, rewrite_drop, refuse_option, rewrite_pidfile,
    rewrite_mem_path, rewrite_object, rewrite_config, rewrite_nographic, rewrite_nodefaults,
    rewrite_display, rewrite_tpmdev, rewrite_run_with;

static const struct rule {
    const char *option;
    rewrite_fn *fn;
} rules[] = {
    /* the child's own beginning */
    {"incoming", rewrite_drop}, {"S", rewrite_drop}, {"loadvm", rewrite_drop},
    {"preconfig", rewrite_drop}, {"daemonize", rewrite_drop}, {"pidfile", rewrite_pidfile},
    {"run-with", rewrite_run_with},
    {"gdb", rewrite_drop}, {"s", rewrite_drop},
    /* memory comes from the agent */
    {"mem-path", rewrite_mem_path}, {"mem-prealloc", rewrite_drop}, {"object", rewrite_object},
    /* sockets and files */
    {"qmp", rewrite_monitor}, {"qmp-pretty", rewrite_monitor}, {"monitor", rewrite_monitor},
    {"qtest", rewrite_monitor}, {"chardev", rewrite_chardev}, {"serial", rewrite_serial},
    {"parallel", rewrite_serial}, {"debugcon", rewrite_serial},
    {"nographic", rewrite_nographic}, {"nodefaults", rewrite_nodefaults},
    {"display", rewrite_display}, {"vnc", rewrite_display}, {"spice", rewrite_display},
    {"full-screen", rewrite_drop},
    /* the world outside */
    {"netdev", rewrite_net}, {"nic", rewrite_net}, {"net", rewrite_net},
    {"tpmdev", rewrite_tpmdev},
    /* who it is */
    {"name", rewrite_name},
    /* what cannot be seen from here */
    {"readconfig", rewrite_config}, {"add-fd", rewrite_drop}, /* check_fdsets() */
    /* files: all others are in option_files.c */
    {"set", option_files_set}, {"global", option_files_global}, {"icount", option_files_icount},
    {"plugin", option_files_plugin},
};

static const char *const without_argument[] = {
    "h", "help", "version", "mem-prealloc", "snapshot", "usb", "nographic", "full-screen",
    "win2k-hack", "no-fd-bootchk", "preconfig", "S", "s", "enable-kvm", "xen-attach",
    "xen-domid-restrict", "no-reboot", "no-shutdown", "daemonize", "only-migratable", "nodefaults",
    "semihosting", "old-param", "no-user-config", "nouserconfig", "enable-sync-profile", "perfmap",
    "jitdump", "no-acpi", "no-hpet", "enable-fips", "singlestep", "async-teardown"};

#define N(a) (sizeof(a) / sizeof((a)[0]))

/* --- simple ones --- */

static int rewrite_drop(struct rewrite *r, const char *option, const char *value)
{
    (void)r;
    (void)option;
    (void)value;
    return 0;
}

static int refuse_option(struct rewrite *r, const char *option, const char *value)
{
    return ff_error_set(
        r->why, ENOTSUP,
        "the parent was started with -%s %s: its command line does not show what that stands "
        "for%s; start the parent without it",
        option, value,
        strcmp(option, "readconfig") ? ""
                                     : ", and the file cannot be read, was changed since, or has "
                                       "more than devices, drives, chardevs, netdevs and objects");
}

/* Its own has the place of the parent's */
static int rewrite_config(struct rewrite *r, const char *option, const char *value)
{
    return identity_is_config(value) ? 0 : refuse_option(r, option, value);
}

/* Another program has the state of the TPM, for this one guest */
static int rewrite_tpmdev(struct rewrite *r, const char *option, const char *value)
{
    FF_AUTO_FREE char *type = qemu_opts_get_first(value, "type");

    if (r->s->tpm && type && !strcmp(type, "emulator")) { /* QEMU sends its state */
        rewrite_emit(r, option, value);
        return 0;
    }
    return ff_error_set(
        r->why, ENOTSUP, "-%s %s: the TPM's state is in a program or device of its own (swtpm), %s",
        option, value,
        r->s->incoming ? "which stays here: start an swtpm on the other host, and name its control "
                         "socket by --tpm; or start the parent without a TPM"
                       : "which no second guest can share: start the parent without a TPM");
}

/* Its parent is an agent, or a QEMU that it is forked off: these end before it does */
static int rewrite_run_with(struct rewrite *r, const char *option, const char *value)
{
    FF_AUTO_FREE char *rest = qemu_opts_drop(value, "exit-with-parent");

    if (qemu_opts_is(value, "exit-with-parent"))
        rewrite_note(r, "-%s %s: QEMU does not end with who started it %s", option, value, rewrite_where(r));
    if (*rest)
        rewrite_emit(r, option, rest);
    return 0;
}

/* A name for the process would be that of all of them */
static int rewrite_name(struct rewrite *r, const char *option, const char *value)
{
    FF_AUTO_FREE char *v = qemu_opts_drop(value, "process");

    rewrite_emit(r, option, v);
    return 0;
}

static int rewrite_pidfile(struct rewrite *r, const char *option, const char *value)
{
    if (r->s->incoming)
        rewrite_emit(r, option, value);
    return 0;
}

#define HUGETLBFS 0x958458f6

/* Memory of pages of this size; 0: ordinary ones */
static unsigned long huge_page(const char *path)
{
    struct statfs s;

    return path && !statfs(path, &s) && s.f_type == HUGETLBFS ? (unsigned long)s.f_bsize : 0;
}

/* In a folder memory is in a file without a name, each process has its own: what matters of it is the page. A private
 * view of a file cannot be watched from outside */
static int rewrite_mem_path(struct rewrite *r, const char *option, const char *value)
{
    struct stat st;

    if (r->s->incoming && huge_page(value) && !stat(value, &st) && S_ISDIR(st.st_mode))
        rewrite_emit(r, option, value);
    return 0;
}

/* Private huge pages, which a move cannot fill: shared ones are the same to the guest, and a memfd's unless told
 * otherwise */
static bool is_private_huge(const struct rewrite *r, const char *type, const char *value)
{
    FF_AUTO_FREE char *huge = qemu_opts_get(value, "hugetlb"), *share = qemu_opts_get(value, "share");

    return r->s->incoming && !strcmp(type, "memory-backend-memfd") && huge && qemu_opts_is(value, "hugetlb") && share &&
           !qemu_opts_is(value, "share");
}

/* Guest memory is mapped from the agent's over whatever the child has, or comes from the parent:
 * the parent's file must not be opened, since firmware is written to memory before that. The name
 * of the block stays. */
/* A private view of the agent's file lies over the memory of such a child, of which QEMU knows nothing: it must have no file
 * of its own that a device could give to another process (vhost-user). Huge pages are in one all the same: not shared, and none is
 * set aside for what nobody will touch */
static char *without_file(const char *type, const char *value)
{
    static const char *const kept[] = {"id", "size", "merge", "dump", "host-nodes", "policy", "reserve",
                                       "x-use-canonical-path-for-ramblock-id", NULL};
    FF_AUTO_FREE char *huge = qemu_opts_get(value, "hugetlb");

    if (strcmp(type, "memory-backend-memfd"))
        return xstrdup(value);
    if (huge && qemu_opts_is(value, "hugetlb")) {
        const bool json = *value == '{';
        FF_AUTO_FREE char *own = qemu_opts_drop(value, "share"), *few = qemu_opts_drop(own, "reserve");

        return json ? xprintf("%.*s,\"share\":false,\"reserve\":false}", (int)strlen(few) - 1, few)
                    : xprintf("%s,share=off,reserve=off", few);
    }
    FF_AUTO_FREE char *few = qemu_opts_only(value, "qom-type", kept);
    return qemu_opts_set_first(few, "qom-type", "memory-backend-ram");
}

static int rewrite_object(struct rewrite *r, const char *option, const char *value)
{
    static const char *const kept[] = {"id", "size", "merge", "dump", "host-nodes", "policy",
                                       "x-use-canonical-path-for-ramblock-id", NULL};
    FF_AUTO_FREE char *type = qemu_opts_get_first(value, "qom-type");

    if (type && !strcmp(type, "memory-backend-file")) {
        FF_AUTO_FREE char *path = qemu_opts_get(value, "mem-path");
        unsigned long huge = huge_page(path);
        FF_AUTO_FREE char *few = qemu_opts_only(value, "qom-type", kept);
        FF_AUTO_FREE char *ram = qemu_opts_set_first(few, "qom-type",
                                             huge ? "memory-backend-memfd" : "memory-backend-ram");
        FF_AUTO_FREE char *pages =
            huge ? xprintf("%s,hugetlb=on,hugetlbsize=%lu", ram, huge) : NULL;
        if (huge && *ram == '{') {
            free(pages);
            pages = xprintf("%.*s,\"hugetlb\":true,\"hugetlbsize\":%lu}", (int)strlen(ram) - 1,
                            ram, huge);
        }
        FF_AUTO_FREE char *own = huge && !r->s->incoming ? without_file("memory-backend-memfd", pages) : NULL;
        rewrite_emit(r, option, own ? own : huge ? pages : ram);
    } else if (type && !strncmp(type, "memory-backend-", 15)) {
        FF_AUTO_FREE char *lazy = qemu_opts_drop(value, "prealloc");
        FF_AUTO_FREE char *shared = is_private_huge(r, type, value) ? qemu_opts_drop(lazy, "share") : NULL;
        FF_AUTO_FREE char *own = !r->s->incoming ? without_file(type, lazy) : NULL;
        rewrite_emit(r, option, own ? own : shared ? shared : lazy);
    } else {
        rewrite_emit(r, option, value);
    }
    return 0;
}

static int rewrite_nographic(struct rewrite *r, const char *option, const char *value)
{
    r->nographic = true;
    rewrite_emit(r, option, value);
    return 0;
}

static int rewrite_nodefaults(struct rewrite *r, const char *option, const char *value)
{
    r->nodefaults = true;
    rewrite_emit(r, option, value);
    return 0;
}

static int rewrite_display(struct rewrite *r, const char *option, const char *value)
{
    if (r->s->incoming && strcmp(value, "none"))
        rewrite_note(r, "-%s %s: there is no display %s", option, value, rewrite_where(r));
    if (!r->has_display)
        rewrite_emit(r, "display", "none");
    r->has_display = true;
    return 0;
}

/* --- the walk --- */

static bool takes_argument(const char *option)
{
    for (size_t i = 0; i < N(without_argument); i++)
        if (!strcmp(option, without_argument[i]))
            return false;
    return true;
}

/* @word is -@option or --@option */
static int rewrite_one(struct rewrite *r, const char *word, const char *option, const char *value)
{
    if (value && !qemu_opts_valid(value))
        return ff_error_set(r->why, EINVAL, "the parent's -%s %s: no valid JSON", option, value);
    FF_AUTO_FREE char *own = value ? option_files_own(r, option, value) : NULL;
    for (size_t i = 0; i < N(rules); i++)
        if (!strcmp(option, rules[i].option))
            return rules[i].fn(r, option, own);
    strv_add(r->out, "%s", word);
    if (own)
        strv_add(r->out, "%s", own);
    return 0;
}

/* The dynamic loader, which a QEMU was started with: "ld.so --library-path DIR QEMU -m 64" */
static bool is_loader(const char *exe)
{
    const char *slash = strrchr(exe, '/');
    const char *name = slash ? slash + 1 : exe;

    return !strncmp(name, "ld-linux", 8) || !strncmp(name, "ld.so", 5);
}

void command_line_name_disk(struct strv *argv, const char *exe)
{
    struct strv out = {0};
    bool is_program = is_loader(exe); /* of the next bare word */

    for (size_t i = 0; i < argv->n; i++) {
        const char *word = argv->v[i], *option = word + 1;
        bool is_option = i && *word == '-';
        if (i && !is_option && !is_program)
            strv_add(&out, "-hda");
        is_program = is_program && (!i || is_option);
        strv_add(&out, "%s", word);
        option += is_option && *option == '-';
        if (is_option && takes_argument(option) && i + 1 < argv->n)
            strv_add(&out, "%s", argv->v[++i]);
    }
    strv_free(argv);
    *argv = out;
}

void command_line_drop_loader(struct strv *argv, const char *exe)
{
    size_t program = 1;

    while (program < argv->n && *argv->v[program] == '-') {
        const char *option = argv->v[program] + 1;

        program += takes_argument(option + (*option == '-')) ? 2 : 1;
    }
    if (!is_loader(exe) || program >= argv->n)
        return;
    for (; program; program--)
        strv_drop(argv, 1);
}

char *command_line_relative(char *const *argv)
{
    for (argv += *argv != NULL; *argv; argv++) {
        const char *word = *argv, *option = word + 1;
        option += *option == '-';
        if (!takes_argument(option))
            continue;
        if (!*++argv)
            break;
        if (option_files_relative(option, *argv))
            return xprintf("%s %s", word, *argv);
    }
    return NULL;
}

/* Files behind descriptors that somebody handed over, as libvirt does for logs: what writes to a file
 * has one of the child's own by now. Nobody knows what another stands for */
static int check_fdsets(const struct rewrite *r)
{
    for (size_t i = 1; i < r->out->n; i++)
        if (strstr(r->out->v[i], "/dev/fdset/"))
            return ff_error_set(r->why, ENOTSUP,
                                "the parent was started with -add-fd, and %s %s: its command line "
                                "does not show what that stands for; start the parent without it",
                                r->out->v[i - 1], r->out->v[i]);
    return 0;
}

/* The bridge helper is what NET_BRIDGE asks for */
static bool is_asked_for(const struct rewrite *r, const char *value)
{
    FF_AUTO_FREE char *type = qemu_opts_get_first(value, "type"), *helper = qemu_opts_get(value, "helper");

    return r->s->net == NET_BRIDGE && type && !strcmp(type, "bridge") && !helper;
}

static int check_programs(const struct rewrite *r)
{
    for (size_t i = 2; i < r->out->n && !r->s->programs; i++)
        if (command_line_starts_program(r->out->v[i - 1], r->out->v[i]) && !is_asked_for(r, r->out->v[i]))
            return ff_error_set(r->why, EPERM,
                                "%s %s: its QEMU would start a program that the command line names, and a QEMU "
                                "that was taken over can change its command line: if that is yours, give --unconfined",
                                r->out->v[i - 1], r->out->v[i]);
    return 0;
}

char *command_line_monitor(const struct vm_spec *s)
{
    return xprintf("%s/%u.beside", s->rundir, s->number);
}

/* What every child has besides */
static void add_own(struct rewrite *r)
{
    const struct vm_spec *s = r->s;

    if (!r->nographic && !r->has_display)
        rewrite_emit(r, "display", "none");
    if (r->nographic && !r->nodefaults) { /* else it puts both on the terminal */
        if (!r->has_serial) {
            FF_AUTO_FREE char *path = rewrite_path(r, "serial");
            FF_AUTO_FREE char *file = xprintf("file:%s", path);
            rewrite_emit(r, "serial", file);
        }
        rewrite_emit(r, "monitor", "none");
    }
    if (!s->incoming) {
        FF_AUTO_FREE char *path = command_line_monitor(s);
        strv_add(r->out, "-S");
        strv_add(r->out, "-qmp");
        strv_add(r->out, "unix:%s,server=on,wait=off", path);
    }
    strv_add(r->out, "-qmp");
    strv_add(r->out, "unix:%s/%u.qmp,server=on,wait=off", s->rundir, s->number);
    if (s->config)
        rewrite_emit(r, "readconfig", s->config);
    strv_add(r->out, "-incoming");
    strv_add(r->out, "%s", s->incoming ? s->incoming : "defer");
}

/* "RUNDIR/N." of a child, by the QMP socket that add_own() made; NULL: no child */
static char *find_own(char *const *argv)
{
    static const char end[] = ".qmp,server=on,wait=off";

    for (; argv[0] && argv[1] && argv[2]; argv++) {
        size_t len = strlen(argv[1]), head = len > sizeof(end) ? len - sizeof(end) + 1 : 0;
        if (strcmp(argv[0], "-qmp") || strncmp(argv[1], "unix:/", 6) || !head ||
            strcmp(argv[1] + head, end) ||
            (strcmp(argv[2], "-readconfig") && strcmp(argv[2], "-incoming")))
            continue;
        const char *name = (const char *)memrchr(argv[1], '/', head) + 1, *dot = argv[1] + head;
        if (name != dot && name + strspn(name, "0123456789") == dot)
            return xprintf("%.*s.", (int)(head - 5), argv[1] + 5);
    }
    return NULL;
}

int command_line_rewrite(char *const *parent, const struct vm_spec *s, struct strv *out,
               struct strv *notes, struct ff_error *why)
{
    struct rewrite r = {.s = s, .out = out, .notes = notes, .why = why, .parent = parent,
                        .own = find_own(parent)};
    int rc = 0;

    strv_add(&r.paths, "%s/%u.qmp", s->rundir, s->number);
    strv_add(&r.paths, "%s/%u.beside", s->rundir, s->number);
    strv_add(&r.paths, "%s/%u.log", s->rundir, s->number);
    strv_add(out, "%s", s->qemu);
    for (parent += *parent != NULL; *parent && rc >= 0; parent++) {
        const char *word = *parent, *option = word + 1, *value = NULL;
        option += *option == '-';
        if (takes_argument(option) && !(value = *++parent)) {
            rc = ff_error_set(why, EINVAL, "the parent's command line ends with %s", word);
            break;
        }
        rc = rewrite_one(&r, word, option, value);
    }
    if (rc >= 0)
        rc = check_fdsets(&r);
    if (!rc)
        rc = check_programs(&r);
    if (!rc)
        add_own(&r);
    strv_free(&r.paths);
    free(r.own);
    return rc < 0 ? rc : 0;
}
