/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * proxy_input.c - a proxy whose input is of who started it: a key, and the end of that program
 */
#include "proxy_state.h"

#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include "jsonl.h"
#include "qmp_secret.h"
#include "thread.h"

/* 0: there is more; -EPIPE: its end; -ECANCELED */
static int wait_input(struct proxy *p, struct jsonl_reader *in, struct ff_error *err)
{
    struct pollfd f[] = {{.fd = STDIN_FILENO, .events = POLLIN},
                         {.fd = p->stop_fd, .events = POLLIN}};

    if (poll(f, 2, -1) < 0 && errno != EINTR)
        return ff_error_set(err, errno, "proxy: poll its input: %s", strerror(errno));
    if (f[1].revents)
        return ff_error_set(err, ECANCELED, "proxy: interrupted");
    int rc = f[0].revents ? jsonl_read(in, STDIN_FILENO) : 0;
    if (rc)
        return ff_error_set(err, -rc, "proxy: read its input: %s", strerror(-rc));
    return in->ended ? ff_error_set(err, EPIPE, "proxy: who started it has ended") : 0;
}

static void *watch_input(void *opaque)
{
    struct jsonl_reader in = {0};
    struct proxy *p = opaque;
    struct ff_error why = {0};
    int rc;

    while (!(rc = wait_input(p, &in, &why)))
        while (jsonl_next(&in))
            continue;
    if (rc != -ECANCELED)
        proxy_interrupt(p, &why); /* later it goes on alone */
    jsonl_free(&in);
    return NULL;
}

static int read_input(struct proxy *p, struct ff_error *err)
{
    struct jsonl_reader in = {0};
    char *line, *key;
    int rc = 0;

    while (!(line = jsonl_next(&in)) && !rc)
        rc = wait_input(p, &in, err);
    key = line ? key_line_take(line) : NULL;
    if (!rc && !key)
        rc = ff_error_set(err, EINVAL,
                          "--keyed: want " KEY_LINE_HEAD "64 hexadecimal digits" KEY_LINE_TAIL
                          " as the first line of input");
    if (!rc)
        rc = ff_address_set_key(p->address, key, KEY_TEXT_LEN, err);
    key_text_free(key);
    jsonl_free(&in);
    if (!rc)
        rc = ff_thread_start(&p->input_thread, watch_input, p, "proxy-input", err);
    p->has_input = !rc;
    return rc;
}

int proxy_take_address(struct proxy *p, struct ff_error *err)
{
    int rc = ff_address_parse(p->o->address, &p->address, err);

    if (!rc && p->o->keyed)
        rc = read_input(p, err);
    if (rc)
        return rc;
    p->reconnect_ms = (unsigned)ff_address_reconnect_ms(p->address);
    if (ff_address_fallback(p->address))
        return ff_error_set(err, ENOTSUP, "proxy: fallback=go: not with a domain");
    return 0;
}
