/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * rdma-postcopy migration: an address, and by what its two ends prove
 * themselves: key-file= (the library reads it), key=ID of a secret object, or
 * the migration parameter tls-creds, as for QEMU's other transports
 *
 * Credentials of tls-creds-psk become a key of the link.  Whatever there is
 * that would say who may come and cannot be kept is refused: nobody is to
 * believe that it holds.
 */
#include "qemu/osdep.h"
#include "crypto/secret.h"
#include "crypto/tlscreds.h"
#include "crypto/tlscredspsk.h"
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

/* What credentials of @type have that a link's key cannot keep */
static const char *what_is_lost(Object *creds, bool incoming)
{
    g_autofree char *priority = object_property_get_str(creds, "priority", NULL);

    if (!object_dynamic_cast(creds, TYPE_QCRYPTO_TLS_CREDS_PSK)) {
        return "credentials of this type are not taken: use tls-creds-psk, "
               "key-file=FILE or key=ID";
    }
    if (is_set(priority)) {
        return "priority= is not for rdma-postcopy, which has AES-GCM and "
               "ChaCha20-Poly1305: leave it out";
    }
    if (incoming && is_set(migrate_tls_authz())) {
        return "tls-authz names subjects of certificates, which users of "
               "tls-creds-psk have not: empty it";
    }
    return NULL;
}

/* Under the BQL, which guards the objects and the parameters */
static bool give_creds(struct ff_address *a, bool incoming, Error **errp)
{
    const char *id = migrate_tls_creds(), *lost;
    g_autofree char *dir = NULL;
    g_autofree char *user = NULL;
    g_autofree char *path = NULL;
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
    dir = object_property_get_str(creds, "dir", NULL);
    if (lost || !dir) {
        error_setg(errp, "rdma-postcopy: tls-creds=%s: %s", id,
                   lost ? lost : "there is no dir=");
        return false;
    }
    user = object_property_get_str(creds, "username", NULL);
    path = g_strdup_printf("%s/%s", dir, QCRYPTO_TLS_CREDS_PSKFILE);
    err = ff_error_new();
    rc = ff_address_set_psk(a, path, incoming ? NULL : is_set(user) ? user : "qemu",
                            err);
    if (rc) {
        error_setg(errp, "rdma-postcopy: tls-creds=%s: %s", id,
                   ff_error_message(err));
    }
    ff_error_free(err);
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
