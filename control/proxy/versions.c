/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * versions.c - which QEMUs a proxy has been tested with, and how each gives a guest back
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      refuse before a guest stops what nobody has tried. The stream does not name its
 *              QEMU's version; QMP does.
 * Limits       tests/e2e/stock_stream.py moves with the oldest and the newest version below, and
 *              one between. Those between are accepted: the framing did not change from the
 *              oldest to the newest.
 * Sources      QEMU's migration/migration.c: qmp_migrate_cancel() refuses post-copy from 10.0 on;
 *              the state postcopy-device, in which an error lets the source go on, is there from
 *              10.2 on.
 */
#include "versions.h"

#include <errno.h>

#include "autojson.h"

/* In one number; a micro number of 50 or more is on the way to the next minor version */
#define ORDER(major, minor) (10 * (1000 * (major) + (minor)))
#define ON_THE_WAY 5
#define PART_MAX 999

#define OLDEST ORDER(7, 2)
#define NEWEST ORDER(11, 1)
#define PERMITTED "permitted 7.2 to 11.1"

static const struct {
    unsigned from;
    enum proxy_way_back back;
} ways[] = {
    {ORDER(10, 2), PROXY_BACK_CLOSE},
    {ORDER(10, 0), PROXY_BACK_SHUT},
    {0, PROXY_BACK_CANCEL},
};

static bool version_part(const json_t *qemu, const char *key, unsigned *out)
{
    const json_t *part = json_object_get(qemu, key);
    json_int_t value = json_integer_value(part);

    *out = (unsigned)value;
    return json_is_integer(part) && value >= 0 && value <= PART_MAX;
}

int proxy_version_check(const json_t *answer, const char *side, bool untested,
                        struct proxy_version *out, struct ff_error *err)
{
    const json_t *qemu = json_object_get(answer, "qemu");
    struct proxy_version v = {0};
    unsigned order, way = 0;

    if (!version_part(qemu, "major", &v.major) || !version_part(qemu, "minor", &v.minor) ||
        !version_part(qemu, "micro", &v.micro))
        return ff_error_set(err, EPROTO,
                            "proxy: ask %s for its version: no major, minor and micro in the "
                            "answer (permitted 0..%u each)",
                            side, PART_MAX);
    order = ORDER(v.major, v.minor) + (v.micro >= 50 ? ON_THE_WAY : 0);
    v.tested = order >= OLDEST && order <= NEWEST;
    if (!v.tested && !untested)
        return ff_error_set(err, ENOTSUP,
                            "proxy: %s's QEMU is %u.%u.%u: %s than those whose stream was tested "
                            "(" PERMITTED ", or --untested to try)",
                            side, v.major, v.minor, v.micro, order < OLDEST ? "older" : "newer");
    while (order < ways[way].from)
        way++;
    v.back = ways[way].back;
    *out = v;
    return 0;
}
