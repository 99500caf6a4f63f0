/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * versions.h - which QEMUs a proxy has been tested with, and how each gives a guest back
 */
#ifndef FF_CONTROL_PROXY_VERSIONS_H
#define FF_CONTROL_PROXY_VERSIONS_H

#include <jansson.h>
#include <stdbool.h>

#include "error.h"

/* How a source whose package has been read, and whose destination does not run, goes on */
enum proxy_way_back {
    /* the stream read to its end, then SHUT and cont; migrate_cancel races with the switch */
    PROXY_BACK_CANCEL,
    /* migrate_cancel is refused: SHUT with an error on the return path, and the stream read to
     * its end; it goes on by itself */
    PROXY_BACK_SHUT,
    /* closing the socket is enough, as long as it has no PONG of STREAM_PING_LOADED */
    PROXY_BACK_CLOSE,
};

struct proxy_version {
    unsigned major, minor, micro;
    enum proxy_way_back back;
    bool tested;
};

/**
 * proxy_version_check() - may this QEMU's stream go through a proxy
 * @answer:   what QMP's query-version returned
 * @side:     "source" or "destination", for messages
 * @untested: also a version that is older or newer than those tested (--untested)
 * @out:      filled on success
 *
 * Return:  0; -ENOTSUP a version that is not permitted; -EPROTO no version in @answer
 */
int proxy_version_check(const json_t *answer, const char *side, bool untested,
                        struct proxy_version *out, struct ff_error *err);

#endif
