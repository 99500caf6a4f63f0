/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * rdma-postcopy migration: an address, and by what its two ends prove
 * themselves: key-file= (the library reads it), key=ID of a secret object, or
 * the migration parameter tls-creds, as for QEMU's other transports
 *
 * Credentials of tls-creds-psk become a key of the link; those of
 * tls-creds-x509 the library's own TLS handshake before it.  Whatever there is
 * that would say who may come and cannot be kept is refused: nobody is to
 * believe that it holds.
 */
#include "qemu/osdep.h"
#include "crypto/secret.h"
#include "crypto/tlscreds.h"
#include "crypto/tlscredspsk.h"
#include "crypto/tlscredsx509.h"
#include "migration/migration.h"
#include "migration/options.h"
#include "qapi/error.h"
#include "qemu/cutils.h"
#include "qemu/main-loop.h"
#include "rdma-postcopy-state.h"

/*
 * The library keeps the key where no core dump shows it; this copy is wiped.
 * Without the BQL nobody may look for an object: object-del may free it.
 */
static bool give_key(struct ff_address *a, const char *id, Error **errp)
{
    struct ff_error *err;
    char *key;
    int rc;

    if (!bql_locked()) {
        error_setg(errp, "rdma-postcopy: key=%s: a secret cannot be read out "
                   "of band; use key-file=FILE, or no key: that of the move "
                   "remains", id);
        return false;
    }
    key = qcrypto_secret_lookup_as_utf8(id, errp);
    if (!key) {
        return false;
    }
    err = ff_error_new();
    rc = ff_address_set_key(a, key, strlen(key), err);
    explicit_bzero(key, strlen(key));
    g_free(key);
    if (rc) {
        error_setg(errp, "rdma-postcopy: key=%s: %s", id,
                   ff_error_message(err));
    }
    ff_error_free(err);
    return !rc;
}

static bool is_set(const char *text)
{
    return text && *text;
}

static QCryptoTLSCreds *find_creds(const char *id, bool incoming, Error **errp)
{
    Object *obj = object_resolve_path_component(object_get_objects_root(), id);
    QCryptoTLSCreds *creds = (QCryptoTLSCreds *)
        object_dynamic_cast(obj, TYPE_QCRYPTO_TLS_CREDS);

    if (!creds) {
        error_setg(errp, "rdma-postcopy: tls-creds=%s: there are no TLS "
                   "credentials of that id", id);
        return NULL;
    }
    if (!qcrypto_tls_creds_check_endpoint(
            creds, incoming ? QCRYPTO_TLS_CREDS_ENDPOINT_SERVER
                            : QCRYPTO_TLS_CREDS_ENDPOINT_CLIENT, errp)) {
        error_prepend(errp, "rdma-postcopy: tls-creds=%s: ", id);
        return NULL;
    }
    return creds;
}

static char *creds_property(Object *creds, const char *name)
{
    g_autofree char *value = object_property_get_str(creds, name, NULL);

    return is_set(value) ? g_steal_pointer(&value) : NULL;
}

/* Why these credentials cannot keep what they promise, or NULL */
static const char *what_is_lost(Object *creds, bool incoming)
{
    g_autofree char *priority = creds_property(creds, "priority");
    g_autofree char *dir = creds_property(creds, "dir");
    bool x509 = object_dynamic_cast(creds, TYPE_QCRYPTO_TLS_CREDS_X509);

    if (!x509 && !object_dynamic_cast(creds, TYPE_QCRYPTO_TLS_CREDS_PSK)) {
        return "credentials of this type are not taken: use tls-creds-x509, "
               "tls-creds-psk, key-file=FILE or key=ID";
    }
    if (!dir) {
        return "there is no dir=";
    }
    if (priority) {
        return "priority= is not for rdma-postcopy, which has AES-GCM and "
               "ChaCha20-Poly1305: leave it out";
    }
    if (incoming && is_set(migrate_tls_authz())) {
        return "rdma-postcopy does not ask tls-authz who may come: use a CA "
               "for those who may, and empty it";
    }
    if (x509 && !object_property_get_bool(creds, "verify-peer", NULL)) {
        return "rdma-postcopy does not do without the peer's certificate: "
               "leave verify-peer=off out";
    }
    return NULL;
}

static int give_psk(struct ff_address *a, Object *creds, bool incoming,
                    struct ff_error *err)
{
    g_autofree char *dir = creds_property(creds, "dir");
    g_autofree char *user = creds_property(creds, "username");
    g_autofree char *path =
        g_strdup_printf("%s/%s", dir, QCRYPTO_TLS_CREDS_PSKFILE);

    return ff_address_set_psk(a, path, incoming ? NULL : user ? user : "qemu",
                              err);
}

static int give_x509(struct ff_address *a, Object *creds, bool incoming,
                     const char *password, struct ff_error *err)
{
    g_autofree char *dir = creds_property(creds, "dir");
    const char *hostname = migrate_tls_hostname();
    struct ff_x509 x = {
        .dir = dir,
        .hostname = !incoming && is_set(hostname) ? hostname : NULL,
        .password = password,
        .incoming = incoming,
    };

    return ff_address_set_x509(a, &x, err);
}

/* Under the BQL, which guards the objects and the parameters */
static bool give_creds(struct ff_address *a, bool incoming, Error **errp)
{
    const char *id = migrate_tls_creds(), *lost;
    g_autofree char *password_id = NULL;
    char *password = NULL;
    struct ff_error *err;
    Object *creds;
    int rc;

    if (ff_address_has_key(a)) {
        error_setg(errp, "rdma-postcopy: a key in the address, and the "
                   "parameter tls-creds=%s: give one of them; an empty "
                   "tls-creds is none", id);
        return false;
    }
    creds = OBJECT(find_creds(id, incoming, errp));
    if (!creds) {
        return false;
    }
    lost = what_is_lost(creds, incoming);
    if (lost) {
        error_setg(errp, "rdma-postcopy: tls-creds=%s: %s", id, lost);
        return false;
    }
    password_id = creds_property(creds, "passwordid");
    if (password_id) {
        password = qcrypto_secret_lookup_as_utf8(password_id, errp);
        if (!password) {
            return false;
        }
    }
    err = ff_error_new();
    rc = object_dynamic_cast(creds, TYPE_QCRYPTO_TLS_CREDS_PSK)
             ? give_psk(a, creds, incoming, err)
             : give_x509(a, creds, incoming, password, err);
    if (rc) {
        error_setg(errp, "rdma-postcopy: tls-creds=%s: %s", id,
                   ff_error_message(err));
    }
    ff_error_free(err);
    if (password) {
        explicit_bzero(password, strlen(password));
        g_free(password);
    }
    return !rc;
}

/* QEMU's other transports would look at it when a source comes */
bool rp_check_creds(Error **errp)
{
    const char *id = migrate_tls_creds();

    if (g_strcmp0(id ? id : "", rp.tls_creds ? rp.tls_creds : "")) {
        error_setg(errp, "rdma-postcopy: the parameter tls-creds has been "
                   "changed since this side began to wait: set it before "
                   "migrate-incoming");
        return false;
    }
    return true;
}

void rp_note_creds(void)
{
    g_free(rp.tls_creds);
    rp.tls_creds = g_strdup(migrate_tls_creds());
}

struct ff_address *rp_address(const char *text, bool incoming, Error **errp)
{
    g_auto(GStrv) part = g_strsplit(text, ",", -1);
    g_autoptr(GString) rest = g_string_new(part[0]);
    struct ff_error *err = ff_error_new();
    struct ff_address *a = NULL;
    const char *id = NULL;

    for (unsigned i = 1; part[0] && part[i]; i++) {
        if (!strstart(part[i], "key=", &id)) {
            g_string_append_printf(rest, ",%s", part[i]);
        }
    }
    if (ff_address_parse(rest->str, &a, err)) {
        rp_take_error(errp, err);
        return NULL;
    }
    ff_error_free(err);
    if ((id && !give_key(a, id, errp)) ||
        (bql_locked() && migrate_tls() && !give_creds(a, incoming, errp))) {
        ff_address_free(a);
        return NULL;
    }
    return a;
}

/* query-migrate tells where it listens: the port may be the kernel's choice */
void rp_publish_address(const char *address)
{
    const char *colon = memrchr(address, ':', strcspn(address, ","));
    bool brackets = *address == '[';
    g_autofree char *host = g_strndup(address + brackets,
                                      colon - address - 2 * brackets);
    g_autofree char *port = g_strdup_printf("%u", ff_dest_port(rp.dest));
    SocketAddress a = {
        .type = SOCKET_ADDRESS_TYPE_INET,
        .u.inet = { .host = host, .port = port },
    };

    migrate_add_address(&a);
}
