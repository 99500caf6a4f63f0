/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * source.h - what clone/ and tests need of the source and the destination beside farfork.h
 */
#ifndef FF_MIGRATE_SOURCE_H
#define FF_MIGRATE_SOURCE_H

#include "farfork.h"
#include "link.h"
#include "regions.h"

/* Use this link instead of connecting or listening; taken over */
void ff_source_use_link(struct ff_source *s, struct ff_link *link);
void ff_dest_use_link(struct ff_dest *d, struct ff_link *link); /* before ff_dest_accept() */
int ff_dest_new_on_link(const struct ff_address *a, struct ff_link *link, struct ff_dest **out,
                        struct ff_error *err);

/* After GO, or when the link broke: the serving threads end, no key works, and there is no link */
void ff_source_drop_link(struct ff_source *s);

/* For clone/fd_share.c */
const struct ff_regions *ff_source_regions(const struct ff_source *s);
int ff_source_cancel_fd(const struct ff_source *s);
void ff_source_keep_fd(struct ff_source *s, int fd); /* closed by ff_source_free() */
int ff_source_kept_fd(const struct ff_source *s);
bool ff_source_is_passed(const struct ff_source *s); /* its address is "unix" */
int ff_source_timeout_ms(const struct ff_source *s);
void ff_source_set_session(struct ff_source *s, const uint8_t session[FF_SESSION_LEN]);

#endif
