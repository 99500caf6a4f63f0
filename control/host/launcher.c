/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * launcher.c - how a command gets to another host: a template with {host} and {cmd}
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      {host} and {cmd} in a template become one shell command. ssh joins its arguments and
 *              hands them to the user's shell there, so for ssh the command is quoted twice.
 * Slurm        a job's hosts are reached by srun: what it starts is limited as the job is, accounted for,
 *              and ends with it. See launcher_ends_all().
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hostlist.h"
#include "launcher.h"

#define SAFE "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%_+=:,./-"

/* Step numbers from here on are no steps of srun's: the job's script, an interactive shell */
#define SLURM_STEPS 0xfffffff0u

static void append_text(char **out, const char *s, size_t len)
{
    char *more = xprintf("%s%.*s", *out, (int)len, s);

    free(*out);
    *out = more;
}

char *shell_quote(const char *word)
{
    if (*word && strspn(word, SAFE) == strlen(word))
        return xstrdup(word);
    char *out = xstrdup("'");
    for (;;) {
        size_t len = strcspn(word, "'");
        append_text(&out, word, len);
        if (!word[len])
            break;
        append_text(&out, "'\\''", 4);
        word += len + 1;
    }
    append_text(&out, "'", 1);
    return out;
}

char *shell_join(char *const *argv)
{
    char *out = xstrdup("");

    for (; *argv; argv++) {
        FF_AUTO_FREE char *q = shell_quote(*argv);
        if (*out)
            append_text(&out, " ", 1);
        append_text(&out, q, strlen(q));
    }
    return out;
}

static bool runs(const char *template, const char *program)
{
    size_t len = strcspn(template, " \t");
    const char *name = memrchr(template, '/', len);

    name = name ? name + 1 : template;
    len -= (size_t)(name - template);
    return len == strlen(program) && !strncmp(name, program, len);
}

const char *launcher_default(void)
{
    static char text[sizeof(LAUNCHER_SLURM) + 32];
    const char *job = getenv("SLURM_JOB_ID");

    if (!job || !*job || strlen(job) > 20 || strspn(job, "0123456789") != strlen(job) || hostlist_in_prolog())
        return LAUNCHER_DEFAULT;
    snprintf(text, sizeof(text), LAUNCHER_SLURM, job);
    return text;
}

bool launcher_ends_all(const char *template)
{
    return runs(template, "srun");
}

int launcher_check(const char *template, struct ff_error *why)
{
    if (strstr(template, "{cmd}") && strstr(template, "{host}"))
        return 0;
    return ff_error_set(why, EINVAL,
                        "launcher \"%s\": want a command with {host} and {cmd} in it, such "
                        "as \"" LAUNCHER_DEFAULT "\"",
                        template);
}

/* The variable may be of a step that has submitted this job */
static bool in_step(void)
{
    static const char *const no_steps[] = {"/step_batch", "/step_interactive", "/step_extern"};
    const char *step = getenv("SLURM_STEP_ID");
    FF_AUTO_FREE char *line = NULL;
    FILE *f = fopen("/proc/self/cgroup", "re");
    bool is = step && strtoul(step, NULL, 10) < SLURM_STEPS;
    size_t room = 0;

    while (f && is && getline(&line, &room, f) > 0)
        for (size_t i = 0; i < FF_ARRAY_LEN(no_steps); i++)
            is &= !strstr(line, no_steps[i]);
    if (f)
        fclose(f);
    return is;
}

int launcher_check_step(struct ff_error *why)
{
    if (!in_step())
        return 0;
    return ff_error_set(why, EPERM, "this is a step of its own in the job, and with it ends all that it starts: do it "
                        "in the job's script, or let vmclone --follow stay");
}

char *launcher_line(const char *template, const char *host, char *const *argv)
{
    char *out = xstrdup("");
    FF_AUTO_FREE char *h = shell_quote(host), *line = shell_join(argv);
    FF_AUTO_FREE char *twice = shell_quote(line);
    /* ssh joins its arguments and gives them to the user's shell there */
    const char *cmd = runs(template, "ssh") ? twice : line;

    while (*template) {
        size_t len = strcspn(template, "{");
        append_text(&out, template, len);
        template += len;
        if (!strncmp(template, "{host}", 6)) {
            append_text(&out, h, strlen(h));
            template += 6;
        } else if (!strncmp(template, "{cmd}", 5)) {
            append_text(&out, cmd, strlen(cmd));
            template += 5;
        } else if (*template) {
            append_text(&out, template++, 1);
        }
    }
    return out;
}
