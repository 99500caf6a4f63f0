/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * peer.c - the other side of a move, as a fuzzer's input plays it
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "key.h"
#include "log.h"
#include "peer.h"

#define PATIENT_MS 400
#define IMPATIENT_MS 4
#define FUZZ_TIMEOUT_S 4

const uint64_t region_pages[REGIONS] = {48, 20};

void check_outcome(int rc, const struct ff_error *err)
{
    must(rc <= 0);
    if (rc && (err->code != -rc || !err->text[0] || strlen(err->text) >= sizeof(err->text))) {
        fprintf(stderr, "returned %d, but its error is %d \"%.600s\"\n", rc, err->code, err->text);
        abort();
    }
}

/* Of connections within this process there is nothing to find out, and it reads all that the host
 * has */
int __wrap_ff_same_user(int fd, struct ff_error *err);
int __wrap_ff_same_user(int fd, struct ff_error *err)
{
    (void)fd, (void)err;
    return 0;
}

void event_new(struct event *e)
{
    atomic_store(&e->is, false);
    e->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    must(e->fd >= 0);
}

void event_free(struct event *e)
{
    ff_close_fd(&e->fd);
}

void event_set(struct event *e)
{
    atomic_store(&e->is, true);
    must(!eventfd_write(e->fd, 1));
}

bool event_is(const struct event *e)
{
    return atomic_load(&e->is);
}

bool event_await(struct event *e, int limit_ms)
{
    struct pollfd p = {.fd = e->fd, .events = POLLIN};

    poll(&p, 1, limit_ms);
    return event_is(e);
}

static void ignore_log(enum ff_log_level level, const char *line)
{
    (void)level;
    must(line && line[0]);
}

struct ff_key *fuzz_key(void)
{
    static struct ff_key *key;

    if (!key)
        must(!ff_key_parse(KEY_TEXT, strlen(KEY_TEXT), &key, NULL));
    return key;
}

struct ff_address *fuzz_address(enum way way, unsigned port, const char *options)
{
    struct ff_address *a;
    char text[200];

    snprintf(text, sizeof(text), "127.0.0.1:%u,link=tcp,timeout=%d%s", port, FUZZ_TIMEOUT_S,
             options);
    must(!ff_address_parse(text, &a, NULL));
    if (way == KEYED)
        must(!ff_address_set_key(a, KEY_TEXT, strlen(KEY_TEXT), NULL));
    return a;
}

/* --- a run --- */

#define STEPS_MAX 60u
#define STACK_BYTES (512u << 10) /* ASan clears the shadow of each thread's */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {.p = data, .left = size};
    pthread_attr_t small;

    must(!pthread_attr_init(&small) && !pthread_attr_setstacksize(&small, STACK_BYTES) &&
         !pthread_setattr_default_np(&small));
    ff_log_set(ignore_log, FF_LOG_DEBUG);
    fuzz_one(&in);
    clock_reset();
    return 0;
}

void fuzz_steps(struct input *in, unsigned steps, void (*good)(void *opaque),
                void (*step)(void *opaque, struct input *in), void *opaque)
{
    for (unsigned n = steps ? get(in) % (steps + 1) : 0; n--;)
        good(opaque);
    for (unsigned n = 0; in->left && n < STEPS_MAX; n++)
        step(opaque, in);
}

/* --- memory --- */

void area_new(struct area *a, unsigned region, bool in_file)
{
    a->len_bytes = region_pages[region] * PAGE;
    a->fd = in_file ? memfd_create("fuzz", MFD_CLOEXEC) : -1;
    must(!in_file || (a->fd >= 0 && !ftruncate(a->fd, (off_t)a->len_bytes)));
    uint8_t *all = mmap(NULL, a->len_bytes + 2 * PAGE, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    must(all != MAP_FAILED);
    a->host = mmap(all + PAGE, a->len_bytes, PROT_READ | PROT_WRITE,
                   MAP_FIXED | (in_file ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS), a->fd, 0);
    must(a->host == all + PAGE);
}

void area_free(struct area *a)
{
    munmap(a->host - PAGE, a->len_bytes + 2 * PAGE);
    ff_close_fd(&a->fd);
}

static uint64_t word_of(unsigned region, uint64_t number)
{
    return number % 4 ? (region + 1) << 16 | number : 0;
}

void area_fill(const struct area *a, unsigned region)
{
    for (uint64_t i = 0; i < region_pages[region]; i++) {
        uint64_t word = word_of(region, i);
        for (unsigned at = 0; at < PAGE && word; at += 8)
            memcpy(a->host + i * PAGE + at, &word, 8);
    }
}

bool page_fails(unsigned region, uint64_t number)
{
    return number == (region ? 16 : 6) || (!region && number == 11);
}

void area_fail(const struct area *a, unsigned region)
{
    must(!mprotect(a->host, a->len_bytes, PROT_READ));
    for (uint64_t i = 0; i < region_pages[region]; i++)
        if (page_fails(region, i)) /* out of the page table, as a page that has failed is */
            must(!madvise(a->host + i * PAGE, PAGE, MADV_DONTNEED) &&
                 !mprotect(a->host + i * PAGE, PAGE, PROT_NONE));
}

static bool page_is(const uint8_t *page, uint64_t word)
{
    for (unsigned at = 0; at < PAGE; at += 8)
        if (memcmp(page + at, &word, 8))
            return false;
    return true;
}

bool page_is_right(const uint8_t *page, unsigned region, uint64_t number)
{
    return page_is(page, word_of(region, number));
}

bool page_is_zero(const uint8_t *page)
{
    return page_is(page, 0);
}

struct ff_region region_of(const struct area *a, unsigned number)
{
    static const char *const names[REGIONS] = {"pc.ram", "pc.rom"};

    return (struct ff_region){.name = names[number],
                              .host = a->host,
                              .len_bytes = a->len_bytes,
                              .psize = PAGE,
                              .fd = a->fd,
                              .zero_fill = true};
}

/* --- the peer --- */

struct ff_link *peer_sockets(struct peer *p)
{
    int own[FF_TCP_SOCKETS], theirs[FF_TCP_SOCKETS];
    struct ff_link *engines;

    must(!ff_tcp_socket_pairs(own, theirs, NULL));
    for (unsigned i = 0; i < FF_TCP_SOCKETS; i++)
        p->raw[i] = dup(own[i]);
    must(!ff_tcp_on_sockets(own, FUZZ_TIMEOUT_S * 1000, &p->l, NULL));
    must(!ff_tcp_on_sockets(theirs, FUZZ_TIMEOUT_S * 1000, &engines, NULL));
    p->open = true;
    return engines;
}

void peer_hang_up(struct peer *p)
{
    for (unsigned i = 0; i < FF_TCP_SOCKETS; i++)
        if (p->raw[i] >= 0)
            ff_close_fd(&p->raw[i]);
    if (!p->l)
        return;
    p->l->ops->shutdown(p->l);
    p->l->ops->free(p->l);
    p->l = NULL;
    p->open = false;
}

static void say(struct peer *p, int len)
{
    must(len > 0);
    if (len >= 2 && p->msg[0] <= FF_MSG_LAST && !p->msg[1])
        p->said |= FF_MSG_BIT(p->msg[0]);
    if (p->l && p->l->ops->send(p->l, p->msg, (uint32_t)len, NULL))
        peer_hang_up(p);
}

void peer_say(struct peer *p, int len)
{
    say(p, len);
}

void peer_say_beside(struct peer *p, int len, struct input *in)
{
    unsigned how = get(in);
    size_t range = (size_t)len < 300 ? (size_t)len : 300;

    p->right = false;
    for (unsigned i = 0; i < 1 + how % 4; i++)
        p->msg[(get(in) + 256u * (how >> 7)) % range] ^= get(in);
    if (how & 16) /* cut short */
        len = 1 + get(in) % len;
    if (how & 32) /* too long */
        len = len + get(in) < (int)FF_MSG_MAX ? len + get(in) : len;
    say(p, len > 0 ? len : 1);
}

void peer_say_anything(struct peer *p, struct input *in)
{
    unsigned how = get(in), n = how & 1 ? how / 2 : 0; /* many messages have no body */

    p->right = false;
    p->msg[0] = get(in) % (FF_MSG_LAST + 3);
    p->msg[1] = p->msg[2] = p->msg[3] = 0;
    for (unsigned i = 0; i < n; i++)
        p->msg[4 + i] = get(in);
    say(p, (int)(4 + n));
}

void peer_say_raw(struct peer *p, struct input *in)
{
    unsigned which = get(in) % FF_TCP_SOCKETS, n = get(in);
    uint8_t bytes[256];

    for (unsigned i = 0; i < n; i++)
        bytes[i] = get(in);
    p->right = false;
    p->wrong_data = true;
    p->said = UINT32_MAX; /* it may have been any message */
    if (p->raw[which] >= 0)
        (void)!send(p->raw[which], bytes, n, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void peer_post(struct peer *p, enum ff_queue q, const struct ff_wr *wr)
{
    if (p->open)
        p->l->ops->post(p->l, q, wr, NULL); /* it may be full, or broken: peer_hear() finds out */
}

int peer_hear(struct peer *p)
{
    struct ff_error why;
    struct ff_wc wc[8];

    for (enum ff_queue q = 0; p->open && q < FF_QUEUES; q++)
        if (p->l->ops->poll(p->l, q, wc, FF_ARRAY_LEN(wc), 0, &why) < 0)
            peer_hang_up(p);
    if (!p->l)
        return 0;
    int len = p->l->ops->recv(p->l, p->heard, 0, &why);
    if (len == -ETIMEDOUT)
        return 0;
    int type = len < 0 ? len : ff_wire_type(p->heard, (size_t)len, &why);
    must(len < 0 || type > 0); /* the engine says nothing but messages */
    p->heard_len = len;
    if (type == FF_MSG_REFUSE || type < 0)
        peer_hang_up(p);
    return type < 0 || type == FF_MSG_REFUSE ? 0 : type;
}

void peer_wait(struct peer *p, int limit_ms)
{
    struct pollfd f[2 + FF_QUEUES] = {{.fd = -1}};

    if (!p->l)
        return;
    if (p->engine_ended)
        f[0] = (struct pollfd){.fd = p->engine_ended->fd, .events = POLLIN};
    f[1] = (struct pollfd){.fd = p->l->ops->control_fd(p->l), .events = POLLIN};
    for (enum ff_queue q = 0; q < FF_QUEUES; q++) {
        f[2 + q].fd = -1;
        if (p->open)
            f[2 + q].fd = p->l->ops->fd(p->l, q, &f[2 + q].events);
    }
    poll(f, FF_ARRAY_LEN(f), limit_ms);
}

/* A side says these for ever: whoever waits for another message gets no further by them */
static bool says_that_it_lives(int type)
{
    return type == FF_MSG_PROGRESS || type == FF_MSG_LEASE;
}

bool peer_await(struct peer *p, enum ff_msg type, void (*other)(void *opaque, int type),
                void *opaque)
{
    uint64_t end = ff_now_ns() + (p->right ? PATIENT_MS : IMPATIENT_MS) * 1000000ull;

    while (p->l && !(p->engine_ended && event_is(p->engine_ended)) && ff_now_ns() < end) {
        int heard = peer_hear(p);
        if (heard == (int)type)
            return true;
        if (heard > 0 && other)
            other(opaque, heard);
        if (heard > 0 && !says_that_it_lives(heard) && p->right)
            end = ff_now_ns() + PATIENT_MS * 1000000ull;
        if (!heard)
            peer_wait(p, (int)((end - FF_MIN(end, ff_now_ns())) / 1000000u) + 1);
    }
    p->right = false; /* it is not as it should be: so there is less to wait for */
    return false;
}
