/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * fork_working_set.c - hosts are told which pages earlier children touched, and tell which theirs did
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      what children of one parent touch first is much the same from fork to fork. It comes
 *              before all else: migrate/working_set.h.
 * Picture      FILE, or the parent's own in the run directory --> every agent, before the export
 *              the first agent that has children which touched something --> FILE, when all is over
 *              What an agent says has what it was told, and what came on top: nothing is merged here.
 *              So an agent's word goes to the agents of later forks: of it printable ASCII is kept, of
 *              some length.
 * Failure      a FILE that was named and is not one: no fork. All else is said, and costs only time.
 */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fork.h"
#include "rundir.h"

#define HEADER "farfork working set 1\n"
#define OF_PARENT ".working-set-"
#define TEXT_MAX (4u << 20) /* twice what an agent says, mostly */

static bool is_off(const struct fork *f)
{
    return f->o->working_set && !strcmp(f->o->working_set, "none");
}

static char *run_base(const struct fork *f)
{
    return f->s.o.rundir ? xstrdup(f->s.o.rundir) : rundir_base();
}

/* Named, or this parent's: gone with it (forget_dead()) */
static char *path_of(const struct fork *f)
{
    if (f->o->working_set)
        return xstrdup(f->o->working_set);
    FF_AUTO_FREE char *base = run_base(f);
    return xprintf("%s/" OF_PARENT "%d-%llu", base, (int)f->s.parent_pid,
                   (unsigned long long)process_start_time(f->s.parent_pid));
}

/* One line, which JSON can carry, and agents take in time */
static bool is_text(const char *text)
{
    size_t n = 0;

    while (n <= TEXT_MAX && text[n] >= ' ' && text[n] <= '~')
        n++;
    return !text[n] && n <= TEXT_MAX;
}

/* Without its header and the line's end: 0; 1: there is none; -errno */
static int read_file(const char *path, char **out, struct ff_error *why)
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
    if (!good || !is_text(line)) {
        free(line);
        return ff_error_set(why, EINVAL, "working set %s: want a file that vmclone wrote, or none", path);
    }
    *out = line;
    return 0;
}

int fork_read_working_set(struct fork *f, struct ff_error *why)
{
    FF_AUTO_FREE char *base = run_base(f), *path = path_of(f);

    if (is_off(f) || (!f->o->working_set && !rundir_is_own(base)))
        return 0;
    int rc = read_file(path, &f->first, why);
    return rc < 0 && f->o->working_set ? rc : 0;
}

void fork_tell_working_set(struct fork *f)
{
    for (size_t i = 0; f->first && i < f->s.n_hosts; i++)
        if (f->s.hosts[i].state == HOST_LISTENING)
            host_send(&f->s.hosts[i], json_pack("{ss}", "first", f->first));
}

/* Of parents that have ended */
static void forget_dead(const char *base)
{
    DIR *d = opendir(base);
    struct dirent *e;
    int pid;
    unsigned long long start;

    while (d && (e = readdir(d)))
        if (sscanf(e->d_name, OF_PARENT "%d-%llu", &pid, &start) == 2 && !process_is(pid, start))
            unlinkat(dirfd(d), e->d_name, 0);
    if (d)
        closedir(d);
}

static int write_pages(const char *path, const char *text, struct ff_error *why)
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

void fork_keep_working_set(struct fork *f)
{
    const struct host *first = NULL;
    struct ff_error why;

    for (size_t i = 0; i < f->s.n_hosts; i++) {
        const struct host *h = &f->s.hosts[i];
        if (h->touched && is_text(h->touched) && !h->foreign && (!first || h->complete_ms < first->complete_ms))
            first = h;
    }
    if (is_off(f) || !first)
        return;
    FF_AUTO_FREE char *base = run_base(f), *path = path_of(f);
    if (!f->o->working_set) {
        if (!rundir_is_own(base))
            return;
        forget_dead(base);
    }
    if (write_pages(path, first->touched, &why))
        strv_add(&f->s.notes, "the next fork does not know what this one's children touched: %s", why.text);
}
