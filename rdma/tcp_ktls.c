/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * tcp_ktls.c - the kernel's TLS (kTLS) for what a connection sends
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>

#include <linux/tls.h>

#include "cleanup.h"
#include "tcp_ktls.h"

#define HANDSHAKE 22 /* a record's type: RFC 8446, 5.1 */

/* What setsockopt(TLS_TX) takes; its length depends on the cipher */
union tx_key {
    struct tls_crypto_info info;
    struct tls12_crypto_info_aes_gcm_128 aes;
    struct tls12_crypto_info_chacha20_poly1305 chacha;
};

static socklen_t key_size(const union tx_key *k)
{
    return k->info.cipher_type == TLS_CIPHER_AES_GCM_128 ? sizeof(k->aes) : sizeof(k->chacha);
}

static int set_tx_key(int fd, const union tx_key *k)
{
    return setsockopt(fd, SOL_TLS, TLS_TX, k, key_size(k)) < 0 ? -errno : 0;
}

static int set_ulp(int fd)
{
    return setsockopt(fd, IPPROTO_TCP, TCP_ULP, "tls", sizeof("tls")) < 0 ? -errno : 0;
}

/* --- can it? --- */

/* A connection to a socket of this function's, which nobody accepts; or -errno of a kernel that has
 * no TLS, -ENOTCONN: there is none to try it on */
static int connect_here(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    FF_AUTO_CLOSE int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    FF_AUTO_CLOSE int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct timeval soon = {.tv_sec = 1};
    socklen_t len = sizeof(at);

    if (listener < 0 || fd < 0 || bind(listener, (struct sockaddr *)&at, len) ||
        listen(listener, 1) || getsockname(listener, (struct sockaddr *)&at, &len) ||
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &soon, sizeof(soon)) ||
        connect(fd, (struct sockaddr *)&at, len))
        return -ENOTCONN;
    int rc = set_ulp(fd);
    if (rc)
        return rc;
    rc = fd;
    fd = -1;
    return rc;
}

/* With a key of zeros, and nothing is sent */
static const char *try_cipher(uint16_t cipher)
{
    union tx_key k = {.info = {.version = TLS_1_3_VERSION, .cipher_type = cipher}};

    FF_AUTO_CLOSE int fd = connect_here();
    if (fd == -ENOTCONN)
        return "no connection on the loopback can be made to try it on";
    if (fd < 0)
        return "its module \"tls\" is not there, or not loaded (modprobe tls)";
    if (set_tx_key(fd, &k))
        return "it does not have TLS 1.3 with the cipher of this connection";
    if (set_tx_key(fd, &k))
        return "it takes no new key on a connection, as Linux does from 6.14 on";
    return NULL;
}

static const char *aes_lacks, *chacha_lacks;

static void try_aes(void)
{
    aes_lacks = try_cipher(TLS_CIPHER_AES_GCM_128);
}

static void try_chacha(void)
{
    chacha_lacks = try_cipher(TLS_CIPHER_CHACHA20_POLY1305);
}

const char *tcp_ktls_lacks(gnutls_cipher_algorithm_t cipher)
{
    static pthread_once_t aes = PTHREAD_ONCE_INIT, chacha = PTHREAD_ONCE_INIT;
    bool is_aes = cipher == GNUTLS_CIPHER_AES_128_GCM;

    pthread_once(is_aes ? &aes : &chacha, is_aes ? try_aes : try_chacha);
    return is_aes ? aes_lacks : chacha_lacks;
}

/* --- keys --- */

/* The key for sending, in the kernel's form. The IV of 12 bytes is AES's salt and IV */
static int tx_key_of(gnutls_session_t session, union tx_key *k)
{
    bool is_aes = gnutls_cipher_get(session) == GNUTLS_CIPHER_AES_128_GCM;
    gnutls_datum_t mac, iv, key;
    unsigned char number[8];

    memset(k, 0, sizeof(*k));
    k->info.version = TLS_1_3_VERSION;
    k->info.cipher_type = is_aes ? TLS_CIPHER_AES_GCM_128 : TLS_CIPHER_CHACHA20_POLY1305;
    if (gnutls_record_get_state(session, 0, &mac, &iv, &key, number) < 0)
        return -EIO;
    if (iv.size != 12 || key.size != (is_aes ? sizeof(k->aes.key) : sizeof(k->chacha.key)))
        return -EIO;
    if (is_aes) {
        memcpy(k->aes.key, key.data, sizeof(k->aes.key));
        memcpy(k->aes.salt, iv.data, sizeof(k->aes.salt));
        memcpy(k->aes.iv, iv.data + sizeof(k->aes.salt), sizeof(k->aes.iv));
        memcpy(k->aes.rec_seq, number, sizeof(k->aes.rec_seq));
    } else {
        memcpy(k->chacha.key, key.data, sizeof(k->chacha.key));
        memcpy(k->chacha.iv, iv.data, sizeof(k->chacha.iv));
        memcpy(k->chacha.rec_seq, number, sizeof(k->chacha.rec_seq));
    }
    return 0;
}

int tcp_ktls_take_key(int fd, gnutls_session_t session)
{
    union tx_key k;

    int rc = set_ulp(fd);
    if (rc == -EEXIST) /* it has had a key before */
        rc = 0;
    if (!rc)
        rc = tx_key_of(session, &k);
    if (!rc)
        rc = set_tx_key(fd, &k);
    explicit_bzero(&k, sizeof(k));
    return rc;
}

int tcp_ktls_say_new_key(int fd)
{
    /* KeyUpdate, of one byte: none is wanted of the peer */
    static const uint8_t update[] = {24, 0, 0, 1, 0};
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(1)];
    } control = {0};
    struct iovec iov = {.iov_base = (void *)update, .iov_len = sizeof(update)};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = &control,
                         .msg_controllen = sizeof(control.room)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

    c->cmsg_level = SOL_TLS;
    c->cmsg_type = TLS_SET_RECORD_TYPE;
    c->cmsg_len = CMSG_LEN(1);
    *CMSG_DATA(c) = HANDSHAKE;
    ssize_t n = sendmsg(fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
    return n == (ssize_t)sizeof(update) ? 0 : n < 0 ? -errno : -EIO;
}
