/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * gcm.c - AES-128-GCM of a queue's frames, on CPUs that encrypt four blocks with one instruction
 */
#include <pthread.h>

#include <gnutls/gnutls.h>
#include <intel-ipsec-mb.h>

#include "cleanup.h"
#include "failpoint.h"
#include "gcm.h"
#include "secret.h"

#define TAG_LEN 16
#define GCM_PIECE 1024u
#define FETCH_AHEAD 2048u
#define CACHE_LINE 64u
#define GCM_NEEDED (IMB_FEATURE_AVX512_SKX | IMB_FEATURE_VAES | IMB_FEATURE_VPCLMULQDQ)

struct ff_gcm {
    struct gcm_key_data key __attribute__((aligned(64)));
    struct gcm_context_data frame;
};

/* The lines of [at, at + n) behind FETCH_AHEAD of what ends at @end: in the cache, to be written or not */
#define PREFETCH(base, at, n, end, writes)                                                  \
    for (size_t k_ = (at) + FETCH_AHEAD, end_ = FF_MIN(k_ + (n), end); k_ < end_; k_ += CACHE_LINE)     \
        __builtin_prefetch((base) + k_, writes)

static IMB_MGR *functions; /* NULL: they are not for this CPU */

static void find_functions(void)
{
    IMB_MGR *m = alloc_mb_mgr(0);

    if (!m)
        return;
    init_mb_mgr_auto(m, NULL);
    if (!imb_get_errno(m) && (m->features & GCM_NEEDED) == GCM_NEEDED)
        functions = m;
    else
        free_mb_mgr(m);
}

struct ff_gcm *ff_gcm_new(const uint8_t key[16])
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, find_functions);
    if (!functions || ff_failpoint("tcp.seal.gcm"))
        return NULL;
    struct ff_gcm *g = ff_secret_new(sizeof(*g));
    if (g)
        IMB_AES128_GCM_PRE(functions, key, &g->key);
    return g;
}

void ff_gcm_free(struct ff_gcm *g)
{
    ff_secret_free(g, sizeof(*g));
}

void ff_gcm_close(struct ff_gcm *g, const uint8_t *nonce, const void *head, size_t head_len,
                  const struct iovec *iov, unsigned n_iov, void *out)
{
    uint8_t *to = out;

    IMB_AES128_GCM_INIT(functions, &g->key, &g->frame, nonce, head, head_len);
    for (unsigned i = 0; i < n_iov; i++) {
        const uint8_t *from = iov[i].iov_base;
        for (size_t at = 0, n; at < iov[i].iov_len; at += n, to += n) {
            n = FF_MIN(iov[i].iov_len - at, (size_t)GCM_PIECE);
            PREFETCH(from, at, n, iov[i].iov_len, 0);
            IMB_AES128_GCM_ENC_UPDATE(functions, &g->key, &g->frame, to, from + at, n);
        }
    }
    IMB_AES128_GCM_ENC_FINALIZE(functions, &g->key, &g->frame, to, TAG_LEN);
}

bool ff_gcm_open(struct ff_gcm *g, const uint8_t *nonce, const void *head, size_t head_len,
                 const void *in, size_t len, void *out)
{
    const uint8_t *from = in;
    uint8_t *to = out, tag[TAG_LEN];

    IMB_AES128_GCM_INIT(functions, &g->key, &g->frame, nonce, head, head_len);
    for (size_t at = 0, n; at < len; at += n) {
        n = FF_MIN(len - at, (size_t)GCM_PIECE);
        PREFETCH(to, at, n, len, 1);
        IMB_AES128_GCM_DEC_UPDATE(functions, &g->key, &g->frame, to + at, from + at, n);
    }
    IMB_AES128_GCM_DEC_FINALIZE(functions, &g->key, &g->frame, tag, TAG_LEN);
    return !gnutls_memcmp(tag, from + len, TAG_LEN);
}
