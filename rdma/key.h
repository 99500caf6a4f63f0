/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * key.h - the key of a move or fork: 32 random bytes that both ends share
 */
#ifndef FF_RDMA_KEY_H
#define FF_RDMA_KEY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ff_certs;
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

/* A file of TLS-PSK keys, as psktool(1) writes it and QEMU's tls-creds-psk reads it: USER:HEX in
 * each line. What @user has there is the key; NULL: for a destination, the keys of all of them, at
 * most FF_KEY_USERS, of which a source's hello tells its own. -EPERM: everybody may read the file, or
 * others write it; -ENOENT: there is no @user; -EINVAL, -ENOMEM, or why it cannot be read */
#define FF_KEY_USERS 256
int ff_key_load_psk(const char *path, const char *user, struct ff_key **out, struct ff_error *err);

/* Certificates, which give each connection a key of its own (certs.h). As ff_certs_load() */
int ff_key_load_certs(const char *dir, const char *hostname, const char *password, bool server,
                      struct ff_key **out, struct ff_error *err);
struct ff_certs *ff_key_certs(const struct ff_key *k); /* NULL: @k has none. @k may be NULL */

/* FF_KEY_LEN bytes as a key. NULL: out of memory */
struct ff_key *ff_key_of_bytes(const uint8_t *bytes);

struct ff_key *ff_key_ref(struct ff_key *k); /* @k, which may be NULL */
void ff_key_unref(struct ff_key *k);         /* the last one wipes it; @k may be NULL */
bool ff_key_equal(const struct ff_key *a, const struct ff_key *b); /* NULL equals NULL */

/* FF_KEY_LEN of them; of certificates what tells them from others, and no key to anything */
const uint8_t *ff_key_bytes(const struct ff_key *k);

/* In a hello's nonce of @len bytes a user's key puts its mark into the last FF_KEY_MARK_LEN; others
 * leave it as it is. 0 or -EIO */
#define FF_KEY_MARK_LEN 8
int ff_key_mark(const struct ff_key *k, uint8_t *nonce, size_t len);

/* The bytes of the key whose mark @nonce has; where none has it, or there is one key, the first */
const uint8_t *ff_key_marked(const struct ff_key *k, const uint8_t *nonce, size_t len);

#endif
