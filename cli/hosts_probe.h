/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * hosts_probe.h - farfork hosts --probe: how fast this host reads from another
 */
#ifndef FF_CLI_HOSTS_PROBE_H
#define FF_CLI_HOSTS_PROBE_H

#include <jansson.h>

#include "error.h"
#include "hostlist.h"

/**
 * hosts_probe() - start 'farfork doctor --serve' there, and read from it
 * @launcher: "": it is this host
 * @agent:    farfork there
 *
 * Cost:    some seconds, and as much of the network as there is
 * Return:  {"link": the first that works, "p50_ns", "p99_ns": of reads of 4 KiB, "bytes_per_second": the most of
 *          any size}; NULL: none works, and why
 */
json_t *hosts_probe(const struct node *n, const char *launcher, const char *agent, unsigned timeout_s,
                    struct ff_error *why);

#endif
