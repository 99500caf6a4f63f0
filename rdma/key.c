/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * key.c - the key of a move or fork: 32 random bytes that both ends share
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      keep a key. handshake.c says what is done with it.
 * Picture      as text it has FF_KEY_TEXT_LEN hexadecimal digits, everywhere: a file, a line on
 *              standard input, a secret of QEMU's. Text survives terminals and JSON, and one that
 *              was cut short is noticed. `openssl rand -hex 32` makes one.
 * Invariants   1. The bytes stand in memory of base/secret.h alone; the text passes through a
 *                 buffer of the same kind. Neither is on the heap, in a message or in a log.
 *              2. A key has all its bits from a random source: nobody stretches a password here.
 *                 PSK_MIN of a TLS-PSK key: whoever connects gets a proof, and could try short
 *                 ones.
 *
 * Users        Of a TLS-PSK key and its user's name come, by HKDF, a link's key and a secret for
 *              marks. A mark is a hash of a nonce: it tells nobody who the user is, and no two are
 *              alike.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>

#include <gnutls/gnutls.h>

#include "certs.h"
#include "cleanup.h"
#include "error.h"
#include "kdf.h"
#include "key.h"
#include "secret.h"

#define PSK_MIN 16u
#define PSK_MAX 512u /* as psktool makes them */
#define PSK_FILE_MAX 65536u
#define PSK_SALT "farfork tls-creds-psk 1"

struct one_key {
    uint8_t bytes[FF_KEY_LEN], marks[FF_KDF_LEN];
};

struct ff_key {
    atomic_uint refs;
    struct ff_certs *certs;
    bool of_users; /* they have marks */
    unsigned n;
    struct one_key one[];
};

static size_t size_of(unsigned n)
{
    return sizeof(struct ff_key) + n * sizeof(struct one_key);
}

static struct ff_key *key_new(unsigned n)
{
    struct ff_key *k = ff_secret_new(size_of(n));

    if (!k)
        return NULL;
    atomic_init(&k->refs, 1);
    k->n = n;
    return k;
}

static int digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

int ff_key_parse(const char *text, size_t len, struct ff_key **out, struct ff_error *err)
{
    uint8_t any = 0;

    if (len == FF_KEY_TEXT_LEN + 1 && text[len - 1] == '\n')
        len--;
    if (len != FF_KEY_TEXT_LEN)
        return ff_error_set(err, EINVAL,
                            "key: %s%zu characters (want %d hexadecimal digits, as "
                            "`openssl rand -hex %d` writes them)",
                            len > FF_KEY_TEXT_LEN ? "at least " : "", len, FF_KEY_TEXT_LEN,
                            FF_KEY_LEN);
    struct ff_key *k = key_new(1);
    if (!k)
        return ff_error_set(err, ENOMEM, "key: out of memory");
    for (size_t i = 0; i < FF_KEY_LEN; i++) {
        int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);
        if (high < 0 || low < 0) {
            ff_key_unref(k);
            return ff_error_set(err, EINVAL, "key: character %zu or the one after it is no "
                                "hexadecimal digit", 2 * i + 1);
        }
        k->one[0].bytes[i] = (uint8_t)(high << 4 | low);
        any |= k->one[0].bytes[i];
    }
    if (!any) {
        ff_key_unref(k);
        return ff_error_set(err, EINVAL, "key: all zeros: that is no random key");
    }
    *out = k;
    return 0;
}

/* Has nobody but its owner, this user or root, one of the rights @not? An access control list shows
 * in the bits of the group */
static int check_key_owner(int fd, const char *path, mode_t not, struct ff_error *err)
{
    struct stat st;

    if (fstat(fd, &st) < 0)
        return ff_error_set(err, errno, "key: read %s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return ff_error_set(err, EINVAL, "key: %s is no file", path);
    if (st.st_uid != geteuid() && st.st_uid != 0)
        return ff_error_set(err, EPERM, "key: %s belongs to user %u (want this user, %u, or root)",
                            path, st.st_uid, geteuid());
    if (st.st_mode & not)
        return ff_error_set(err, EPERM, "key: %s is open to others (mode %03o): make a new key, "
                            "and chmod %03o it first", path, st.st_mode & 0777u,
                            0666u & ~(0111u | not));
    return 0;
}

/* Up to @room bytes of @fd: their number, or -errno */
static ssize_t read_text(int fd, char *text, size_t room)
{
    size_t len = 0;
    ssize_t n = 1;

    while (len < room && n > 0) {
        n = read(fd, text + len, room - len);
        if (n < 0 && errno == EINTR)
            n = 1;
        else if (n > 0)
            len += (size_t)n;
    }
    return n < 0 ? -errno : (ssize_t)len;
}

int ff_key_load(const char *path, struct ff_key **out, struct ff_error *err)
{
    enum { ROOM = FF_KEY_TEXT_LEN + 2 }; /* more than a key: too long shows */
    FF_AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a fifo blocks nobody */

    if (fd < 0)
        return ff_error_set(err, errno, "key: open %s: %s", path, strerror(errno));
    int rc = check_key_owner(fd, path, S_IRWXG | S_IRWXO, err);
    if (rc)
        return rc;
    char *text = ff_secret_new(ROOM);
    if (!text)
        return ff_error_set(err, ENOMEM, "key: out of memory");
    ssize_t len = read_text(fd, text, ROOM);
    if (len < 0)
        rc = ff_error_set(err, (int)-len, "key: read %s: %s", path, strerror((int)-len));
    else if ((rc = ff_key_parse(text, (size_t)len, out, err)))
        rc = ff_error_pass(err, rc, "key-file=%s", path);
    ff_secret_free(text, ROOM);
    return rc;
}

/* --- users with keys of TLS-PSK --- */

/* @line: USER:HEX, with an end. 0 or -EINVAL: no error tells any of it */
static int check_psk_line(const char *line, unsigned number, struct ff_error *err)
{
    const char *hex = strchr(line, ':');
    size_t digits = hex ? strlen(hex + 1) : 0;

    if (!hex || hex == line)
        return ff_error_set(err, EINVAL, "key: line %u is not USER:KEY", number);
    for (size_t i = 1; i <= digits; i++)
        if (digit(hex[i]) < 0)
            return ff_error_set(err, EINVAL, "key: line %u: a character of the key is no "
                                "hexadecimal digit", number);
    if (digits % 2 || digits < 2 * PSK_MIN || digits > 2 * PSK_MAX)
        return ff_error_set(err, EINVAL, "key: line %u: a key of %zu hexadecimal digits (permitted "
                            "%u..%u, as psktool writes them)", number, digits, 2 * PSK_MIN,
                            2 * PSK_MAX);
    return 0;
}

/* What a checked @line is as a key. @psk: room */
static int take_psk_line(const char *line, uint8_t *psk, struct one_key *one)
{
    const char *hex = strchr(line, ':');
    uint8_t name[FF_KDF_LEN], prk[FF_KDF_LEN];
    size_t len = strlen(hex + 1) / 2;

    for (size_t i = 0; i < len; i++)
        psk[i] = (uint8_t)(digit(hex[1 + 2 * i]) << 4 | digit(hex[2 + 2 * i]));
    int rc = ff_kdf_hash(line, (size_t)(hex - line), name);
    if (!rc)
        rc = ff_kdf_extract(psk, len, PSK_SALT, prk);
    if (!rc)
        rc = ff_kdf_expand(prk, "key", name, sizeof(name), one->bytes, FF_KEY_LEN);
    if (!rc)
        rc = ff_kdf_expand(prk, "marks", name, sizeof(name), one->marks, FF_KDF_LEN);
    explicit_bzero(prk, sizeof(prk));
    return rc;
}

static bool is_user(const char *line, const char *user)
{
    size_t len = strlen(user);

    return !strncmp(line, user, len) && line[len] == ':';
}

/* @text ends with a NUL and is changed; its last PSK_MAX bytes are room. @k has FF_KEY_USERS */
static int parse_psk(char *text, uint8_t *room, const char *user, struct ff_key *k,
                     struct ff_error *err)
{
    unsigned number = 0;

    k->of_users = true;
    k->n = 0;
    for (char *next = text, *line; (line = strsep(&next, "\n"));) {
        number++;
        if (!*line || (user && (k->n || !is_user(line, user))))
            continue;
        int rc = check_psk_line(line, number, err);
        if (rc)
            return rc;
        if (k->n == FF_KEY_USERS)
            return ff_error_set(err, E2BIG, "key: more than %u users", FF_KEY_USERS);
        if (take_psk_line(line, room, &k->one[k->n++]))
            return ff_error_set(err, EIO, "key: GnuTLS gives no HKDF");
    }
    if (!k->n)
        return user ? ff_error_set(err, ENOENT, "key: there is no user %s", user)
                    : ff_error_set(err, EINVAL, "key: there is no user");
    return 0;
}

int ff_key_load_psk(const char *path, const char *user, struct ff_key **out, struct ff_error *err)
{
    enum { ROOM = PSK_FILE_MAX + 1 + PSK_MAX };
    FF_AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0)
        return ff_error_set(err, errno, "key: open %s: %s", path, strerror(errno));
    /* a group may share it: QEMU's folder of credentials is often root's */
    int rc = check_key_owner(fd, path, S_IWGRP | S_IRWXO, err);
    if (rc)
        return rc;
    char *text = ff_secret_new(ROOM);
    struct ff_key *all = key_new(FF_KEY_USERS), *k = NULL;
    ssize_t len = text && all ? read_text(fd, text, PSK_FILE_MAX + 1) : -ENOMEM;
    if (len < 0)
        rc = ff_error_set(err, (int)-len, "key: read %s: %s", path, strerror((int)-len));
    else if (len > (ssize_t)PSK_FILE_MAX || strlen(text) != (size_t)len)
        rc = ff_error_set(err, EINVAL, "key: %s is no text of at most %u bytes", path,
                          PSK_FILE_MAX);
    else if ((rc = parse_psk(text, (uint8_t *)text + PSK_FILE_MAX + 1, user, all, err)))
        rc = ff_error_pass(err, rc, "%s", path);
    else if (!(k = key_new(all->n)))
        rc = ff_error_set(err, ENOMEM, "key: out of memory");
    if (k) {
        k->of_users = true;
        memcpy(k->one, all->one, k->n * sizeof(k->one[0]));
        *out = k;
    }
    ff_secret_free(text, ROOM);
    ff_secret_free(all, size_of(FF_KEY_USERS));
    return rc;
}

static int make_mark(const struct one_key *one, const uint8_t *nonce, size_t len,
                     uint8_t out[FF_KEY_MARK_LEN])
{
    return ff_kdf_expand(one->marks, "mark", nonce, len - FF_KEY_MARK_LEN, out, FF_KEY_MARK_LEN);
}

int ff_key_mark(const struct ff_key *k, uint8_t *nonce, size_t len)
{
    return k->of_users ? make_mark(&k->one[0], nonce, len, nonce + len - FF_KEY_MARK_LEN) : 0;
}

const uint8_t *ff_key_marked(const struct ff_key *k, const uint8_t *nonce, size_t len)
{
    uint8_t mark[FF_KEY_MARK_LEN];
    unsigned found = 0;

    /* all of them, also behind the right one: who says a hello again that he has recorded would see
     * by the time which user's it is */
    for (unsigned i = k->n; i-- > 0 && k->n > 1;)
        if (!make_mark(&k->one[i], nonce, len, mark) &&
            !gnutls_memcmp(mark, nonce + len - FF_KEY_MARK_LEN, FF_KEY_MARK_LEN))
            found = i;
    return k->one[found].bytes;
}

/* --- certificates --- */

int ff_key_load_certs(const char *dir, const char *hostname, const char *password, bool server,
                      struct ff_key **out, struct ff_error *err)
{
    struct ff_key *k = key_new(1);

    if (!k)
        return ff_error_set(err, ENOMEM, "key: out of memory");
    _Static_assert(FF_CERTS_DIGEST_LEN == FF_KEY_LEN, "a digest stands in a key's place");
    int rc = ff_certs_load(dir, hostname, password, server, &k->certs, k->one[0].bytes, err);
    if (rc)
        ff_key_unref(k);
    else
        *out = k;
    return rc;
}

struct ff_certs *ff_key_certs(const struct ff_key *k)
{
    return k ? k->certs : NULL;
}

struct ff_key *ff_key_of_bytes(const uint8_t *bytes)
{
    struct ff_key *k = key_new(1);

    if (k)
        memcpy(k->one[0].bytes, bytes, FF_KEY_LEN);
    return k;
}

/* --- references --- */

struct ff_key *ff_key_ref(struct ff_key *k)
{
    if (k)
        atomic_fetch_add(&k->refs, 1);
    return k;
}

void ff_key_unref(struct ff_key *k)
{
    if (!k || atomic_fetch_sub(&k->refs, 1) != 1)
        return;
    ff_certs_free(k->certs);
    ff_secret_free(k, size_of(k->n));
}

bool ff_key_equal(const struct ff_key *a, const struct ff_key *b)
{
    return a == b || (a && b && a->of_users == b->of_users && !a->certs == !b->certs &&
                      a->n == b->n &&
                      !memcmp(a->one, b->one, a->n * sizeof(a->one[0])));
}

const uint8_t *ff_key_bytes(const struct ff_key *k)
{
    return k->one[0].bytes;
}
