/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * virsh.h - run virsh at this host's libvirt
 */
#ifndef FF_CONTROL_HOST_VIRSH_H
#define FF_CONTROL_HOST_VIRSH_H

#include "error.h"
#include "spawn.h"
#include "strv.h"

/* The words that each command begins with: virsh itself, quiet, at qemu:///system */
void virsh_begin(struct strv *words);

/* virsh with these words more, to its end; @out: what it printed, to be freed; may be NULL.
 * -ENOENT: there is no virsh; -EREMOTEIO: it failed, with its first complaint; -ETIMEDOUT */
int virsh_run(const struct strv *words, char **out, struct ff_error *err);

/* Read all that @r says, a virsh that does @command, until it has ended, or end it. *@out: NULL, or a
 * text to be freed, to which that is added. Return: as virsh_run(); @r is yet to be freed */
int virsh_end(struct spawn *r, const char *command, char **out, struct ff_error *err);

/* @r, a virsh that does @command, has ended with @status, which is not 0 */
int virsh_failed(const struct spawn *r, const char *command, int status, struct ff_error *err);

#endif
