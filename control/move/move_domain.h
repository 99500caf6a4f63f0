/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * move_domain.h - farfork move --domain: a domain of libvirt's
 */
#ifndef FF_CONTROL_MOVE_MOVE_DOMAIN_H
#define FF_CONTROL_MOVE_MOVE_DOMAIN_H

#include <stdbool.h>

/**
 * struct domain_options - what is to be moved, and how
 * @name:    of the domain, which runs here
 * @uri:     of the destination's libvirt, with a host
 * @address: of that host, for the link; NULL: as in @uri
 * @link_options: of the link: 'timeout=30'
 * @words:   of virsh migrate's: "--persistent", "--undefinesource"; NULL at the end
 */
struct domain_options {
    const char *name, *uri, *address, *launcher, *agent, *link_options;
    unsigned timeout_s;
    bool json;
    char *const *words;
};

/* The whole move: 0, MOVE_EXIT_HERE, 2 (usage), MOVE_EXIT_TROUBLE */
int move_domain_run(const struct domain_options *o);

#endif
