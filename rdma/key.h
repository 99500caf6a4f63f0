/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * key.h - the key of a move or fork: 32 random bytes that both ends share
 */
#ifndef FF_RDMA_KEY_H
#define FF_RDMA_KEY_H

#include <stddef.h>
#include <stdint.h>

struct ff_error;

#define FF_KEY_LEN 32
#define FF_KEY_TEXT_LEN (2 * FF_KEY_LEN) /* as hexadecimal digits */

/* In memory of base/secret.h, never copied. Any thread may take and drop a reference */
struct ff_key;

/* @text: FF_KEY_TEXT_LEN hexadecimal digits, then perhaps a newline. No error tells any of it.
 * -EINVAL, -ENOMEM */
int ff_key_parse(const char *text, size_t len, struct ff_key **out, struct ff_error *err);

/* Such text in a file that only its owner, who is this user or root, may read. -EPERM: others may;
 * -EINVAL, -ENOMEM, or why it cannot be read */
int ff_key_load(const char *path, struct ff_key **out, struct ff_error *err);

struct ff_key *ff_key_ref(struct ff_key *k); /* @k, which may be NULL */
void ff_key_unref(struct ff_key *k);         /* the last one wipes it; @k may be NULL */

const uint8_t *ff_key_bytes(const struct ff_key *k); /* FF_KEY_LEN of them */

#endif
