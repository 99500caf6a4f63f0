/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_certs_large.c - links of two ends with certificates: long keys, long chains, other groups
 */
#include "pair.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>

#include <gnutls/gnutls.h>
#include <gnutls/x509.h>

#include "kept_log.h"

#define DAY 86400
#define CHAIN_MAX 8

static char top[64];
static gnutls_x509_privkey_t small; /* most certificates have one key: it takes long to make one */

static void must_tls(int rc)
{
    if (rc < 0)
        fail_msg("GnuTLS: %s", gnutls_strerror(rc));
}

/* --- chains --- */

struct chain {
    const char *folder;
    gnutls_x509_privkey_t key;
    unsigned n; /* certificates below the CA: all but the last are CAs, too */
    unsigned more_bytes; /* of an extension that each of them has */
};

static void add_extension(gnutls_x509_crt_t crt, unsigned len)
{
    uint8_t *bytes = calloc(1, len);

    assert_non_null(bytes);
    bytes[0] = 0x04; /* an OCTET STRING with a length of two bytes */
    bytes[1] = 0x82;
    bytes[2] = (uint8_t)((len - 4) >> 8);
    bytes[3] = (uint8_t)(len - 4);
    must_tls(gnutls_x509_crt_set_extension_by_oid(crt, "1.3.6.1.4.1.55555.1", bytes, len, 0));
    free(bytes);
}

/* The @i-th below the CA; 0 is the CA */
static gnutls_x509_crt_t make_cert(const struct chain *c, unsigned i, gnutls_x509_crt_t ca)
{
    bool end = i == c->n;
    uint8_t number[2] = {1, (uint8_t)i};
    time_t now = time(NULL);
    gnutls_x509_crt_t crt;
    char name[16];

    snprintf(name, sizeof(name), "CN=number %u", i);
    must_tls(gnutls_x509_crt_init(&crt));
    must_tls(gnutls_x509_crt_set_version(crt, 3));
    must_tls(gnutls_x509_crt_set_key(crt, c->key));
    must_tls(gnutls_x509_crt_set_serial(crt, number, sizeof(number)));
    must_tls(gnutls_x509_crt_set_activation_time(crt, now - DAY));
    must_tls(gnutls_x509_crt_set_expiration_time(crt, now + DAY));
    must_tls(gnutls_x509_crt_set_dn(crt, name, NULL));
    must_tls(gnutls_x509_crt_set_ca_status(crt, !end));
    must_tls(gnutls_x509_crt_set_key_usage(crt, end ? GNUTLS_KEY_DIGITAL_SIGNATURE
                                                    : GNUTLS_KEY_KEY_CERT_SIGN));
    if (end) {
        must_tls(gnutls_x509_crt_set_key_purpose_oid(crt, GNUTLS_KP_TLS_WWW_SERVER, 0));
        must_tls(gnutls_x509_crt_set_key_purpose_oid(crt, GNUTLS_KP_TLS_WWW_CLIENT, 0));
        must_tls(gnutls_x509_crt_set_subject_alt_name(crt, GNUTLS_SAN_IPADDRESS, "\177\0\0\1", 4,
                                                      0));
    }
    if (i && c->more_bytes)
        add_extension(crt, c->more_bytes);
    must_tls(gnutls_x509_crt_sign2(crt, ca ? ca : crt, c->key, GNUTLS_DIG_SHA256, 0));
    return crt;
}

static FILE *open_in(const char *folder, const char *name)
{
    char path[128];

    snprintf(path, sizeof(path), "%s/%s", top, folder);
    mkdir(path, 0700);
    snprintf(path, sizeof(path), "%s/%s/%s", top, folder, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    return f;
}

static void put_pem(FILE *f, gnutls_datum_t d)
{
    assert_int_equal(fwrite(d.data, 1, d.size, f), d.size);
    gnutls_free(d.data);
}

/* For both ends, the last certificate first */
static void put_chain(const struct chain *c)
{
    static const char *const end[] = {"server", "client"};
    gnutls_x509_crt_t crt[1 + CHAIN_MAX];
    gnutls_datum_t d;
    char name[32];
    FILE *f;

    for (unsigned i = 0; i <= c->n; i++)
        crt[i] = make_cert(c, i, i ? crt[i - 1] : NULL);
    must_tls(gnutls_x509_crt_export2(crt[0], GNUTLS_X509_FMT_PEM, &d));
    put_pem(f = open_in(c->folder, "ca-cert.pem"), d);
    fclose(f);
    for (unsigned k = 0; k < FF_ARRAY_LEN(end); k++) {
        snprintf(name, sizeof(name), "%s-cert.pem", end[k]);
        f = open_in(c->folder, name);
        for (unsigned i = c->n; i; i--) {
            must_tls(gnutls_x509_crt_export2(crt[i], GNUTLS_X509_FMT_PEM, &d));
            put_pem(f, d);
        }
        fclose(f);
        snprintf(name, sizeof(name), "%s-key.pem", end[k]);
        must_tls(gnutls_x509_privkey_export2(c->key, GNUTLS_X509_FMT_PEM, &d));
        put_pem(f = open_in(c->folder, name), d);
        fclose(f);
    }
    for (unsigned i = 0; i <= c->n; i++)
        gnutls_x509_crt_deinit(crt[i]);
}

static int set_up(void **state)
{
    (void)state;
    snprintf(top, sizeof(top), "/tmp/farfork-certs-XXXXXX");
    if (!mkdtemp(top))
        return -1;
    must_tls(gnutls_x509_privkey_init(&small));
    must_tls(gnutls_x509_privkey_generate(small, GNUTLS_PK_ECDSA,
                                          GNUTLS_CURVE_TO_BITS(GNUTLS_ECC_CURVE_SECP256R1), 0));
    put_chain(&(struct chain){"small", small, 1, 0});
    keep_logs_from_now(FF_LOG_WARN);
    return 0;
}

static int remove_all(void **state)
{
    char command[96];
    (void)state;

    gnutls_x509_privkey_deinit(small);
    ff_log_set(NULL, FF_LOG_WARN);
    snprintf(command, sizeof(command), "rm -r %s", top);
    return system(command);
}

static int try_load(const char *folder, bool server, struct ff_key **k, struct ff_error *err)
{
    char path[128];

    snprintf(path, sizeof(path), "%s/%s", top, folder);
    return ff_key_load_certs(path, NULL, NULL, server, k, err);
}

/* --- links --- */

static struct ff_listener *must_listen(const char *folder, struct ff_key **k)
{
    struct ff_link_params lp = {.host = "127.0.0.1", .port = "0", .timeout_ms = 15000};
    struct ff_listener *ls;
    struct ff_error err;

    assert_ok(try_load(folder, true, k, &err), err);
    lp.key = *k;
    assert_ok(ff_tcp_listen(&lp, &ls, &err), err);
    return ls;
}

/* Of @source to one of @dest: 0, or the source's error */
static int try_link(const char *dest, const char *source, struct ff_error *err)
{
    struct ff_key *k[2];
    struct ff_listener *ls = must_listen(dest, &k[0]);
    struct ff_link *l = NULL;
    struct ff_error why;
    struct caller c;
    uint64_t start = ff_now_ns();

    assert_ok(try_load(source, false, &k[1], &why), why);
    last_log[0] = '\0';
    caller_start(&c, ff_tcp_port(ls), k[1]);
    int in = !ff_tcp_accept(ls, 5000, &l, &why), rc = caller_end(&c);
    print_message("%s, %s: %d %s\n  %s\n  %.0f ms\n", dest, source, rc, rc ? c.err.text : "",
                  last_log, (double)(ff_now_ns() - start) / 1e6);
    assert_int_equal(in, !rc);
    *err = c.err;
    if (in) {
        l->ops->free(l);
        c.link->ops->free(c.link);
    }
    ff_tcp_listener_free(ls);
    ff_key_unref(k[0]);
    ff_key_unref(k[1]);
    return rc;
}

static void must_work(const char *dest, const char *source)
{
    struct ff_error err;

    assert_ok(try_link(dest, source, &err), err);
}

/* Of 4096 bits, with what comes between the CA and the end */
static void test_rsa(void **state)
{
    gnutls_x509_privkey_t key;
    (void)state;

    must_tls(gnutls_x509_privkey_init(&key));
    must_tls(gnutls_x509_privkey_generate(key, GNUTLS_PK_RSA, 4096, 0));
    put_chain(&(struct chain){"rsa", key, 4, 0});
    gnutls_x509_privkey_deinit(key);
    must_work("rsa", "rsa");
}

/* --- a key that is too long: its primes are those of two groups of GnuTLS, so that nobody searches
 *     for some --- */

/* The private exponent to 65537 */

static const char too_long[] =
    "557faa80557faa801eb4c1a27310a7c4b47ad3445e9e947070d83336acc97462254f64835a3eda69794c814fd0"
    "ca00aecf8b8ce91a841e0b64ccf3208b44f43a6f97bd8bdd1d89b4f30c606ea9403f59537882c3de47fe740a61"
    "16279249bdc428eb8a04f9a00470a7cb2df775499b1106a59da8dea15c3e1bf2e74956699802c5e468dc33062c"
    "158e291e8231eeb5a8b50a84b39730a7f1d9504c741dc6a2e852a3f3c75383998d285ca985b5fa0c026bd179e3"
    "25028c99ae292dcb3afd49c6c8708d98cfd2030f330768a05ee95d8b59694262b7a6596fde271a56c240644357"
    "4c916a98a32245b9cb374844558145d2fd0d3a69c20f255b1e192a20f08fbcdf00fc567299666922c78d6cf923"
    "f21ccbebb8203a7f1dd0c40e0b883bf294c1c60517eab20636db41aaf5a72fa3614e8e4441e73df36b44b9140d"
    "a43d8b07185964c23e019bd6f9c60f2f33cb74f92915d3f6b0c99b437c788e0248dde403b492721bad9db689d1"
    "aae59a9b9c3b2056e811930583c6182bac03c933a77eba4e10c0440d7b84df0a723cd337aef0e014216a913031"
    "0bf705cf4ec7da1cc854f80d11b3c26ef848beeb32d57871ba62083d57a1233ac01abb8191a053b389470e3866"
    "cdd7a5317bc97bbb2ff9ae2c30cb2925864c94bdf6c7870bc0864bd54e64bd3708afe575b8415d5a8817b13c7e"
    "18c8d28386f0f013a859f77c8b74099f32d84c6808bdf8b61f4513ec3fec7c6d20a1eb91f4243c1a0cf101e2b1"
    "a09e197f4e890a832e527d6c3fc0d7ab4851c137a90f45910abf9d99de994b8f245a58ac455deed55305bc6a6d"
    "98b6489f8c6d163316a8a5029a49abbfaee7ef93c3bac9298cf695dfbf9a9561895aa8d40a9a81d14f11663f4d"
    "9196c79dcfd835aef2ea627d22ae3d6cf184e0ac15a3c3b9012206fdb5eeb3cde37540f096b1f04a2d9e3fe438"
    "7601f71c8e2b2c2c4fab52ea97d7c589429a90f9ddd899cf996498c0d0422ca8619434da4fa404dc4371dd1536"
    "85940445fa31fd22769b334fa7e38a3adf0c634e0dd69e72a0529b9cc314344517835825e3b73ec4afd018a246"
    "833e21113cdf19394556dd27c538ba1c73c4b3a05f09b654bc6478dbdd45be2c2b31502008b3afed1b1c2898a3"
    "9c60b7ac648e29d5cfbb3044ec3452105cd105c9595b6c6d579aaf2abbf772e8b33bc8afe01327144a4c7a25c6"
    "182aed5165ff589e20a3a4b089c7cee01543ce09390c1b3f8aadc9d8714e7103d425bcbd49966469650131bcbc"
    "c11aaf3e50fbef69889a268e6b7c6c2d8eb7f453d08421d461ab8eea24601f633afa65e806a5cbc641e5e0d795"
    "5cc5b02507d2157e5f95d3712d20bb76a9b962b8f0dd9641e3dd207bf66f84a00758d80c749bac7397ada2537c"
    "c6a8c55d06eddb5b88e4969811991f6a4e19164723ef80b940be52471f61b53e495e729fef70d7955cd65e898c"
    "da842b70eab9acd3d59afc0d3a48b3f6a0823cce6e9f8e9066bc818209969c721129c360d0fd7940c1892f3c62"
    "3a71e315f1e0e0a9946d055f05310806ca59ac77c39187d80fd05e2085641f11bb4a1ee43a5012137ef040eefc"
    "fb6ef58f86daa2ab4862b35e67c64d7c83ccfea90156fea90157";

/* Into @out; its bytes */
static unsigned multiply(const gnutls_datum_t *p, const gnutls_datum_t *q, uint8_t *out)
{
    memset(out, 0, p->size + q->size);
    for (unsigned i = p->size; i-- > 0;)
        for (unsigned j = q->size, carry = 0; j-- > 0;) {
            unsigned at = i + j + 1, v = out[at] + p->data[i] * q->data[j] + carry;
            out[at] = (uint8_t)v;
            carry = v >> 8;
            if (!j)
                out[at - 1] = (uint8_t)carry;
        }
    return p->size + q->size;
}

static gnutls_x509_privkey_t make_long_key(void)
{
    const gnutls_datum_t *p = &gnutls_ffdhe_6144_group_prime, *q = &gnutls_ffdhe_3072_group_prime;
    uint8_t n[2048], e[] = {1, 0, 1}, d[sizeof(too_long) / 2];
    gnutls_datum_t hex = {.data = (uint8_t *)too_long, .size = sizeof(too_long) - 1};
    size_t len = sizeof(d);
    gnutls_x509_privkey_t key;

    must_tls(gnutls_hex_decode(&hex, d, &len));
    gnutls_datum_t m = {n, multiply(p, q, n)}, ed = {e, sizeof(e)}, dd = {d, (unsigned)len};
    must_tls(gnutls_x509_privkey_init(&key));
    must_tls(gnutls_x509_privkey_import_rsa_raw2(key, &m, &ed, &dd, p, q, NULL, NULL, NULL));
    return key;
}

static void test_too_long_key(void **state)
{
    gnutls_x509_privkey_t key = make_long_key();
    struct ff_error err;
    struct ff_key *k;
    (void)state;

    put_chain(&(struct chain){"slow", key, 1, 0});
    gnutls_x509_privkey_deinit(key);
    for (int server = 0; server < 2; server++) {
        assert_fails(try_load("slow", server, &k, &err), E2BIG);
        assert_error(err, E2BIG, "an RSA key of 9216 bits (at most 8192)");
    }
}

/* Both ends show as much as they may; what is more is refused by who would show it */
static void test_long_chain(void **state)
{
    struct ff_error err;
    struct ff_key *k;
    (void)state;

    put_chain(&(struct chain){"long", small, 7, 1600});
    must_work("long", "long");
    put_chain(&(struct chain){"longer", small, 7, 1750});
    for (int server = 0; server < 2; server++) {
        assert_fails(try_load("longer", server, &k, &err), E2BIG);
        assert_non_null(strstr(err.text, server ? "server-cert.pem: 7 certificates of"
                                                : "client-cert.pem: 7 certificates of"));
    }
}

/* Whose CA stands among many, as in a distribution's file of them */
static void test_many_cas(void **state)
{
    struct chain c = {"many", small, 0, 0};
    gnutls_datum_t d;
    FILE *f;
    (void)state;

    c.n = 1;
    put_chain(&c);
    f = open_in("many", "more.pem");
    for (unsigned i = 0; i < 400; i++) {
        gnutls_x509_crt_t crt = make_cert(&c, 0, NULL);
        char name[96];
        snprintf(name, sizeof(name), "CN=another %u,O=an authority with a name of some length", i);
        must_tls(gnutls_x509_crt_set_dn(crt, name, NULL));
        must_tls(gnutls_x509_crt_sign2(crt, crt, small, GNUTLS_DIG_SHA256, 0));
        must_tls(gnutls_x509_crt_export2(crt, GNUTLS_X509_FMT_PEM, &d));
        put_pem(f, d);
        gnutls_x509_crt_deinit(crt);
    }
    fclose(f);
    char command[256];
    snprintf(command, sizeof(command), "cat %s/many/more.pem >> %s/many/ca-cert.pem", top, top);
    assert_int_equal(system(command), 0);
    must_work("many", "many");
}

/* Not that of another file, which is where a part of the name leads */
static void test_long_name(void **state)
{
    char dir[600];
    struct ff_error err;
    struct ff_key *k;
    (void)state;

    int len = snprintf(dir, sizeof(dir), "%s/small/", top);
    memset(dir + len, '/', sizeof(dir) - (size_t)len);
    dir[sizeof(dir) - 1] = '\0';
    assert_fails(ff_key_load_certs(dir, NULL, NULL, true, &k, &err), ENAMETOOLONG);
    dir[400] = '\0';
    assert_ok(ff_key_load_certs(dir, NULL, NULL, true, &k, &err), err);
    ff_key_unref(k);
}

/* --- other groups --- */

/* The peer, a program of another kind perhaps, has those of @priority alone: what its handshake
 * returns */
static int shake_with(const char *priority)
{
    struct ff_key *k;
    struct ff_listener *ls = must_listen("small", &k);
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons((uint16_t)ff_tcp_port(ls)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), rc;
    gnutls_certificate_credentials_t own;
    gnutls_session_t s;
    char cert[128], key[128];
    struct ff_error err;
    struct ff_link *l;

    assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
    snprintf(cert, sizeof(cert), "%s/small/client-cert.pem", top);
    snprintf(key, sizeof(key), "%s/small/client-key.pem", top);
    must_tls(gnutls_certificate_allocate_credentials(&own));
    must_tls(gnutls_certificate_set_x509_key_file(own, cert, key, GNUTLS_X509_FMT_PEM));
    must_tls(gnutls_init(&s, GNUTLS_CLIENT | GNUTLS_NONBLOCK));
    must_tls(gnutls_priority_set_direct(s, priority, NULL));
    must_tls(gnutls_credentials_set(s, GNUTLS_CRD_CERTIFICATE, own));
    gnutls_transport_set_int(s, fd);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    last_log[0] = '\0';
    for (int i = 0; (rc = gnutls_handshake(s)) == GNUTLS_E_AGAIN && i < 30; i++)
        assert_fails(ff_tcp_accept(ls, 100, &l, &err), ETIMEDOUT);
    assert_fails(ff_tcp_accept(ls, 100, &l, &err), ETIMEDOUT);
    print_message("%s: %s\n  %s\n", priority, gnutls_strerror(rc), last_log);
    gnutls_deinit(s);
    gnutls_certificate_free_credentials(own);
    close(fd);
    ff_tcp_listener_free(ls);
    ff_key_unref(k);
    return rc;
}

/* Finite fields will do; what TLS 1.3 does not have is refused, and said. QEMU's own parameters for
 * them are not asked for */
static void test_groups(void **state)
{
    (void)state;

    FILE *f = open_in("small", "dh-params.pem");
    fputs("no parameters", f);
    fclose(f);
    assert_int_equal(shake_with("NORMAL:-VERS-ALL:+VERS-TLS1.3:-GROUP-ALL:+GROUP-FFDHE2048"), 0);
    assert_int_equal(shake_with("NORMAL:-VERS-ALL:+VERS-TLS1.3:-GROUP-ALL:+GROUP-FFDHE3072"), 0);
    assert_true(shake_with("NORMAL:-VERS-ALL:+VERS-TLS1.2") < 0);
    assert_non_null(strstr(last_log, "TLS 1.3 in common"));
    assert_true(shake_with("NORMAL:-VERS-ALL:+VERS-TLS1.3:-CIPHER-ALL:+AES-128-CCM-8") < 0);
    assert_non_null(strstr(last_log, "TLS 1.3 in common"));
    must_work("small", "small");
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN); /* a peer gives up, and the other one writes */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rsa),
        cmocka_unit_test(test_too_long_key),
        cmocka_unit_test(test_long_chain),
        cmocka_unit_test(test_many_cas),
        cmocka_unit_test(test_long_name),
        cmocka_unit_test(test_groups),
    };
    return cmocka_run_group_tests(tests, set_up, remove_all) ? 1 : 0;
}
