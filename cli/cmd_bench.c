/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * cmd_bench.c - farfork bench: run the benchmark program, which is Python
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      find bench/bench.py and become it: $FARFORK_BENCH, or as seen from the program's own
 *              folder that of an installed Farfork or of a checkout, with the folder of what it
 *              runs, unless FARFORK_BUILD names another one.
 */
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

/* From bin/ of what scripts/install.mk installs; from build/bin/ of a checkout */
#define INSTALLED "/../share/farfork/bench/bench.py"
#define CHECKOUT "/../../bench/bench.py"
#define EXIT_SKIP 77

/* The folder that this program is in: 0, or -errno */
static int own_folder(char *out, size_t room)
{
    ssize_t n = readlink("/proc/self/exe", out, room - 1);

    if (n < 0)
        return -errno;
    out[n] = '\0';
    *strrchr(out, '/') = '\0'; /* the link is absolute */
    return 0;
}

int cmd_bench(int argc, char **argv)
{
    char folder[PATH_MAX], script[PATH_MAX + sizeof(INSTALLED)], build[PATH_MAX + 20];
    const char *named = getenv("FARFORK_BENCH");
    int rc = own_folder(folder, sizeof(folder));

    (void)argc; /* argv ends with NULL */
    if (rc < 0) {
        fprintf(stderr, "farfork bench: /proc/self/exe: %s\n", strerror(-rc));
        return 1;
    }
    snprintf(script, sizeof(script), "%s" INSTALLED, folder);
    bool installed = !access(script, F_OK);
    if (named && *named)
        snprintf(script, sizeof(script), "%s", named);
    else if (!installed)
        snprintf(script, sizeof(script), "%s" CHECKOUT, folder);
    snprintf(build, sizeof(build), "%s/..%s", folder, installed ? "/lib/farfork" : "");
    if (setenv("FARFORK_BUILD", build, 0) < 0) {
        perror("farfork bench: setenv");
        return 1;
    }
    argv[0] = script;
    execv(script, argv);
    fprintf(stderr,
            "farfork bench: %s: %s; make install brings it, or name the bench/bench.py of a "
            "checkout in FARFORK_BENCH\n",
            script, strerror(errno));
    return errno == ENOENT ? EXIT_SKIP : 1;
}
