/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * host_facts.h - what this host has for guests, and which are here
 */
#ifndef FF_CONTROL_HOST_HOST_FACTS_H
#define FF_CONTROL_HOST_HOST_FACTS_H

#include <jansson.h>

#define HOLDER_COMM "farfork-holder" /* the name of a `farfork attach --parent` that serves what it has frozen */

/**
 * host_facts() - what a place for guests is chosen by
 * @base: of run directories, for forks
 *
 * Cost:    a look at every process of this host; no QEMU is asked
 * Return:  {"name", "identity": of this host, whatever it is called, "version", "kernel", "cpus": that are online,
 *          "load": of the last minute, "memory_bytes", "available_bytes", "reserved_bytes": promised to forks, of that,
 *          "huge_pages": [{"size_bytes", "total", "free"}], "kvm": this user may use it, "rdma": [DEVICE:PORT that can be
 *          used], "guests": [{"pid", "name", "job": process_job(), "qemu", "resident_bytes"}] of all users that this one
 *          sees, "holders": [{"pid", "name", "job", "of": a "fork", whose memory it keeps for other hosts, or a
 *          "guest elsewhere", which went from it and still needs it, "resident_bytes"}], "forks": [{"id", "parent", "image", "children": alive}] of this user}
 */
json_t *host_facts(const char *base);

/**
 * host_qemus() - QEMUs that guests may be started with here, by what they say of themselves
 * @agent: this program: one beside it, or of its package; and the system's
 *
 * Cost:    some 40 ms each. Those that guests run in are not asked: they may be anybody's programs
 * Return:  [{"program", "version"}]
 */
json_t *host_qemus(const char *agent);

/* Two that say the same are one host, whatever it is called. To be freed */
char *host_identity(void);

#endif
