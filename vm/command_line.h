/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * command_line.h - a child's command line, from its parent's
 */
#ifndef FF_VM_COMMAND_LINE_H
#define FF_VM_COMMAND_LINE_H

#include <stdbool.h>

#include "error.h"
#include "strv.h"

enum net_policy { NET_ISOLATED, NET_USER, NET_BRIDGE, NET_NONE, NET_KEEP };

/* What makes one child: where it runs and what it may share */
struct vm_spec {
    const char *id;       /* of the fork */
    unsigned number;      /* from 1 on */
    unsigned total;       /* children of this fork */
    const char *qemu;     /* program */
    const char *rundir;   /* on its host, without commas; its sockets and files go there */
    const char *incoming; /* of a guest that is moved; NULL: a child of a fork */
    const char *tpm;      /* of a guest that is moved: the swtpm's socket there; NULL: none */
    const char *replaced; /* the parent's QMP socket, which its own takes the place of; or NULL */
    bool here;            /* on the parent's host */
    bool takes_place;     /* ... whose QEMU ends, and whose taps it gets then: vm/attach/taps.h */
    bool programs;        /* its user permits options that start programs */
    enum net_policy net;
    const char *config;   /* for -readconfig, in the run directory: identity_config(); or NULL */
    const char *bridge;   /* NET_BRIDGE: of NICs that name none */
};

/* "isolated" and so on, "bridge:NAME"; -EINVAL */
int net_policy_parse(const char *text, enum net_policy *net, const char **bridge,
                     struct ff_error *why);

/**
 * command_line_rewrite() - the command line of one child
 * @parent: of the running QEMU, NULL at its end
 * @out:    the child's, program included
 * @notes:  what a user may want to know: a chardev that was cut off, for one; may have some
 *          already, nothing is said twice
 *
 * @parent has the child's disks (clone_disks_argv()) and identity (identity_child_argv()) already.
 * What else may not be shared between two processes differs; everything else is the same byte for
 * byte, in the same order. A guest that is moved (@s->incoming) keeps what is behind its NICs: the
 * other one lets go of it.
 * Return: 0; -EINVAL: an option without its argument; -ENOTSUP: what cannot be cloned, by name;
 * -EPERM: an option that starts a program, without @s->programs
 */
int command_line_rewrite(char *const *parent, const struct vm_spec *s, struct strv *out,
               struct strv *notes, struct ff_error *why);

/* What stands where a child cannot have its parent's tap, a hub that leads nowhere, as a tap of the descriptor @fd
 * (vm/attach/dead_tap.h); and such a tap as that hub again. To be freed; NULL: @value is none */
#define NET_DEAD_END "farfork-none" /* the tap's name, by which fdinfo shows it */
char *net_dead_end_tap(const char *value, int fd);
char *net_dead_end_hub(const char *value, unsigned number);

/* The monitor of a child of a fork that is its agent's alone; to be freed */
char *command_line_monitor(const struct vm_spec *s);

/* An image without an option is the first disk: "disk.img" becomes "-hda disk.img". @exe: the program
 * that runs; if that is the dynamic loader, the first word without an option is QEMU */
void command_line_name_disk(struct strv *argv, const char *exe);

/* Where that is the dynamic loader: its own options, and QEMU's name. What is left is for another QEMU (--qemu) */
void command_line_drop_loader(struct strv *argv, const char *exe);

/* The option that names a file by a name relative to QEMU's folder, as "-kernel Image", to be freed;
 * NULL: none does, and another QEMU can run in another folder */
char *command_line_relative(char *const *argv);

/* rewrite_programs.c: whether a QEMU with this option starts a program: a tap's script, a bridge helper */
bool command_line_starts_program(const char *option, const char *value);

#endif
