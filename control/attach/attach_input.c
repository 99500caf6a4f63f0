/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * attach_input.c - one side whose input is of who started it: a key, a domain, and the end of that program
 */
#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include "attach_domain.h"
#include "jsonl.h"
#include "qmp_secret.h"
#include "thread.h"

/* 0: there is more; -EPIPE: its end; -ECANCELED */
static int await_input(struct attach *a, struct jsonl_reader *in, struct ff_error *err)
{
    struct pollfd f[] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.fd = a->stop_fd, .events = POLLIN}};

    if (poll(f, 2, -1) < 0 && errno != EINTR)
        return ff_error_set(err, errno, "attach: poll its input: %s", strerror(errno));
    if (f[1].revents)
        return ff_error_set(err, ECANCELED, "attach: interrupted");
    int rc = f[0].revents ? jsonl_read(in, STDIN_FILENO) : 0;
    if (rc)
        return ff_error_set(err, -rc, "attach: read its input: %s", strerror(-rc));
    return in->ended ? ff_error_set(err, EPIPE, "attach: who started it has ended") : 0;
}

static void *follow_input(void *opaque)
{
    struct jsonl_reader in = {0};
    struct attach *a = opaque;
    struct ff_error why = {0};
    int rc;

    while (!(rc = await_input(a, &in, &why)))
        while (jsonl_next(&in))
            continue;
    if (rc != -ECANCELED)
        attach_interrupt(a, &why); /* later it goes on alone */
    jsonl_free(&in);
    return NULL;
}

static int read_input_line(struct attach *a, struct jsonl_reader *in, char **line, struct ff_error *err)
{
    int rc = 0;

    while (!(*line = jsonl_next(in)) && !rc)
        rc = await_input(a, in, err);
    return *line ? 0 : rc;
}

int attach_read_input(struct attach *a, struct ff_error *err)
{
    struct jsonl_reader in = {0};
    char *line, *key = NULL;
    int rc = read_input_line(a, &in, &line, err);

    if (!rc)
        key = key_line_take(line);
    if (!rc && !key)
        rc = ff_error_set(err, EINVAL, "--domain: want " KEY_LINE_HEAD "64 hexadecimal digits" KEY_LINE_TAIL
                                       " as the first line of input");
    if (!rc)
        rc = ff_address_set_key(a->address, key, KEY_TEXT_LEN, err);
    key_text_free(key);
    if (!rc)
        rc = read_input_line(a, &in, &line, err);
    if (!rc)
        rc = attach_domain_new(a, line, err);
    jsonl_free(&in);
    if (!rc)
        rc = ff_thread_start(&a->input_thread, follow_input, a, "attach-input", err);
    a->has_input = !rc;
    return rc;
}
