/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * process_argv.c - what a process of this host was started with, and what it uses
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "process_argv.h"

#define WORDS_MAX_BYTES (4u << 20)

/* Words that end with a zero each: 0, or -errno */
static int read_words(const char *path, struct strv *out)
{
    FF_AUTO_FREE char *text = xcalloc(WORDS_MAX_BYTES + 1, 1);
    FF_AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t len = 0;
    ssize_t n = -1;

    while (fd >= 0 && len < WORDS_MAX_BYTES && (n = read(fd, text + len, WORDS_MAX_BYTES - len)) > 0)
        len += (size_t)n;
    if (n < 0)
        return -errno;
    for (size_t at = 0; at < len; at += strlen(text + at) + 1)
        strv_add(out, "%s", text + at);
    return 0;
}

/* ".../slurm.../job_N/step_M..."; NULL: it is in none */
static char *job_of_group(pid_t pid)
{
    FF_AUTO_FREE char *path = xprintf("/proc/%d/cgroup", (int)pid), *line = NULL;
    FILE *f = fopen(path, "re");
    char *id = NULL;
    size_t room = 0;

    while (f && !id && getline(&line, &room, f) > 0) {
        const char *slurm = strstr(line, "/slurm"), *job = slurm ? strstr(slurm, "/job_") : NULL;
        if (job)
            id = xprintf("%.*s", (int)strcspn(job + 5, "/\n"), job + 5);
    }
    if (f)
        fclose(f);
    return id;
}

char *process_job(pid_t pid)
{
    static const char *const says[] = {"SLURM_JOB_ID=", "PBS_JOBID=", "LSB_JOBID="};
    FF_AUTO_FREE char *path = xprintf("/proc/%d/environ", (int)pid);
    struct strv words = {0};
    const char *id = "";
    char *of_group = job_of_group(pid);

    if (of_group)
        return of_group;
    read_words(path, &words);
    for (size_t i = 0; i < words.n && !*id; i++)
        for (size_t k = 0; k < FF_ARRAY_LEN(says); k++)
            if (!strncmp(words.v[i], says[k], strlen(says[k])))
                id = words.v[i] + strlen(says[k]);
    char *out = xstrdup(id);
    strv_free(&words);
    return out;
}

uint64_t process_pss_bytes(pid_t pid)
{
    char path[64], line[128];
    unsigned long long kib = 0;

    snprintf(path, sizeof(path), "/proc/%d/smaps_rollup", (int)pid);
    FILE *f = fopen(path, "re");
    while (f && !kib && fgets(line, sizeof(line), f))
        sscanf(line, "Pss: %llu", &kib);
    if (f)
        fclose(f);
    return kib << 10;
}

int process_argv(pid_t pid, struct strv *out, struct ff_error *why)
{
    FF_AUTO_FREE char *path = xprintf("/proc/%d/cmdline", (int)pid);
    size_t before = out->n;
    int rc = read_words(path, out);

    if (rc)
        return ff_error_set(why, -rc, "%s: %s: vmclone and farfork move need the parent's command line", path,
                            strerror(-rc));
    return out->n > before ? 0 : ff_error_set(why, ESRCH, "%s: empty: the process has ended", path);
}
