/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_libvirt.c - questions to a libvirt of the test's own: its error codes, a connection that breaks, one that does not answer
 */
#include "unit.h"

#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "libvirt.h"
#include "libvirt_calls.h"
#include "xalloc.h"

/* A thread that nobody waits for any more may still be in it */
static struct {
    atomic_int connections, alive, references; /* made; the number of the one that lives; held of all */
    atomic_int lookups, suspended;
    atomic_bool down; /* nobody listens */
    int slow[2]; /* a pipe: suspend waits for its end */
} fake;

static _Thread_local struct virt_error fake_last; /* as libvirt's is */

static struct virt_connect *as_connection(int number)
{
    return (struct virt_connect *)(uintptr_t)number;
}

static int refuse(int code, const char *message)
{
    fake_last = (struct virt_error){.code = code, .message = (char *)message};
    return -1;
}

static const struct virt_error *fake_error(void)
{
    return &fake_last;
}

static struct virt_connect *fake_open(const char *uri)
{
    assert_string_equal(uri, "qemu:///system");
    if (fake.down && refuse(38, "Failed to connect socket"))
        return NULL;
    fake.references++;
    return as_connection(fake.alive = ++fake.connections);
}

static int fake_close(struct virt_connect *c)
{
    (void)c;
    fake.references--;
    return 0;
}

static int fake_ref(struct virt_connect *c)
{
    (void)c;
    fake.references++;
    return 0;
}

static int fake_is_alive(struct virt_connect *c)
{
    fake_last = (struct virt_error){0}; /* as each call of libvirt's begins */
    return c == as_connection(fake.alive);
}

/* The first to ask over a connection whose other end has gone notices */
static struct virt_domain *fake_lookup(struct virt_connect *c, const char *name)
{
    static int domain;

    fake.lookups++;
    if (fake.alive < 0)
        fake.alive = 0;
    if (c != as_connection(fake.alive) ? refuse(39, "client socket is closed")
                                       : strcmp(name, "web") && refuse(VIRT_ERR_NO_DOMAIN, "Domain not found"))
        return NULL;
    return (void *)&domain;
}

static int fake_free(struct virt_domain *d)
{
    assert_non_null(d);
    return 0;
}

static int fake_suspend(struct virt_domain *d)
{
    char ignored;

    (void)d;
    if (fake.slow[0] && read(fake.slow[0], &ignored, 1) < 0)
        return -1;
    return fake.suspended++ ? refuse(VIRT_ERR_OPERATION_INVALID, "domain is not running") : 0;
}

static int fake_destroy(struct virt_domain *d)
{
    (void)d;
    fake.alive = 0;
    return refuse(39, "end of file");
}

static int fake_monitor_with_files(struct virt_domain *d, const char *line, unsigned n_in, int *in, unsigned *n_out, int **out,
                                   char **answer, unsigned flags)
{
    (void)d;
    (void)n_out;
    (void)out;
    (void)flags;
    assert_int_equal(n_in, 1);
    assert_int_equal(write(in[0], "passed", 6), 6);
    *answer = xprintf("{\"return\":%s}", line);
    return 0;
}

static int fake_monitor(struct virt_domain *d, const char *line, char **answer, unsigned flags)
{
    (void)d;
    (void)flags;
    *answer = xprintf("{\"return\":%s}", line);
    return 0;
}

static int fake_stats(struct virt_domain **d, unsigned which, struct virt_stats ***out, unsigned flags)
{
    static struct virt_param p[] = {
        {"block.count", VIRT_PARAM_UINT, {.ui = 2}},        {"block.0.name", VIRT_PARAM_STRING, {.s = "hda"}},
        {"block.1.name", VIRT_PARAM_STRING, {.s = "vda"}},  {"block.1.path", VIRT_PARAM_STRING, {.s = "/images/a b.qcow2"}},
        {"block.1.rd.reqs", VIRT_PARAM_UINT, {.ui = 7}}};
    static struct virt_stats s = {.params = p, .nparams = FF_ARRAY_LEN(p)};
    static struct virt_stats *list[] = {&s, NULL};

    (void)flags;
    assert_true(d[0] && !d[1] && which == VIRT_STATS_BLOCK);
    *out = list;
    return 1;
}

static void fake_stats_free(struct virt_stats **s)
{
    assert_non_null(s);
}

static struct libvirt_calls calls = {.get_last_error = fake_error,
                                     .connect_open = fake_open,
                                     .connect_close = fake_close,
                                     .connect_ref = fake_ref,
                                     .connect_is_alive = fake_is_alive,
                                     .domain_lookup = fake_lookup,
                                     .domain_free = fake_free,
                                     .domain_suspend = fake_suspend,
                                     .domain_destroy = fake_destroy,
                                     .stats = fake_stats,
                                     .stats_free = fake_stats_free,
                                     .monitor = fake_monitor,
                                     .monitor_with_files = fake_monitor_with_files};

static int suspend(const char *name, struct ff_error *err)
{
    return libvirt_ask(LIBVIRT_SUSPEND, name, NULL, NULL, err);
}

static void codes(void **state)
{
    struct ff_error err;

    (void)state;
    assert_ok(suspend("web", &err), err);
    assert_fails(suspend("web", &err), EALREADY);
    assert_fails(suspend("nobody", &err), ESRCH);
    assert_error(err, ESRCH, "libvirt: suspend nobody", "Domain not found");
    assert_int_equal(fake.connections, 1); /* kept */
    assert_int_equal(fake.references, 1);
}

static void monitor(void **state)
{
    FF_AUTO_CLOSE int fd = memfd_create("passed", MFD_CLOEXEC);
    FF_AUTO_FREE char *plain = NULL, *with = NULL;
    struct ff_error err;
    char got[8] = "";

    (void)state;
    assert_ok(libvirt_monitor("web", "{}", -1, &plain, &err), err);
    assert_string_equal(plain, "{\"return\":{}}");
    assert_ok(libvirt_monitor("web", "{}", fd, &with, &err), err);
    assert_string_equal(with, plain);
    assert_int_equal(pread(fd, got, sizeof(got), 0), 6);
    assert_string_equal(got, "passed");
    calls.monitor_with_files = NULL;
    assert_fails(libvirt_monitor("web", "{}", fd, &with, &err), EOPNOTSUPP);
}

static void disks(void **state)
{
    FF_AUTO_FREE char *list = NULL;
    struct ff_error err;

    (void)state;
    assert_ok(libvirt_ask(LIBVIRT_DISKS, "web", NULL, &list, &err), err);
    assert_string_equal(list, "[{\"target\":\"vda\",\"source\":\"/images/a b.qcow2\"}]");
}

/* Before a question was asked it is asked of the new libvirtd; one that was under way then is not repeated */
static void connection_breaks(void **state)
{
    int before = fake.connections;
    struct ff_error err;

    (void)state;
    fake.alive = 0;
    assert_fails(suspend("web", &err), EALREADY);
    assert_int_equal(fake.connections, before + 1);
    assert_fails(libvirt_ask(LIBVIRT_DESTROY, "web", NULL, NULL, &err), EPIPE);
    assert_error(err, EPIPE, "end of file");
    assert_int_equal(fake.connections, before + 1);
    fake.down = true;
    assert_fails(suspend("web", &err), ECONNREFUSED);
    fake.down = false;
    assert_fails(suspend("web", &err), EALREADY);
    assert_int_equal(fake.references, 1);
}

static void no_answer(void **state)
{
    struct libvirt_call *c;
    struct ff_error err;

    (void)state;
    assert_int_equal(pipe(fake.slow), 0);
    assert_ok(libvirt_begin(LIBVIRT_SUSPEND, "web", NULL, -1, &c, &err), err);
    assert_fails(libvirt_end(c, 20, NULL, &err), ETIMEDOUT);
    assert_ok(libvirt_begin(LIBVIRT_SUSPEND, "web", NULL, -1, &c, &err), err);
    struct pollfd p = {.fd = libvirt_call_fd(c), .events = POLLIN};
    assert_int_equal(poll(&p, 1, 0), 0);
    close(fake.slow[1]);
    assert_fails(libvirt_end(c, 10000, NULL, &err), EALREADY);
    for (int i = 0; i < 1000 && fake.references > 1; i++)
        poll(NULL, 0, 10); /* the first one's thread ends, too, which nobody waits for */
    close(fake.slow[0]);
    fake.slow[0] = 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(codes), cmocka_unit_test(monitor), cmocka_unit_test(disks),
                                       cmocka_unit_test(connection_breaks), cmocka_unit_test(no_answer)};

    libvirt_calls_are(&calls);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
