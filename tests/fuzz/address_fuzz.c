/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * address_fuzz.c - libFuzzer: whatever may stand where a user, or QEMU, gives an address
 */
/**
 * DOC: Theory of Operation
 *
 * Input        the text; a byte 0 ends it, and what follows is the text of a key.
 * Invariants   what is accepted is within the limits that the options' descriptions name, and what
 *              one end of a move needs is there as a whole; what is refused has a reason.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "address.h"
#include "error.h"
#include "farfork.h"
#include "input.h"
#include "key.h"
#include "wire.h"

#define KEY_TEXT "5f3c0e9d6b2a48f1c7e6d5b4a39281706f5e4d3c2b1a09f8e7d6c5b4a3928170"

/* In the place of ff_key_load(): an input names no file */
int __wrap_ff_key_load(const char *path, struct ff_key **out, struct ff_error *err);
int __wrap_ff_key_load(const char *path, struct ff_key **out, struct ff_error *err)
{
    if (!*path)
        return ff_error_set(err, ENOENT, "key %s: %s", path, strerror(ENOENT));
    return ff_key_parse(KEY_TEXT, strlen(KEY_TEXT), out, err);
}

static bool is_path(const char *text, size_t room)
{
    return memchr(text, '\0', room) && *text == '/';
}

static void check_address(const struct ff_address *a)
{
    must(memchr(a->host, '\0', sizeof(a->host)) && memchr(a->port, '\0', sizeof(a->port)));
    must(a->passed || (*a->port && strtoul(a->port, NULL, 10) <= 65535));
    must(memchr(a->device, '\0', sizeof(a->device)) && a->qps <= 8 && a->window <= 32);
    must(a->timeout_ms >= 1000 && a->timeout_ms <= 3600000 && a->go_timeout_ms >= a->timeout_ms);
    must(a->reconnect_ms >= 0 && a->reconnect_ms <= 86400000);
    must(a->chunk_bytes >= 4096 && a->chunk_bytes <= 4u << 20 &&
         !(a->chunk_bytes & (a->chunk_bytes - 1)));
    must(memchr(a->until_go, '\0', sizeof(a->until_go)) != NULL);
    must(a->lease_ms >= FF_WIRE_LEASE_MIN_MS && a->lease_ms <= FF_WIRE_LEASE_MAX_MS);
    must(a->fallback == is_path(a->fence, sizeof(a->fence)));
    must(a->fallback == is_path(a->record, sizeof(a->record)));
    must(!a->passed || !a->key);
}

static bool is_right(int rc, const struct ff_error *err)
{
    must(rc <= 0);
    must(!rc || (err->code == -rc && err->text[0] && strlen(err->text) < sizeof(err->text)));
    return !rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1); /* its end is seen by ASan */
    struct ff_error err = {.code = 0};
    struct ff_address *a = NULL;

    must(text != NULL);
    if (size)
        memcpy(text, data, size);
    text[size] = '\0';
    if (is_right(ff_address_parse(text, &a, &err), &err)) {
        size_t used = strlen(text) + 1;
        check_address(a);
        if (used < size && is_right(ff_address_set_key(a, text + used, size - used, &err), &err))
            must(a->key && !a->passed);
        struct ff_address copy = ff_address_copy(a);
        ff_address_free(a);
        check_address(&copy);
        ff_address_drop(&copy);
    } else {
        must(!a);
    }
    free(text);
    return 0;
}
