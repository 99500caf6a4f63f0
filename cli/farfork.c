/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * farfork.c - farfork: one table of subcommands, dispatch and help
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "farfork.h"
#include "error.h"
#include "strv.h"

static int cmd_help(int argc, char **argv);
static int cmd_version(int argc, char **argv);

static const struct command {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"doctor", "print what this host can do, what it cannot, and why", cmd_doctor},
    {"bench", "measure what a move costs, against what QEMU has", cmd_bench},
    {"demo", "move running guests on this host, and show what happened", cmd_demo},
    {"move", "move a running guest to another host", cmd_move},
    {"visit", "let a running guest work on another host, and take it back", cmd_visit},
    {"promote", "let a child of a fork take its parent's place", cmd_promote},
    {"attach", "one side of a move, beside its QEMU", cmd_attach},
    {"agent", "hold a forked guest's memory on this host; vmclone starts it", cmd_agent},
    {"nocloud", "change cloud-init's NoCloud data in an image", cmd_nocloud},
    {"forks", "list, wait for or end forked guests on this host", cmd_forks},
    {"evacuate", "move every guest of this host to others", cmd_evacuate},
    {"hosts", "show what hosts have for guests, and which are there", cmd_hosts},
    {"pool", "show or end children that are kept ready for forks", cmd_pool},
    {"version", "print the version", cmd_version},
    {"help", "print this text", cmd_help},
};

static void farfork_usage(FILE *out)
{
    fprintf(out, "usage: farfork COMMAND [OPTION...]\n\n"
                 "Move a running QEMU/KVM virtual machine to another host; its memory follows.\n\n"
                 "Commands:\n");
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].summary);
    fprintf(out, "\n"
                 "'farfork COMMAND --help' has the options.\n");
}

static int cmd_help(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    farfork_usage(stdout);
    return 0;
}

static int cmd_version(int argc, char **argv)
{
    if (argc > 1) {
        puts("usage: farfork version\n\nPrint the version.");
        return !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") ? 0 : 2;
    }
    puts("farfork " FF_VERSION_STRING);
    return 0;
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";

    signal(SIGCHLD, SIG_DFL); /* who started it may have had it ignored: then nothing is known of a child's end */
    if (!strcmp(name, "--help") || !strcmp(name, "-h"))
        name = "help";
    if (!strcmp(name, "--version") || !strcmp(name, "-V"))
        name = "version";
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        if (!strcmp(name, commands[i].name))
            return output_code("farfork", commands[i].run(argc - 1, argv + 1), 1);
    if (*name)
        fprintf(stderr, "farfork: no such command: %s\n", name);
    farfork_usage(stderr);
    return 2;
}
