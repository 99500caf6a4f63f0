/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * gate_fuzz.c - libFuzzer: peers of a listener with a key, and of a source, say what they like
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      first byte: who is tried; the rest: what the peer says. Bit 7: what it says is XORed
 *              with what a peer with the key would say, so that a few bytes of input are a message
 *              that is nearly right.
 * Invariants   no crash, no access outside the messages (ASAN); nobody gets in, and no record
 *              opens, unless it says exactly what a peer with the key would say.
 */
#include <stdlib.h>
#include <sys/socket.h>

#include "certs.c"
#include "error.c"
#include "failpoint.c"
#include "printable.c"
#include "handshake.c"
#include "kdf.c"
#include "key.c"
#include "log.c"
#include "gcm.c"
#include "seal.c"
#include "secret.c"
#include "tcp_socket.c"

#include "tcp_gate.c"
#include "verbs_gate.c"

#define KEY "5f3c0e9d6b2a48f1c7e6d5b4a39281706f5e4d3c2b1a09f8e7d6c5b4a3928170"
#define MESSAGE_MAX 256u

static struct ff_key *key;
static struct ff_handshake source;
static uint8_t hello[FF_HS_HELLO_LEN], answer[FF_HS_ANSWER_LEN], proof[FF_HS_PROOF_LEN];
static struct ff_epoch epoch;

static void ignore_log(enum ff_log_level level, const char *line)
{
    (void)level, (void)line;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    ff_log_set(ignore_log, FF_LOG_ERROR);
    return ff_key_parse(KEY, strlen(KEY), &key, NULL);
}

/* What the peer says: input, or input upon @right; its length */
static size_t said(uint8_t out[MESSAGE_MAX], const uint8_t *in, size_t n, bool nearly,
                   const uint8_t *right, size_t right_len)
{
    n = n < MESSAGE_MAX ? n : MESSAGE_MAX;
    if (!nearly) {
        memcpy(out, in, n);
        return n;
    }
    memcpy(out, right, right_len);
    for (size_t i = 0; i < n && i < right_len; i++)
        out[i] ^= in[i];
    return right_len;
}

static void must(bool fine)
{
    if (!fine)
        abort();
}

static bool equal(const uint8_t *a, size_t n, const uint8_t *b, size_t m)
{
    return n == m && !memcmp(a, b, n);
}

static void ask(void)
{
    uint8_t nonce[FF_HS_NONCE_LEN] = {1};
    ff_hs_ask(&source, FF_HS_SUITES, nonce, hello);
}

/* A destination that has answered our hello: what its source would prove is in proof */
static struct ff_handshake answered(void)
{
    uint8_t nonce[FF_HS_NONCE_LEN] = {2};
    struct ff_handshake d;
    bool can_send;

    ask();
    must(!ff_hs_answer(&d, key, FF_HS_SUITES, nonce, hello, sizeof(hello), answer, &can_send,
                       NULL));
    struct ff_handshake s = source;
    must(!ff_hs_prove(&s, key, answer, sizeof(answer), proof, &epoch, NULL));
    return d;
}

static void try_source(const uint8_t *in, size_t n, bool nearly)
{
    uint8_t msg[MESSAGE_MAX], out[FF_HS_PROOF_LEN];
    struct ff_error err;

    answered();
    n = said(msg, in, n, nearly, answer, sizeof(answer));
    int rc = ff_hs_prove(&source, key, msg, n, out, &epoch, &err);
    must(!rc == equal(msg, n, answer, sizeof(answer)));
}

static void try_destination(const uint8_t *in, size_t n, bool nearly)
{
    uint8_t msg[MESSAGE_MAX];
    struct ff_handshake d = answered();
    struct ff_error err;

    n = said(msg, in, n, nearly, proof, sizeof(proof));
    int rc = ff_hs_check(&d, key, msg, n, &epoch, &err);
    must(!rc == equal(msg, n, proof, sizeof(proof)));
}

static void try_record(const uint8_t *in, size_t n, bool nearly)
{
    static const uint8_t text[40] = "a control message";
    uint8_t msg[MESSAGE_MAX], right[sizeof(text) + FF_SEAL_TAG_LEN], out[MESSAGE_MAX];
    struct ff_seal tx, rx;

    answered();
    must(!ff_seal_init(&tx, epoch.suite, epoch.from_source));
    must(!ff_seal_init(&rx, epoch.suite, epoch.from_source));
    must(!ff_seal_close(&tx, NULL, 0, text, sizeof(text), right));
    n = said(msg, in, n, nearly, right, sizeof(right));
    int rc = ff_seal_open(&rx, NULL, 0, msg, (uint32_t)n, out);
    must((rc >= 0) == equal(msg, n, right, sizeof(right)));
}

/* Both gates: a stranger that does not know the nonce that it is sent */
static void try_gates(const uint8_t *in, size_t n, bool nearly)
{
    uint8_t msg[MESSAGE_MAX], out[FF_HS_ANSWER_LEN];
    const struct ff_epoch *e;
    struct verbs_gate *v;
    struct tcp_gate *g;
    struct ff_error err;
    bool can_send;
    int fd[2];

    answered();
    n = said(msg, in, n, nearly, hello, sizeof(hello));
    must(!tcp_gate_new(key, &g, NULL) && !verbs_gate_new(key, &v, NULL));
    must(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd));
    tcp_gate_add(g, fd[0]);
    must(send(fd[1], msg, n, MSG_NOSIGNAL) >= 0 || !n);
    for (unsigned i = 0; i < 3; i++) {
        must(tcp_gate_next(g, &e) == -EAGAIN);
        send(fd[1], proof, sizeof(proof), MSG_NOSIGNAL);
    }
    verbs_gate_hello(v, msg, n, out, &can_send, &err);
    must(verbs_gate_proof(v, msg, n, &e, &err) < 0);
    must(verbs_gate_proof(v, proof, sizeof(proof), &e, &err) < 0);
    close(fd[1]);
    tcp_gate_free(g);
    verbs_gate_free(v);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const tries[])(const uint8_t *, size_t, bool) = {try_source, try_destination,
                                                                    try_record, try_gates};

    if (size)
        tries[data[0] % 4](data + 1, size - 1, data[0] & 128);
    return 0;
}
