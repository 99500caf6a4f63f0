/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_certs.c - links of two ends with certificates: whose are taken, and what strangers cost
 */
#include "pair.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <malloc.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>

#include <gnutls/gnutls.h>
#include <gnutls/x509.h>

#include "certs.h"
#include "kept_log.h"
#include "tcp_gate.h"

#define DAY 86400
#define CROWD 300

/* --- certificates: good/ and other/ are of two CAs --- */

static char top[64];

struct made {
    gnutls_x509_crt_t crt;
    gnutls_x509_privkey_t key;
};

static void must_tls(int rc)
{
    if (rc < 0)
        fail_msg("GnuTLS: %s", gnutls_strerror(rc));
}

static void write_pem(const char *folder, const char *name, const gnutls_datum_t *d)
{
    char path[128];

    snprintf(path, sizeof(path), "%s/%s", top, folder);
    mkdir(path, 0700);
    snprintf(path, sizeof(path), "%s/%s/%s", top, folder, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(d->data, 1, d->size, f), d->size);
    fclose(f);
}

/* @ca: who signs, NULL: itself; @purpose: NULL for a CA */
static struct made make_cert(const struct made *ca, const char *purpose, time_t until, int serial)
{
    struct made m;
    uint8_t number[2] = {1, (uint8_t)serial};
    time_t now = time(NULL);

    must_tls(gnutls_x509_privkey_init(&m.key));
    must_tls(gnutls_x509_privkey_generate(m.key, GNUTLS_PK_ECDSA,
                                          GNUTLS_CURVE_TO_BITS(GNUTLS_ECC_CURVE_SECP256R1), 0));
    must_tls(gnutls_x509_crt_init(&m.crt));
    must_tls(gnutls_x509_crt_set_version(m.crt, 3));
    must_tls(gnutls_x509_crt_set_key(m.crt, m.key));
    must_tls(gnutls_x509_crt_set_serial(m.crt, number, sizeof(number)));
    must_tls(gnutls_x509_crt_set_activation_time(m.crt, now - 2 * DAY));
    must_tls(gnutls_x509_crt_set_expiration_time(m.crt, until));
    must_tls(gnutls_x509_crt_set_dn(m.crt, ca ? "CN=end" : "CN=ca", NULL));
    must_tls(gnutls_x509_crt_set_ca_status(m.crt, !ca));
    must_tls(gnutls_x509_crt_set_key_usage(m.crt, ca ? GNUTLS_KEY_DIGITAL_SIGNATURE
                                                     : GNUTLS_KEY_KEY_CERT_SIGN |
                                                           GNUTLS_KEY_CRL_SIGN));
    if (ca) {
        must_tls(gnutls_x509_crt_set_key_purpose_oid(m.crt, purpose, 0));
        must_tls(gnutls_x509_crt_set_subject_alt_name(m.crt, GNUTLS_SAN_DNSNAME, "there", 5, 0));
        must_tls(gnutls_x509_crt_set_subject_alt_name(m.crt, GNUTLS_SAN_IPADDRESS, "\177\0\0\1", 4,
                                                      GNUTLS_FSAN_APPEND));
    }
    must_tls(gnutls_x509_crt_sign2(m.crt, ca ? ca->crt : m.crt, ca ? ca->key : m.key,
                                   GNUTLS_DIG_SHA256, 0));
    return m;
}

static void drop_made(struct made *m)
{
    gnutls_x509_crt_deinit(m->crt);
    gnutls_x509_privkey_deinit(m->key);
}

/* In @folder: @ca's, and one that it signs for @end ("server", "client"); @purpose of it */
static void put_certs(const char *folder, const struct made *ca, const char *end,
                      const char *purpose, time_t until, int serial)
{
    struct made m = make_cert(ca, purpose, until, serial);
    gnutls_datum_t d;
    char name[32];

    must_tls(gnutls_x509_crt_export2(ca->crt, GNUTLS_X509_FMT_PEM, &d));
    write_pem(folder, "ca-cert.pem", &d);
    gnutls_free(d.data);
    must_tls(gnutls_x509_crt_export2(m.crt, GNUTLS_X509_FMT_PEM, &d));
    snprintf(name, sizeof(name), "%s-cert.pem", end);
    write_pem(folder, name, &d);
    gnutls_free(d.data);
    must_tls(gnutls_x509_privkey_export2(m.key, GNUTLS_X509_FMT_PEM, &d));
    snprintf(name, sizeof(name), "%s-key.pem", end);
    write_pem(folder, name, &d);
    gnutls_free(d.data);
    drop_made(&m);
}

/* A list of @ca's that revokes serial number 1, 7 */
static void put_list(const char *folder, const struct made *ca)
{
    static const uint8_t number[2] = {1, 7};
    gnutls_x509_crl_t crl;
    time_t now = time(NULL);
    gnutls_datum_t d;

    must_tls(gnutls_x509_crl_init(&crl));
    must_tls(gnutls_x509_crl_set_version(crl, 2));
    must_tls(gnutls_x509_crl_set_this_update(crl, now - DAY));
    must_tls(gnutls_x509_crl_set_next_update(crl, now + DAY));
    must_tls(gnutls_x509_crl_set_crt_serial(crl, number, sizeof(number), now - DAY));
    must_tls(gnutls_x509_crl_sign2(crl, ca->crt, ca->key, GNUTLS_DIG_SHA256, 0));
    must_tls(gnutls_x509_crl_export2(crl, GNUTLS_X509_FMT_PEM, &d));
    write_pem(folder, "ca-crl.pem", &d);
    gnutls_free(d.data);
    gnutls_x509_crl_deinit(crl);
}

static int make_all(void **state)
{
    const char *server = GNUTLS_KP_TLS_WWW_SERVER, *client = GNUTLS_KP_TLS_WWW_CLIENT;
    time_t later = time(NULL) + DAY, past = time(NULL) - DAY;
    (void)state;

    snprintf(top, sizeof(top), "/tmp/farfork-certs-XXXXXX");
    if (!mkdtemp(top))
        return -1;
    struct made ca = make_cert(NULL, NULL, later, 1), other = make_cert(NULL, NULL, later, 1);
    put_certs("good", &ca, "server", server, later, 2);
    put_certs("good", &ca, "client", client, later, 3);
    put_certs("other", &other, "server", server, later, 4);
    put_certs("other", &other, "client", client, later, 5);
    put_certs("swapped", &ca, "server", client, later, 6);
    put_certs("swapped", &ca, "client", server, later, 6);
    put_certs("revoked", &ca, "client", client, later, 7);
    put_certs("list", &ca, "server", server, later, 8);
    put_list("list", &ca);
    put_certs("expired", &ca, "client", client, past, 9);
    put_certs("none", &ca, "server", server, later, 10); /* no client's */
    drop_made(&ca);
    drop_made(&other);
    keep_logs_from_now(FF_LOG_WARN);
    return 0;
}

static int remove_all(void **state)
{
    char command[96];
    (void)state;

    ff_log_set(NULL, FF_LOG_WARN);
    snprintf(command, sizeof(command), "rm -r %s", top);
    return system(command);
}

static struct ff_key *load(const char *folder, const char *hostname, bool server)
{
    char path[128];
    struct ff_error err;
    struct ff_key *k;

    snprintf(path, sizeof(path), "%s/%s", top, folder);
    assert_ok(ff_key_load_certs(path, hostname, NULL, server, &k, &err), err);
    return k;
}

/* --- links --- */

static struct ff_listener *must_listen(struct ff_key *k)
{
    struct ff_link_params lp = {.host = "127.0.0.1", .port = "0", .timeout_ms = 15000, .key = k};
    struct ff_listener *ls;
    struct ff_error err;

    assert_ok(ff_tcp_listen(&lp, &ls, &err), err);
    return ls;
}

/* A source with @k, which this ends; 0: it has got in, and the link works */
static int try_source(struct ff_listener *ls, struct ff_key *k, struct ff_error *err)
{
    struct caller c;
    struct ff_link *l = NULL;
    struct ff_error why;
    uint8_t buf[FF_MSG_MAX];

    caller_start(&c, ff_tcp_port(ls), k);
    bool in = !ff_tcp_accept(ls, 1000, &l, &why);
    int rc = caller_end(&c);
    assert_int_equal(in, !rc);
    *err = c.err;
    if (in) {
        assert_true(l->sealed && c.link->sealed);
        assert_ok(c.link->ops->send(c.link, "0123456789", 10, &why), why);
        assert_int_equal(l->ops->recv(l, buf, SOON_MS, &why), 10);
        assert_memory_equal(buf, "0123456789", 10);
        l->ops->free(l);
        c.link->ops->free(c.link);
    }
    ff_key_unref(k);
    return rc;
}

static void test_taken(void **state)
{
    static const char *const name[] = {NULL, "there", "127.0.0.1"};
    struct ff_key *k = load("good", NULL, true), *list = load("list", NULL, true);
    struct ff_listener *ls = must_listen(k), *choosy = must_listen(list);
    struct ff_error err;
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(name); i++)
        assert_ok(try_source(ls, load("good", name[i], false), &err), err);
    assert_ok(try_source(ls, load("revoked", NULL, false), &err), err); /* it has no list */
    assert_ok(try_source(choosy, load("good", NULL, false), &err), err);
    ff_tcp_listener_free(ls);
    ff_tcp_listener_free(choosy);
    ff_key_unref(k);
    ff_key_unref(list);
}

/* Each is refused, by the side that has a reason, and the next one gets in */
static void test_refused(void **state)
{
    static const struct {
        const char *there, *here, *hostname, *source, *dest;
    } bad[] = {
        {"good", "other", NULL, "peer's is not taken", "alert"},
        {"other", "good", NULL, "peer's is not taken", "alert"},
        {"good", "good", "elsewhere", "for host elsewhere", "alert"},
        {"swapped", "good", NULL, "peer's is not taken", "alert"},
        {"good", "swapped", NULL, "certificate?", "peer's is not taken"},
        {"list", "revoked", NULL, "certificate?", "revoked"},
        {"good", "expired", NULL, "certificate?", "expired"},
    };
    struct ff_error err;
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(bad); i++) {
        struct ff_key *k = load(bad[i].there, NULL, true);
        struct ff_listener *ls = must_listen(k);
        assert_true(try_source(ls, load(bad[i].here, bad[i].hostname, false), &err) < 0);
        print_message("%s\n  %s\n", err.text, last_log);
        assert_non_null(strstr(err.text, bad[i].source));
        assert_non_null(strstr(last_log, bad[i].dest));
        if (!strcmp(bad[i].there, "good"))
            assert_ok(try_source(ls, load("good", NULL, false), &err), err);
        ff_tcp_listener_free(ls);
        ff_key_unref(k);
    }
}

/* Whoever believes every destination, and shows none himself */
static void test_no_certificate(void **state)
{
    struct ff_key *k = load("good", NULL, true);
    struct ff_listener *ls = must_listen(k);
    gnutls_certificate_credentials_t nothing;
    gnutls_session_t s;
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons((uint16_t)ff_tcp_port(ls)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), rc;
    struct ff_error err;
    struct ff_link *l;
    (void)state;

    assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
    must_tls(gnutls_certificate_allocate_credentials(&nothing));
    must_tls(gnutls_init(&s, GNUTLS_CLIENT | GNUTLS_NONBLOCK));
    must_tls(gnutls_set_default_priority(s));
    must_tls(gnutls_credentials_set(s, GNUTLS_CRD_CERTIFICATE, nothing));
    gnutls_transport_set_int(s, fd);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    while ((rc = gnutls_handshake(s)) == GNUTLS_E_AGAIN)
        assert_fails(ff_tcp_accept(ls, 100, &l, &err), ETIMEDOUT);
    assert_int_equal(rc, 0); /* it believes to be in */
    assert_fails(ff_tcp_accept(ls, 500, &l, &err), ETIMEDOUT);
    assert_non_null(strstr(last_log, "has none"));
    gnutls_deinit(s);
    gnutls_certificate_free_credentials(nothing);
    close(fd);
    assert_ok(try_source(ls, load("good", NULL, false), &err), err);
    ff_tcp_listener_free(ls);
    ff_key_unref(k);
}

/* A key is no certificate, nor the other way round; nor is what tells certificates apart a key */
static void test_other_proofs(void **state)
{
    struct ff_key *k = load("good", NULL, true), *own = must_key(PAIR_KEY);
    struct ff_key *digest = ff_key_of_bytes(ff_key_bytes(k));
    struct ff_listener *ls = must_listen(k), *keyed = must_listen(own);
    struct ff_error err;
    (void)state;

    assert_fails(try_source(ls, ff_key_ref(own), &err), EPROTONOSUPPORT);
    assert_fails(try_source(ls, digest, &err), EPROTONOSUPPORT);
    assert_fails(try_source(keyed, load("good", NULL, false), &err), EACCES);
    assert_error(err, EACCES, "tls-creds-x509?");
    assert_ok(try_source(ls, load("good", NULL, false), &err), err);
    assert_ok(try_source(keyed, ff_key_ref(own), &err), err);
    ff_tcp_listener_free(ls);
    ff_tcp_listener_free(keyed);
    ff_key_unref(own);
    ff_key_unref(k);
}

/* Two connections have two keys; and the files are what tells keys of certificates apart */
static void test_keys(void **state)
{
    struct ff_key *k[] = {load("good", NULL, true), load("good", NULL, true),
                          load("good", NULL, false), load("good", "there", false),
                          load("other", NULL, true), load("list", NULL, true)};
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(k); i++)
        for (size_t j = 0; j < FF_ARRAY_LEN(k); j++)
            assert_int_equal(ff_key_equal(k[i], k[j]), i == j || (i < 2 && j < 2));
    for (size_t i = 0; i < FF_ARRAY_LEN(k); i++)
        ff_key_unref(k[i]);
}

static void test_files(void **state)
{
    struct ff_error err;
    struct ff_key *k;
    char path[128];
    (void)state;

    assert_fails(ff_key_load_certs("/nonexistent", NULL, NULL, true, &k, &err), ENOENT);
    assert_error(err, ENOENT, "ca-cert.pem");
    snprintf(path, sizeof(path), "%s/expired", top);
    assert_fails(ff_key_load_certs(path, NULL, NULL, true, &k, &err), ENOENT);
    assert_error(err, ENOENT, "server-cert.pem");
    snprintf(path, sizeof(path), "%s/none", top);
    assert_fails(ff_key_load_certs(path, NULL, NULL, false, &k, &err), ENOENT);
    assert_error(err, ENOENT, "client-cert.pem");
    snprintf(path, sizeof(path), "%s/bad", top);
    write_pem("bad", "ca-cert.pem", &(gnutls_datum_t){.data = (uint8_t *)"x", .size = 1});
    assert_fails(ff_key_load_certs(path, NULL, NULL, true, &k, &err), EINVAL);
    assert_error(err, EINVAL, "ca-cert.pem");
}

/* A key that is encrypted wants its password */
static void test_password(void **state)
{
    static const char *const name[] = {"ca-cert.pem", "client-cert.pem"};
    char path[128];
    gnutls_x509_privkey_t own;
    gnutls_datum_t d;
    struct ff_error err;
    struct ff_key *k;
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(name); i++) {
        snprintf(path, sizeof(path), "%s/good/%s", top, name[i]);
        must_tls(gnutls_load_file(path, &d));
        write_pem("locked", name[i], &d);
        gnutls_free(d.data);
    }
    snprintf(path, sizeof(path), "%s/good/client-key.pem", top);
    must_tls(gnutls_load_file(path, &d));
    must_tls(gnutls_x509_privkey_init(&own));
    must_tls(gnutls_x509_privkey_import(own, &d, GNUTLS_X509_FMT_PEM));
    gnutls_free(d.data);
    must_tls(gnutls_x509_privkey_export2_pkcs8(own, GNUTLS_X509_FMT_PEM, "open it",
                                               GNUTLS_PKCS_PBES2_AES_256, &d));
    write_pem("locked", "client-key.pem", &d);
    gnutls_free(d.data);
    gnutls_x509_privkey_deinit(own);

    snprintf(path, sizeof(path), "%s/locked", top);
    assert_ok(ff_key_load_certs(path, NULL, "open it", false, &k, &err), err);
    ff_key_unref(k);
    assert_fails(ff_key_load_certs(path, NULL, "open that", false, &k, &err), EINVAL);
    assert_null(strstr(err.text, "open that"));
    assert_fails(ff_key_load_certs(path, NULL, NULL, false, &k, &err), EINVAL);
}

/* --- strangers --- */

static int begin_tls(const struct ff_listener *ls)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons((uint16_t)ff_tcp_port(ls)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct ff_key *k = load("other", NULL, false);
    struct ff_cert_exchange *x;
    struct ff_error err;

    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
    assert_ok(ff_certs_begin(ff_key_certs(k), fd, "there", &x, &err), err);
    assert_fails(ff_certs_step(x, &err), EAGAIN); /* ClientHello is out */
    ff_certs_end(x);
    ff_key_unref(k);
    return fd;
}

/* Has the listener not dropped @fd? */
static bool is_there(int fd)
{
    char answer[4096];
    ssize_t n;

    while ((n = recv(fd, answer, sizeof(answer), MSG_DONTWAIT)) > 0)
        ;
    return n < 0 && errno == EAGAIN;
}

/* Each says ClientHello and no more: few have memory, and the right one gets in among them */
static void test_crowd(void **state)
{
    struct ff_key *k = load("good", NULL, true);
    struct ff_listener *ls = must_listen(k);
    int fd[CROWD], left = 0;
    struct ff_error err;
    struct ff_link *l;
    (void)state;

    size_t before = mallinfo2().uordblks, most = 0;
    for (int i = 0; i < CROWD; i++) {
        fd[i] = begin_tls(ls);
        assert_fails(ff_tcp_accept(ls, 0, &l, &err), ETIMEDOUT);
        most = FF_MAX(most, mallinfo2().uordblks - FF_MIN(before, mallinfo2().uordblks));
    }
    /* 0: a sanitizer's heap does not tell */
    print_message("%d ClientHellos: at most %zu KiB\n", CROWD, most >> 10);
    assert_in_range(most, 0, TCP_GATE_CERTS_MAX * (128u << 10));
    assert_ok(try_source(ls, load("good", NULL, false), &err), err);
    for (int i = 0; i < CROWD; i++) {
        left += is_there(fd[i]);
        close(fd[i]);
    }
    assert_in_range(left, 1, TCP_GATE_CERTS_MAX); /* those who had a session last */
    ff_tcp_listener_free(ls);
    ff_key_unref(k);
}

/* verbs does not have it; that is said, and not done without */
static void test_verbs(void **state)
{
    struct ff_key *k = load("good", NULL, false);
    struct ff_link_params lp = {.host = "127.0.0.1", .port = "1", .timeout_ms = 1000, .key = k,
                                .insecure = true};
    struct ff_port *port;
    struct ff_error err;
    struct ff_link *l;
    (void)state;

    assert_fails(ff_link_connect(&lp, FF_LINK_VERBS, -1, &l, &err), ENOTSUP);
    assert_error(err, ENOTSUP, "link=tcp");
    assert_fails(ff_port_listen(&lp, FF_LINK_VERBS, &port, &err), ENOTSUP);
    ff_key_unref(k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_taken),        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_other_proofs), cmocka_unit_test(test_keys),
        cmocka_unit_test(test_files),        cmocka_unit_test(test_crowd),
        cmocka_unit_test(test_verbs),        cmocka_unit_test(test_no_certificate),
        cmocka_unit_test(test_password),
    };
    return cmocka_run_group_tests(tests, make_all, remove_all) ? 1 : 0;
}
