/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * cmd_scripts.c - farfork bench, farfork demo: they are Python
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      find the script and become it: bench.py also by $FARFORK_BENCH; or as seen from the
 *              program's own folder that of an installed Farfork or of a checkout, with the folder
 *              of what it runs, unless FARFORK_BUILD names another one.
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
#define INSTALLED "/../share/farfork/"
#define CHECKOUT "/../../"
#define OWN_QEMU "/bin/qemu-system-x86_64" /* below what was built or installed; else the distribution's */
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

/* Returns only if it is not there */
static int become(const char *file, const char *named, char **argv)
{
    char folder[PATH_MAX], script[PATH_MAX + 40], build[PATH_MAX + 20], own[PATH_MAX + 60], *name = argv[0];
    int rc = own_folder(folder, sizeof(folder));

    if (rc < 0) {
        fprintf(stderr, "farfork %s: /proc/self/exe: %s\n", name, strerror(-rc));
        return 1;
    }
    snprintf(script, sizeof(script), "%s" INSTALLED "%s", folder, file);
    bool installed = !access(script, F_OK);
    if (named && *named)
        snprintf(script, sizeof(script), "%s", named);
    else if (!installed)
        snprintf(script, sizeof(script), "%s" CHECKOUT "%s", folder, file);
    snprintf(build, sizeof(build), "%s/..%s", folder, installed ? "/lib/farfork" : "");
    /* no byte code beside the scripts: whoever removes Farfork does not know of it */
    snprintf(own, sizeof(own), "%s" OWN_QEMU, build);
    bool failed = setenv("FARFORK_BUILD", build, 0) < 0 || setenv("PYTHONDONTWRITEBYTECODE", "1", 0) < 0;
    if (failed || (access(own, X_OK) && setenv("QEMU_BIN", "/usr" OWN_QEMU, 0) < 0)) {
        fprintf(stderr, "farfork %s: setenv: %s\n", name, strerror(errno));
        return 1;
    }
    argv[0] = script;
    execv(script, argv);
    fprintf(stderr,
            "farfork %s: %s: %s; make install brings it, as does Debian's package farfork-bench\n",
            name, script, strerror(errno));
    return errno == ENOENT ? EXIT_SKIP : 1;
}

int cmd_bench(int argc, char **argv)
{
    (void)argc; /* argv ends with NULL */
    return become("bench/bench.py", getenv("FARFORK_BENCH"), argv);
}

int cmd_demo(int argc, char **argv)
{
    (void)argc;
    return become("demo/demo.py", NULL, argv);
}
