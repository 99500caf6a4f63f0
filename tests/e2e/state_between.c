/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * state_between.c - take a guest's state and memory from one QEMU, write them to another, for tests
 *
 * usage: state_between SOURCE-QMP                save the state and give up disks; then `cont`
 *        state_between SOURCE-QMP DEST-QMP PATH [WATCH-MS]
 *                                                the guest goes on at the destination, which has
 *                                                -S and -incoming defer, and listens at PATH
 *
 * Prints one JSON object. Fails where QEMU wrote guest memory after it had saved the state, until the
 * destination has loaded it, and for WATCH-MS more.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include "autojson.h"
#include "device_state.h"
#include "guest_page.h"
#include "incoming_stream.h"
#include "movable.h"
#include "outside.h"
#include "xalloc.h"

#define LIMIT_MS 30000
#define TYPE_END "-machine"

static struct ff_error err;

static int die(const char *what)
{
    fprintf(stderr, "state_between: %s: %s\n", what, err.text[0] ? err.text : strerror(errno));
    exit(1);
}

static struct qmp *connect_to(const char *path)
{
    struct qmp *q;

    return qmp_connect(path, -1, LIMIT_MS, &q, &err) ? NULL : q;
}

static uint8_t *read_block(pid_t pid, const struct outside_block *b)
{
    uint8_t *data = xcalloc(1, b->len_bytes);

    for (uint64_t at = 0; at < b->len_bytes;) {
        const struct iovec here = {data + at, b->len_bytes - at};
        const struct iovec there = {(void *)(uintptr_t)(b->hva + at), b->len_bytes - at};
        ssize_t n = process_vm_readv(pid, &here, 1, &there, 1, 0);

        if (n <= 0)
            die(b->name);
        at += (uint64_t)n;
    }
    return data;
}

static void check_unwritten(pid_t pid, const struct outside_block *b, unsigned n,
                            const struct incoming_block *was)
{
    for (unsigned i = 0; i < n; i++) {
        FF_AUTO_FREE uint8_t *now = read_block(pid, &b[i]);

        for (uint64_t p = 0; p < b[i].len_bytes; p++)
            if (now[p] != was[i].bytes[p]) {
                fprintf(stderr,
                        "state_between: %s was written at 0x%llx after the state was saved\n",
                        b[i].name, (unsigned long long)p);
                exit(1);
            }
    }
}

static int send_stream(const char *path, const struct incoming_stream *s)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&a, sizeof(a)) < 0)
        return -errno;
    for (size_t at = 0; at < s->len;) {
        ssize_t n = send(fd, s->data + at, s->len - at, MSG_NOSIGNAL);

        if (n <= 0)
            return -errno;
        at += (size_t)n;
    }
    close(fd);
    return 0;
}

/* Until the destination has loaded it all */
static int wait_loaded(struct qmp *q)
{
    const uint64_t until = ff_now_ms() + LIMIT_MS;

    while (ff_now_ms() < until) {
        FF_AUTO_JSON json_t *s = NULL;

        if (qmp_command(q, "query-status", NULL, &s, &err))
            return -1;
        if (!strcmp(text_of(s, "status"), "paused"))
            return 0;
        usleep(2000); /* no event tells that */
    }
    return ff_error_set(&err, ETIMEDOUT, "the destination loads for %d s", LIMIT_MS / 1000);
}

static void set_late_activate(struct qmp *q)
{
    if (qmp_command(q, "migrate-set-capabilities",
                    json_pack("{s[{ss sb}]}", "capabilities", "capability", "late-block-activate",
                              "state", true),
                    NULL, &err))
        die("late-block-activate");
}

static void move(struct qmp *src, struct qmp *dst, const char *path, unsigned watch_ms,
                 const uint8_t *state, size_t len)
{
    FF_AUTO_JSON json_t *type = NULL;
    FF_AUTO_FREE struct outside_block *b = NULL;
    struct incoming_block to[INCOMING_BLOCKS_MAX];
    struct incoming_stream s = {0};
    unsigned n, page_bits;

    if (outside_list(src, &b, &n, &err) || n > INCOMING_BLOCKS_MAX ||
        outside_place(src, qmp_pid(src), b, n, &err))
        die("blocks");
    if (qmp_command(src, "qom-get", json_pack("{ss ss}", "path", "/machine", "property", "type"),
                    &type, &err))
        die("machine");
    if (guest_page_bits(src, &page_bits, &err))
        die("pages");
    FF_AUTO_FREE char *machine = xstrdup(json_string_value(type));
    char *end = strstr(machine, TYPE_END);
    if (!end)
        die(machine);
    *end = '\0';
    for (unsigned i = 0; i < n; i++)
        to[i] =
            (struct incoming_block){b[i].name, b[i].len_bytes, read_block(qmp_pid(src), &b[i])};
    if (incoming_stream_begin(&s, machine, page_bits, to, n, &err) ||
        incoming_stream_end(&s, page_bits, to, n, state, len, &err))
        die("write");
    if (qmp_command(dst, "migrate-incoming",
                    json_pack("{so}", "uri", json_sprintf("unix:%s", path)), NULL, &err))
        die("migrate-incoming");
    if (send_stream(path, &s))
        die("send");
    if (wait_loaded(dst))
        die("load");
    usleep(1000 * watch_ms); /* that is what is tried */
    check_unwritten(qmp_pid(src), b, n, to);
    if (qmp_command(dst, "cont", NULL, NULL, &err))
        die("cont");
    printf("{\"machine\": \"%s\", \"blocks\": %u, \"state\": %zu, \"stream\": %zu}\n", machine, n,
           len, s.len);
    free(s.data);
    for (unsigned i = 0; i < n; i++)
        free((void *)to[i].bytes);
}

int main(int argc, char **argv)
{
    struct qmp *src = argc > 1 ? connect_to(argv[1]) : NULL,
               *dst = argc > 3 ? connect_to(argv[2]) : NULL;
    FF_AUTO_FREE uint8_t *state = NULL;
    size_t len;

    if (!src || (argc > 2 && !dst))
        return die("usage: state_between SOURCE-QMP [DEST-QMP PATH]");
    if (movable_check(src, &err))
        return die("may");
    if (dst)
        set_late_activate(dst);
    if (qmp_command(src, "stop", NULL, NULL, &err))
        return die("stop");
    const double start_ms = ff_now_exact_ms();
    if (device_state_save(src, true, &state, &len, &err))
        return die("save");
    fprintf(stderr, "state_between: saved %zu bytes in %.1f ms\n", len,
            ff_now_exact_ms() - start_ms);
    if (dst)
        move(src, dst, argv[3], argc > 4 ? (unsigned)atoi(argv[4]) : 0, state, len);
    else if (qmp_command(src, "cont", NULL, NULL, &err))
        return die("cont");
    qmp_free(src);
    qmp_free(dst);
    return 0;
}
