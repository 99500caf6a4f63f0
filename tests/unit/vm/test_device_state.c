/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_device_state.c - which commands a QEMU gets, in order, and what each answer leads to
 */
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "device_state.h"
#include "unit.h"

#define LIMIT_MS 20000
#define TURNS "query-status query-status "
#define SAVED TURNS "add-fd xen-save-devices-state remove-fd "

/* What stands in for a QEMU: one client, in a thread */
static struct fake {
    const char *status, *migration, *blocked;
    bool has_no_command, fails, stays_active, runs_on;
    size_t len;
    char log[512];    /* commands, in order */
    bool live;        /* the argument */
    int writer, mode; /* what came with add-fd, and how it is open */
} fake;

static const struct fake stopped = {.status = "paused", .len = 70000, .writer = -1};

static json_t *answer_to(const char *name, json_t *arguments)
{
    static const char refusal[] = "{s{ss ss}}";
    const char *path = json_string_value(json_object_get(arguments, "filename"));

    if (!strcmp(name, "query-commands"))
        return json_pack("{s[{ss} {ss}]}", "return", "name", "query-status", "name",
                         fake.has_no_command ? "stop" : "xen-save-devices-state");
    if (!strcmp(name, "query-migrate") && fake.blocked)
        return json_pack("{s{s[s]}}", "return", "blocked-reasons", fake.blocked);
    if (!strcmp(name, "query-migrate"))
        return json_pack("{s{ss*}}", "return", "status", fake.migration);
    if (!strcmp(name, "query-status")) {
        if (fake.runs_on && strstr(fake.log, TURNS)) /* somebody else's cont, between the two */
            fake.status = "running";
        return json_pack("{s{ss}}", "return", "status", fake.status);
    }
    if (!strcmp(name, "add-fd"))
        return json_pack("{s{si si}}", "return", "fdset-id", 7, "fd", 40);
    if (!strcmp(name, "xen-save-devices-state")) {
        if (fake.fails || !path || strcmp(path, "/dev/fdset/7") || fake.writer < 0)
            return json_pack(refusal, "error", "class", "GenericError", "desc", "no space");
        fake.live = json_is_true(json_object_get(arguments, "live"));
        for (size_t i = 0; i < fake.len; i++)
            assert_int_equal(write(fake.writer, &(char){(char)(i % 251)}, 1), 1);
    }
    if (!strcmp(name, "remove-fd") &&
        json_integer_value(json_object_get(arguments, "fdset-id")) == 7)
        ff_close_fd(&fake.writer);
    if (!strcmp(name, "query-named-block-nodes"))
        return json_pack("{s[{ss ss sb} {ss ss sb}]}", "return", "node-name", "fmt", "file",
                         "a.qcow2", "active", false, "node-name", "img", "file", "b.raw", "active",
                         fake.stays_active);
    return json_pack("{s{}}", "return");
}

/* One read, and a descriptor that came with it */
static ssize_t receive(int fd, char *to, size_t room)
{
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } c;
    struct iovec v = {to, room};
    struct msghdr m = {
        .msg_iov = &v, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof(c)};
    ssize_t n = recvmsg(fd, &m, MSG_CMSG_CLOEXEC);
    const struct cmsghdr *got = n > 0 ? CMSG_FIRSTHDR(&m) : NULL;

    if (got && got->cmsg_type == SCM_RIGHTS) {
        assert_int_equal(fake.writer, -1);
        memcpy(&fake.writer, CMSG_DATA(got), sizeof(int));
        fake.mode = fcntl(fake.writer, F_GETFL) & O_ACCMODE;
    }
    return n;
}

static void *serve(void *opaque)
{
    int listener = *(int *)opaque, fd = accept(listener, NULL, NULL);
    char in[4096];
    size_t len = 0;
    ssize_t n;

    dprintf(fd, "{\"QMP\":{}}\n");
    while ((n = receive(fd, in + len, sizeof(in) - 1 - len)) > 0) {
        len += (size_t)n;
        in[len] = '\0';
        if (!strchr(in, '\n'))
            continue;
        json_t *m = json_loads(in, JSON_DISABLE_EOF_CHECK, NULL);
        const char *name = json_string_value(json_object_get(m, "execute"));
        if (strcmp(name, "qmp_capabilities"))
            strcat(strcat(fake.log, name), " ");
        json_t *a = answer_to(name, json_object_get(m, "arguments"));
        json_object_set(a, "id", json_object_get(m, "id"));
        char *text = json_dumps(a, 0);
        dprintf(fd, "%s\n", text);
        free(text);
        json_decref(a);
        json_decref(m);
        len = 0;
    }
    close(fd);
    return NULL;
}

/* What @run returns of a QEMU that is like @like */
static int with_fake(struct fake like, int (*run)(struct qmp *q, struct ff_error *err),
                     struct ff_error *err)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    char dir[] = "/tmp/state-XXXXXX";
    pthread_t thread;
    struct qmp *q;

    fake = like;
    assert_non_null(mkdtemp(dir));
    snprintf(a.sun_path, sizeof(a.sun_path), "%s/qmp", dir);
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(pthread_create(&thread, NULL, serve, &listener), 0);
    assert_ok(qmp_connect(a.sun_path, -1, LIMIT_MS, &q, err), *err);
    int rc = run(q, err);
    qmp_free(q);
    pthread_join(thread, NULL);
    close(listener);
    unlink(a.sun_path);
    rmdir(dir);
    return rc;
}

static uint8_t *state;
static size_t state_len;

static int save(struct qmp *q, struct ff_error *err)
{
    return device_state_save(q, true, &state, &state_len, err);
}

static int save_beside(struct qmp *q, struct ff_error *err)
{
    return device_state_save(q, false, &state, &state_len, err);
}

static void check_state(void)
{
    assert_int_equal(state_len, fake.len);
    for (size_t i = 0; i < state_len; i++)
        assert_int_equal(state[i], i % 251);
    free(state);
    assert_int_equal(fake.mode, O_WRONLY);
    assert_int_equal(fake.writer, -1);
}

static void test_saved(void **unused)
{
    struct ff_error err;

    (void)unused;
    assert_ok(with_fake(stopped, save, &err), err);
    check_state();
    assert_true(fake.live);
    assert_string_equal(fake.log, SAVED "query-named-block-nodes ");
    assert_ok(with_fake(stopped, save_beside, &err), err);
    check_state();
    assert_false(fake.live);
    assert_string_equal(fake.log, SAVED);
}

static void test_running(void **unused)
{
    static const char *const states[] = {"running", "io-error", "postmigrate", "suspended", ""};
    struct fake like = stopped;
    struct ff_error err;

    (void)unused;
    for (size_t i = 0; i < FF_ARRAY_LEN(states); i++) {
        like.status = states[i];
        assert_fails(with_fake(like, save, &err), EINVAL);
        assert_error(err, EINVAL, "device state", "permitted 'paused'");
        assert_string_equal(fake.log, "query-status ");
    }
    like = stopped;
    like.runs_on = true;
    assert_fails(with_fake(like, save, &err), EINVAL);
    assert_string_equal(fake.log, TURNS);
    like.runs_on = false;
    like.status = "prelaunch";
    assert_ok(with_fake(like, save, &err), err);
    check_state();
}

static void test_fails(void **unused)
{
    struct fake like = stopped;
    struct ff_error err;

    (void)unused;
    like.fails = true;
    assert_fails(with_fake(like, save, &err), EREMOTEIO);
    assert_error(err, EREMOTEIO, "xen-save-devices-state", "no space");
    assert_string_equal(fake.log, SAVED);
    assert_int_equal(fake.writer, -1);
    like = stopped;
    like.stays_active = true;
    assert_fails(with_fake(like, save, &err), EIO);
    assert_error(err, EIO, "b.raw", "'img'");
    like = stopped;
    like.len = 0;
    assert_fails(with_fake(like, save, &err), EPROTO);
    assert_error(err, EPROTO, "0 bytes");
}

static int carried(void *opaque, const char *line, char **answer, struct ff_error *why)
{
    (void)opaque;
    (void)why;
    assert_null(strstr(line, "add-fd"));
    *answer = strdup("{\"return\":{\"status\":\"paused\"}}");
    return 0;
}

static void test_carried(void **unused)
{
    struct qmp *q = qmp_by(carried, NULL, getpid());
    struct ff_error err;

    (void)unused;
    assert_fails(save(q, &err), EOPNOTSUPP);
    assert_error(err, EOPNOTSUPP, "add-fd", "descriptor");
    qmp_free(q);
}

static void test_may(void **unused)
{
    static const char *const under_way[] = {"setup", "active", "postcopy-paused", "something new"};
    struct fake like = stopped;
    struct ff_error err;

    (void)unused;
    assert_ok(with_fake(like, device_state_may, &err), err);
    like.migration = "completed";
    assert_ok(with_fake(like, device_state_may, &err), err);
    like.has_no_command = true;
    assert_fails(with_fake(like, device_state_may, &err), ENOTSUP);
    assert_error(err, ENOTSUP, "no command xen-save-devices-state");
    like = stopped;
    like.blocked = "nvme";
    assert_fails(with_fake(like, device_state_may, &err), ENOTSUP);
    assert_error(err, ENOTSUP, "does not migrate", "nvme");
    like = stopped;
    for (size_t i = 0; i < FF_ARRAY_LEN(under_way); i++) {
        like.migration = under_way[i];
        assert_fails(with_fake(like, device_state_may, &err), EBUSY);
        assert_error(err, EBUSY, "migration of QEMU's own");
    }
}

UNIT_MAIN(cmocka_unit_test(test_saved), cmocka_unit_test(test_running),
          cmocka_unit_test(test_fails), cmocka_unit_test(test_carried), cmocka_unit_test(test_may))
