/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * preflight.h - what a fork needs of a host, checked before the parent is frozen
 */
#ifndef FF_CONTROL_HOST_PREFLIGHT_H
#define FF_CONTROL_HOST_PREFLIGHT_H

#include <jansson.h>
#include <stdbool.h>
#include <sys/types.h>

#include "error.h"
#include "strv.h"

/* So many may be open in process @pid (0: this one): its limit is raised where that is permitted.
 * -EMFILE */
int preflight_descriptors(pid_t pid, const char *who, uint64_t need, struct ff_error *why);

/**
 * preflight_check() - check this host for the children of a fork; an agent does so
 * @want:   {"folder": DIR, "bytes": N   of --scratch
 *           "files": [PATH...]          to be made there
 *           "descriptors": N            that one process may have open
 *           "checks": [SUBJECT...]      of `farfork doctor` that must not say NO
 *           "program": [WORD...]        the children's QEMU, with backends to open; may be absent
 *           "processor": {"program": [WORD...]  a machine with the children's CPU and nothing else
 *                         "cpu": PATH, "words": ...  "feature-words" of the parent's CPU, which has it
 *                         "flags": [NAME...]}} that it has; may be absent
 *
 * Raises the limit of open descriptors of this process where that is permitted.
 * Takes some 20 ms with a program, else less than one.
 *
 * Return: 0; -EXDEV: the CPU here lacks flags, whose names take "flags"; else -errno
 */
int preflight_check(const json_t *want, struct ff_error *why);

/* Whether a flag of CPUID that is in @here is not in @there: of "feature-words" */
bool processor_lacks_any(const json_t *here, const json_t *there);

#endif
