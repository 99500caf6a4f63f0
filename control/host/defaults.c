/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * defaults.c - what is taken where vmclone and farfork move are told nothing else
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "defaults.h"
#include "rundir.h"

bool parse_number(const char *text, unsigned max, unsigned *out)
{
    char *end;
    unsigned long n = strtoul(text, &end, 10);

    if (*text < '0' || *text > '9' || *end || n < 1 || n > max)
        return false;
    *out = (unsigned)n;
    return true;
}

/* After the socket's name, and four digits by chance: "vm1-3f2a" */
char *defaults_id(const char *path)
{
    const char *slash = strrchr(path, '/');
    FF_AUTO_FREE char *name = rundir_name_from(slash ? slash + 1 : path);
    unsigned short r = 0;

    if (getrandom(&r, sizeof(r), 0) < 0)
        r = (unsigned short)getpid();
    name[strcspn(name, ".")] = '\0';
    return xprintf("%.30s-%04x", name, r);
}

/* farfork in this program's folder */
char *defaults_agent(void)
{
    char path[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);

    if (n <= 0)
        return xstrdup("farfork");
    path[n] = '\0';
    *strrchr(path, '/') = '\0';
    return xprintf("%s/farfork", path);
}

/* Relative paths would mean something else where the agent is */
char *defaults_absolute_path(const char *path)
{
    char *cwd = *path == '/' ? NULL : getcwd(NULL, 0);
    char *out = cwd ? xprintf("%s/%s", cwd, path) : xstrdup(path);

    free(cwd);
    return out;
}
