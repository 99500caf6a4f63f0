/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * preflight.c - what a fork needs of a host, checked before the parent is frozen
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      a fork that cannot succeed must not touch the parent: not pause it, not lengthen the
 *              chain of its disks. vmclone says what it will need (fork_check.c); the agent of each
 *              host looks, with the rights, limits and mounts that the children will have.
 * Limits       what is free now may be taken a moment later: a fork that fails after its freeze
 *              writes the parent's overlays back (fork_commit.c).
 *              A program answers within PROGRAM_LIMIT_MS.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "autojson.h"
#include "farfork-probe.h"
#include "folder.h"
#include "preflight.h"
#include "same_file.h"
#include "spawn.h"

#define PROGRAM_LIMIT_MS 20000 /* it takes 20 ms */

/* What is there is not the child's: it would be written over, and removed at its end */
static int check_files(const json_t *files, struct ff_error *why)
{
    struct stat st;
    json_t *f;
    size_t i;

    json_array_foreach(files, i, f)
        if (json_is_string(f) && !lstat(json_string_value(f), &st))
            return ff_error_set(why, EEXIST,
                                "create %s: the file exists; take another fork id (--id), or "
                                "remove it if no guest uses it",
                                json_string_value(f));
    return 0;
}

/* An option of the child names a file in it */
static int check_cwd(const char *cwd, struct ff_error *why)
{
    if (!cwd || !access(cwd, X_OK))
        return 0;
    return ff_error_set(why, errno,
                        "the folder %s, in which the parent was started, and in which an option names a "
                        "file: %s: start the parent with absolute names", cwd, strerror(errno));
}

/* --- descriptors --- */

int preflight_descriptors(pid_t pid, const char *who, uint64_t need, struct ff_error *why)
{
    struct rlimit lim;

    if (prlimit(pid, RLIMIT_NOFILE, NULL, &lim) < 0 || lim.rlim_cur >= need)
        return 0;
    if (lim.rlim_max < need)
        return ff_error_set(
            why, EMFILE,
            "open files: the limit of %s is %llu, but it needs %llu: raise it (ulimit -n, "
            "limits.conf, LimitNOFILE=)",
            who, (unsigned long long)lim.rlim_max, (unsigned long long)need);
    lim.rlim_cur = need;
    if (prlimit(pid, RLIMIT_NOFILE, &lim, NULL) < 0)
        return ff_error_set(why, errno, "open files: raise the limit of %s to %llu: %s", who,
                      (unsigned long long)need, strerror(errno));
    return 0;
}

/* --- farfork doctor --- */

struct wanted {
    const json_t *subjects;
    struct ff_error *why;
    int rc;
};

static void take_check(void *opaque, const char *subject, enum ff_check result, const char *text)
{
    struct wanted *w = opaque;
    json_t *s;
    size_t i;

    json_array_foreach(w->subjects, i, s)
        if (!w->rc && result == FF_CHECK_NO && !strcmp(json_string_value(s), subject))
            w->rc = ff_error_set(w->why, ENOTSUP, "%s: %s", subject, text);
}

static int check_subjects(const json_t *subjects, struct ff_error *why)
{
    struct wanted w = {.subjects = subjects, .why = why};

    if (json_array_size(subjects))
        ff_host_check(take_check, &w);
    return w.rc;
}

/* --- the children's program --- */

static void read_greeting(void *opaque, const char *line)
{
    bool *greeted = opaque;
    FF_AUTO_JSON json_t *m = json_loads(line, 0, NULL);

    *greeted |= json_object_get(m, "QMP") != NULL;
}

static int check_program(const json_t *words, struct ff_error *why)
{
    static const char ask[] = "{\"execute\":\"qmp_capabilities\"}\n{\"execute\":\"quit\"}\n";
    const char *program = json_string_value(json_array_get(words, 0));
    struct strv argv = {0};
    bool greeted = false;
    struct spawn r;

    strv_add_json(&argv, words);
    int rc = program ? spawn_start(&r, argv.v, NULL, why) : 0;
    strv_free(&argv);
    if (rc || !program)
        return rc;
    jsonl_write(r.in, ask, strlen(ask), PROGRAM_LIMIT_MS); /* who does not read fails below */
    int status = -1;
    bool ended = spawn_read_lines(&r, PROGRAM_LIMIT_MS, read_greeting, &greeted) &&
                 spawn_ended(&r, SPAWN_ENDS_MS, &status);
    spawn_end(&r, 0);
    const char *said = r.words ? r.words : "no message";
    if (!ended)
        rc = ff_error_set(why, ETIMEDOUT, "%s: it does not start within %d s: %s", program,
                    PROGRAM_LIMIT_MS / 1000, said);
    else if (WIFSIGNALED(status))
        rc = ff_error_set(why, ENOEXEC, "%s: it does not start: SIG%s: %s", program,
                    sigabbrev_np(WTERMSIG(status)), said);
    else if (WEXITSTATUS(status))
        rc = ff_error_set(why, ENOEXEC, "%s: it does not start: exit code %d: %s", program,
                    WEXITSTATUS(status), said);
    else if (!greeted)
        rc = ff_error_set(why, ENOTSUP, "%s: it is no QEMU: name one by --qemu", program);
    spawn_free(&r);
    return rc;
}

/* --- the processor --- */

static bool same_register(const json_t *a, const json_t *b)
{
    static const char *const keys[] = {"cpuid-input-eax", "cpuid-input-ecx", "cpuid-register"};

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        const json_t *x = json_object_get(a, keys[i]), *y = json_object_get(b, keys[i]);
        if (x != y && !json_equal(x, y)) /* the second may be in neither */
            return false;
    }
    return true;
}

/* Flags that follow from the threads of -smp, which both have: a QEMU before 10.0 adds them later */
static json_int_t of_threads(const json_t *word)
{
    const char *reg = text_of(word, "cpuid-register");
    json_int_t leaf = json_integer_value(json_object_get(word, "cpuid-input-eax"));

    return leaf == 1 && !strcmp(reg, "EDX")            ? 1 << 28  /* ht */
           : leaf == 0x80000001 && !strcmp(reg, "ECX") ? 1 << 1 /* cmp-legacy */
                                                       : 0;
}

bool processor_lacks_any(const json_t *here, const json_t *there)
{
    size_t i, k;
    json_t *a, *b;

    json_array_foreach(here, i, a) {
        json_int_t has = 0;
        json_array_foreach(there, k, b)
            if (same_register(a, b))
                has = json_integer_value(json_object_get(b, "features"));
        if (json_integer_value(json_object_get(a, "features")) & ~has & ~of_threads(a))
            return true;
    }
    return false;
}

/* What QEMU says of its CPU: the answer that has a flag's name is about that */
struct flags {
    const json_t *words; /* the parent's */
    bool lacks;
    struct strv missing;
};

static void read_flag(void *opaque, const char *line)
{
    struct flags *f = opaque;
    FF_AUTO_JSON json_t *m = json_loads(line, 0, NULL);
    const json_t *value = json_object_get(m, "return");

    if (json_is_array(value))
        f->lacks = processor_lacks_any(f->words, value);
    else if (json_is_false(value) && *text_of(m, "id"))
        strv_add(&f->missing, "%s", text_of(m, "id"));
}

static void add_question(char **text, const json_t *want, const char *property)
{
    FF_AUTO_JSON json_t *q =
        json_pack("{ss ss s{ss ss}}", "execute", "qom-get", "id", property, "arguments", "path",
                  text_of(want, "cpu"), "property", property);
    FF_AUTO_FREE char *line = json_dumps(q, JSON_COMPACT), *old = *text;

    *text = xprintf("%s%s\n", old, line ? line : "");
}

static char *ask_flags(const json_t *want)
{
    char *text = xstrdup("{\"execute\":\"qmp_capabilities\"}\n");
    size_t i;
    json_t *flag;

    add_question(&text, want, "feature-words");
    json_array_foreach(json_object_get(want, "flags"), i, flag)
        add_question(&text, want, json_string_value(flag));
    FF_AUTO_FREE char *old = text;
    return xprintf("%s{\"execute\":\"quit\"}\n", old);
}

/* A machine like the children's, without memory and devices: does its CPU have the flags that the
 * parent's has? One that does not start says nothing of that: the children will say why */
static int check_processor(const json_t *want, struct ff_error *why)
{
    FF_AUTO_FREE char *ask = ask_flags(want), *names = xstrdup("");
    struct strv argv = {0};
    struct flags f = {.words = json_object_get(want, "words")};
    struct spawn r;
    struct ff_error ignored;

    strv_add_json(&argv, json_object_get(want, "program"));
    int rc = argv.n ? spawn_start(&r, argv.v, NULL, &ignored) : -ENOENT;
    strv_free(&argv);
    if (rc)
        return 0;
    jsonl_write(r.in, ask, strlen(ask), PROGRAM_LIMIT_MS);
    spawn_read_lines(&r, PROGRAM_LIMIT_MS, read_flag, &f);
    spawn_end(&r, 0);
    for (size_t i = 0; i < f.missing.n; i++) {
        FF_AUTO_FREE char *old = names;
        names = xprintf("%s %s", old, f.missing.v[i]);
    }
    if (f.lacks || f.missing.n)
        rc = ff_error_set(why, json_object_get(want, "flags") ? ENOTSUP : EXDEV,
                          "the parent's CPU has flags that this host does not give it:%.400s; start "
                          "the parent with a CPU model that all hosts have (-cpu; not host or max)",
                          f.missing.n ? names : " (QEMU does not name them)");
    strv_free(&f.missing);
    spawn_free(&r);
    return rc;
}

int preflight_check(const json_t *want, struct ff_error *why)
{
    const char *folder = json_string_value(json_object_get(want, "folder"));
    json_int_t bytes = json_integer_value(json_object_get(want, "bytes"));
    json_int_t descriptors = json_integer_value(json_object_get(want, "descriptors"));
    int rc = 0;

    if (folder)
        rc = folder_has_room(folder, (uint64_t)bytes, "scratch folder", "--scratch", why);
    if (!rc)
        rc = check_files(json_object_get(want, "files"), why);
    if (!rc)
        rc = check_cwd(json_string_value(json_object_get(want, "cwd")), why);
    if (!rc)
        rc = same_files_check(json_object_get(want, "same"), why);
    if (!rc)
        rc = preflight_descriptors(0, "an agent", (uint64_t)descriptors, why);
    if (!rc)
        rc = check_subjects(json_object_get(want, "checks"), why);
    if (!rc)
        rc = check_program(json_object_get(want, "program"), why);
    return rc ? rc : check_processor(json_object_get(want, "processor"), why);
}
