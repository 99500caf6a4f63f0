/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * packet.c - datagrams of one sender to a group; see packet.h
 */
#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>

#include "cleanup.h"
#include "error.h"
#include "kdf.h"
#include "key.h"
#include "packet.h"
#include "secret.h"
#include "wirebuf.h"

#define HEAD 12
#define FIELDS 16
#define TAG 16
#define IV_LEN 12
_Static_assert(HEAD + FIELDS + TAG == FF_PACKET_OVER, "a packet without data");

struct cipher {
    gnutls_aead_cipher_hd_t h; /* NULL: none yet */
    uint64_t generation;
    uint8_t iv[IV_LEN];
};

struct ff_packets {
    uint8_t secret[FF_KDF_LEN], salt[FF_PACKET_SALT_LEN];
    uint32_t stream;
    struct cipher cipher[2]; /* of even and odd generations */
    uint64_t next;           /* the sender's */
    uint64_t first, last, opened; /* opened 0: none has come */
    uint64_t window[FF_PACKET_WINDOW / 64]; /* of the numbers up to last: those that opened */
};

int ff_packets_new(const struct ff_key *k, const uint8_t salt[FF_PACKET_SALT_LEN],
                   struct ff_packets **out, struct ff_error *err)
{
    struct ff_packets *s = ff_secret_new(sizeof(*s));
    uint8_t stream[4];

    if (!s)
        return ff_error_set(err, ENOMEM, "packets: out of memory");
    memcpy(s->salt, salt, sizeof(s->salt));
    int rc = ff_kdf_extract(ff_key_bytes(k), FF_KEY_LEN, "farfork multicast", s->secret);
    if (!rc)
        rc = ff_kdf_expand(s->secret, "stream", salt, FF_PACKET_SALT_LEN, stream, sizeof(stream));
    if (rc) {
        ff_packets_free(s);
        return ff_error_set(err, EIO, "packets: GnuTLS refuses HKDF");
    }
    memcpy(&s->stream, stream, sizeof(stream));
    *out = s;
    return 0;
}

void ff_packets_free(struct ff_packets *s)
{
    for (unsigned i = 0; s && i < FF_ARRAY_LEN(s->cipher); i++)
        if (s->cipher[i].h)
            gnutls_aead_cipher_deinit(s->cipher[i].h);
    ff_secret_free(s, sizeof(*s));
}

/* The cipher for @number; NULL: GnuTLS refuses */
static struct cipher *cipher_of(struct ff_packets *s, uint64_t number)
{
    uint64_t generation = number >> FF_PACKET_GENERATION;
    struct cipher *c = &s->cipher[generation % 2];
    uint8_t context[FF_PACKET_SALT_LEN + 8], out[FF_KDF_LEN + IV_LEN];
    struct ff_wirebuf b = {.data = context, .len = sizeof(context)};
    gnutls_datum_t key = {.data = out, .size = FF_KDF_LEN};

    if (c->h && c->generation == generation)
        return c;
    if (c->h)
        gnutls_aead_cipher_deinit(c->h);
    c->h = NULL;
    ff_wb_put_bytes(&b, s->salt, sizeof(s->salt));
    ff_wb_put(&b, generation, 8);
    int rc = ff_kdf_expand(s->secret, "multicast", context, sizeof(context), out, sizeof(out));
    if (!rc && gnutls_aead_cipher_init(&c->h, GNUTLS_CIPHER_AES_256_GCM, &key) < 0)
        c->h = NULL;
    memcpy(c->iv, out + FF_KDF_LEN, IV_LEN);
    c->generation = generation;
    explicit_bzero(out, sizeof(out));
    return c->h ? c : NULL;
}

static void packet_nonce(const struct cipher *c, uint64_t number, uint8_t nonce[IV_LEN])
{
    memcpy(nonce, c->iv, IV_LEN);
    for (unsigned i = 0; i < 8; i++)
        nonce[IV_LEN - 1 - i] ^= (uint8_t)(number >> (8 * i));
}

int ff_packet_close(struct ff_packets *s, const struct ff_packet *p, uint8_t *out)
{
    uint8_t clear[FF_PACKET_MAX], nonce[IV_LEN];
    struct ff_wirebuf head = {.data = out, .len = HEAD}, b = {.data = clear, .len = sizeof(clear)};
    size_t out_len = FIELDS + (size_t)p->len + TAG;
    struct cipher *c = cipher_of(s, s->next);

    ff_wb_put(&head, s->stream, 4);
    ff_wb_put(&head, s->next, 8);
    ff_wb_put(&b, p->kind, 2);
    ff_wb_put(&b, p->region, 2);
    ff_wb_put(&b, p->part, 4);
    ff_wb_put(&b, p->page, 8);
    ff_wb_put_bytes(&b, p->data, p->len);
    if (!c || b.bad || HEAD + out_len > FF_PACKET_MAX)
        return -EIO;
    packet_nonce(c, s->next++, nonce);
    int rc = gnutls_aead_cipher_encrypt(c->h, nonce, sizeof(nonce), out, HEAD, TAG, clear, b.pos,
                                        out + HEAD, &out_len);
    return rc < 0 || out_len != b.pos + TAG ? -EIO : 0;
}

static bool came_before(const struct ff_packets *s, uint64_t n)
{
    if (!s->opened || n > s->last)
        return false;
    return s->last - n >= FF_PACKET_WINDOW ||
           s->window[n % FF_PACKET_WINDOW / 64] & 1ull << n % 64;
}

static void came(struct ff_packets *s, uint64_t n)
{
    if (!s->opened)
        s->first = s->last = n;
    if (n < s->last + FF_PACKET_WINDOW) {
        for (; s->last < n; s->last++)
            s->window[(s->last + 1) % FF_PACKET_WINDOW / 64] &= ~(1ull << (s->last + 1) % 64);
    } else {
        memset(s->window, 0, sizeof(s->window));
        s->last = n;
    }
    s->window[n % FF_PACKET_WINDOW / 64] |= 1ull << n % 64;
    s->first = FF_MIN(s->first, n);
    s->opened++;
}

/* Keys are made for packets that nobody has proved: of the next generation at most; until one has opened, of the first
 * two */
static bool is_far(const struct ff_packets *s, uint64_t n)
{
    uint64_t generation = n >> FF_PACKET_GENERATION, now = s->last >> FF_PACKET_GENERATION;

    return generation != now && generation != now + 1;
}

int ff_packet_open(struct ff_packets *s, const uint8_t *in, size_t len, uint8_t room[FF_PACKET_MAX],
                   struct ff_packet *p)
{
    struct ff_wirebuf head = ff_wb_reader(in, len), b;
    uint8_t nonce[IV_LEN];
    size_t clear_len = FF_PACKET_MAX;

    uint32_t stream = (uint32_t)ff_wb_get(&head, 4);
    uint64_t number = ff_wb_get(&head, 8);
    if (len < FF_PACKET_OVER || len > FF_PACKET_MAX || stream != s->stream || is_far(s, number))
        return -EBADMSG;
    if (came_before(s, number))
        return -EALREADY;
    struct cipher *c = cipher_of(s, number);
    if (!c)
        return -EBADMSG;
    packet_nonce(c, number, nonce);
    if (gnutls_aead_cipher_decrypt(c->h, nonce, sizeof(nonce), in, HEAD, TAG, in + HEAD, len - HEAD,
                                   room, &clear_len) < 0 ||
        clear_len != len - HEAD - TAG)
        return -EBADMSG;
    came(s, number);
    b = ff_wb_reader(room, clear_len);
    p->kind = (enum ff_packet_kind)ff_wb_get(&b, 2);
    p->region = (uint16_t)ff_wb_get(&b, 2);
    p->part = (uint32_t)ff_wb_get(&b, 4);
    p->page = ff_wb_get(&b, 8);
    p->data = room + b.pos;
    p->len = (uint32_t)ff_wb_left(&b);
    return 0;
}

void ff_packets_count(const struct ff_packets *s, uint64_t *opened, uint64_t *missing)
{
    *opened = s->opened;
    *missing = s->opened ? s->last - s->first + 1 - s->opened : 0;
}
