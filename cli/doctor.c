/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * doctor.c - farfork doctor: what this host can do, what it cannot, and why
 */
#include <getopt.h>
#include <stdio.h>

#include "cli.h"
#include "farfork.h"

static void print_check(void *opaque, const char *subject, enum ff_check result, const char *why)
{
    static const char *const marks[] = {
        [FF_CHECK_OK] = "ok", [FF_CHECK_LIMITED] = "limited", [FF_CHECK_NO] = "NO"};
    int *missing = opaque;

    printf("%-8s %-21s %s\n", marks[result], subject, why);
    *missing += result == FF_CHECK_NO;
}

int cmd_doctor(int argc, char **argv)
{
    static const struct option options[] = {{"help", no_argument, NULL, 'h'}, {0}};
    int c, missing = 0;

    while ((c = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        FILE *out = c == 'h' ? stdout : stderr;
        fprintf(out, "usage: farfork doctor\n\n"
                     "Print what this host can do, what it cannot, and why. One line a subject:\n"
                     "ok, limited (it works, with less) or NO (and what to do about it).\n\n"
                     "  -h, --help   print this text\n\n"
                     "Exit code: 0 when guests can be moved here, 1 when something says NO.\n");
        return c == 'h' ? 0 : 2;
    }
    ff_host_check(print_check, &missing);
    return missing ? 1 : 0;
}
