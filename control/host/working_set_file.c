/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * working_set_file.c - see working_set_file.h
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "rundir.h"
#include "working_set_file.h"

#define HEADER "farfork working set 1\n"
#define OF_PARENT ".working-set-"
#define TEXT_MAX (4u << 20) /* twice what an agent says, mostly */

bool working_set_is_text(const char *text)
{
    size_t n = 0;

    while (n <= TEXT_MAX && text[n] >= ' ' && text[n] <= '~')
        n++;
    return !text[n] && n <= TEXT_MAX;
}

static char *base_for(const char *rundir)
{
    return rundir ? xstrdup(rundir) : rundir_base();
}

char *working_set_path(const char *rundir, pid_t pid)
{
    FF_AUTO_FREE char *base = base_for(rundir);

    return rundir_is_own(base) ? xprintf("%s/" OF_PARENT "%d-%llu", base, (int)pid,
                                         (unsigned long long)process_start_time(pid))
                               : NULL;
}

/* Without its header and the line's end */
int working_set_load(const char *path, char **out, struct ff_error *why)
{
    FILE *in = fopen(path, "re");
    char *line = NULL;
    size_t room = 0;
    struct stat st;

    if (!in && errno == ENOENT)
        return 1;
    if (!in)
        return ff_error_set(why, errno, "working set %s: %s", path, strerror(errno));
    bool good = !fstat(fileno(in), &st) && S_ISREG(st.st_mode) && st.st_size <= TEXT_MAX + 100 &&
                getline(&line, &room, in) > 0 && !strcmp(line, HEADER) &&
                getline(&line, &room, in) > 0;
    fclose(in);
    if (good)
        line[strcspn(line, "\n")] = '\0';
    if (!good || !working_set_is_text(line)) {
        free(line);
        return ff_error_set(why, EINVAL, "working set %s: want a file that vmclone wrote, or none", path);
    }
    *out = line;
    return 0;
}

int working_set_store(const char *path, const char *text, struct ff_error *why)
{
    FF_AUTO_FREE char *fresh = xprintf("%s.%d", path, (int)getpid());
    FILE *out = fopen(fresh, "wxe");

    if (!out)
        return ff_error_set(why, errno, "%s: %s", fresh, strerror(errno));
    bool bad = fchmod(fileno(out), 0600) < 0 || fprintf(out, HEADER "%s\n", text) < 0;
    bad |= fclose(out) != 0;
    if (!bad && !rename(fresh, path))
        return 0;
    int rc = ff_error_set(why, errno, "%s: %s", path, strerror(errno));
    unlink(fresh);
    return rc;
}

/* Of QEMUs that have ended */
static void forget_dead(const char *base)
{
    DIR *d = opendir(base);
    struct dirent *e;
    int pid;
    unsigned long long start;

    while (d && (e = readdir(d)))
        if (sscanf(e->d_name, OF_PARENT "%d-%llu", &pid, &start) == 2 && process_look(pid, start) == PROCESS_GONE)
            unlinkat(dirfd(d), e->d_name, 0);
    if (d)
        closedir(d);
}

int working_set_keep(const char *rundir, pid_t pid, const char *text, struct ff_error *why)
{
    FF_AUTO_FREE char *base = base_for(rundir), *path = working_set_path(rundir, pid);

    if (!path)
        return 0;
    forget_dead(base);
    return working_set_store(path, text, why);
}
