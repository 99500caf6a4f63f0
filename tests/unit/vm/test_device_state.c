/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_device_state.c - which commands a QEMU gets, in order, and what each answer leads to
 */
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "device_state.h"
#include "settle.h"
#include "unit.h"

#define LIMIT_MS 20000
#define ROUND "query-status stop query-blockstats "
#define SETTLED "query-status query-blockstats " ROUND
#define SAVED SETTLED "add-fd xen-save-devices-state remove-fd query-status "

/* What stands in for a QEMU: a process, for one client; this memory is shared with it */
static struct fake {
    const char *status, *migration, *blocked;
    bool has_no_command, fails, stays_active, runs_on, spins;
    unsigned requests; /* so many are left, of which each `stop` ends one */
    size_t len;
    char log[512];    /* commands, in order */
    bool live;        /* the argument */
    int writer, mode; /* what came with add-fd, and how it is open */
} * fake;

static const struct fake stopped = {.status = "paused", .len = 70000, .writer = -1};

static json_t *answer_to(const char *name, json_t *arguments)
{
    static const char refusal[] = "{s{ss ss}}";
    const char *path = json_string_value(json_object_get(arguments, "filename"));

    if (!strcmp(name, "query-commands"))
        return json_pack("{s[{ss} {ss}]}", "return", "name", "query-status", "name",
                         fake->has_no_command ? "stop" : "xen-save-devices-state");
    if (!strcmp(name, "query-migrate") && fake->blocked)
        return json_pack("{s{s[s]}}", "return", "blocked-reasons", fake->blocked);
    if (!strcmp(name, "query-migrate"))
        return json_pack("{s{ss*}}", "return", "status", fake->migration);
    if (!strcmp(name, "query-blockstats"))
        return json_pack("{s[{s{si si}}]}", "return", "stats", "rd_bytes", 512, "rd_operations",
                         -(int)fake->requests);
    if (!strcmp(name, "stop"))
        fake->requests -= fake->requests > 0;
    if (!strcmp(name, "query-status")) {
        if (fake->runs_on && strstr(fake->log, "remove-fd")) /* somebody else's cont */
            fake->status = "running";
        return json_pack("{s{ss}}", "return", "status", fake->status);
    }
    if (!strcmp(name, "add-fd"))
        return json_pack("{s{si si}}", "return", "fdset-id", 7, "fd", 40);
    if (!strcmp(name, "xen-save-devices-state")) {
        if (fake->fails || !path || strcmp(path, "/dev/fdset/7") || fake->writer < 0)
            return json_pack(refusal, "error", "class", "GenericError", "desc", "no space");
        fake->live = json_is_true(json_object_get(arguments, "live"));
        for (size_t i = 0; i < fake->len; i++)
            assert_int_equal(write(fake->writer, &(char){(char)(i % 251)}, 1), 1);
    }
    if (!strcmp(name, "remove-fd") &&
        json_integer_value(json_object_get(arguments, "fdset-id")) == 7)
        ff_close_fd(&fake->writer);
    if (!strcmp(name, "query-named-block-nodes"))
        return json_pack("{s[{ss ss sb} {ss ss sb}]}", "return", "node-name", "fmt", "file",
                         "a.qcow2", "active", false, "node-name", "img", "file", "b.raw", "active",
                         fake->stays_active);
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
        assert_int_equal(fake->writer, -1);
        memcpy(&fake->writer, CMSG_DATA(got), sizeof(int));
        fake->mode = fcntl(fake->writer, F_GETFL) & O_ACCMODE;
    }
    return n;
}

static _Noreturn void serve(int listener)
{
    struct pollfd p = {.fd = accept(listener, NULL, NULL), .events = POLLIN};
    char in[4096];
    size_t len = 0;
    ssize_t n;

    alarm(20);
    dprintf(p.fd, "{\"QMP\":{}}\n");
    while (poll(&p, 1, fake->spins ? 0 : -1) >= 0) {
        if (!p.revents)
            continue;
        if ((n = receive(p.fd, in + len, sizeof(in) - 1 - len)) <= 0)
            break;
        len += (size_t)n;
        in[len] = '\0';
        if (!strchr(in, '\n'))
            continue;
        json_t *m = json_loads(in, JSON_DISABLE_EOF_CHECK, NULL);
        const char *name = json_string_value(json_object_get(m, "execute"));
        if (strcmp(name, "qmp_capabilities") && strlen(fake->log) + 64 < sizeof(fake->log))
            strcat(strcat(fake->log, name), " ");
        json_t *a = answer_to(name, json_object_get(m, "arguments"));
        json_object_set(a, "id", json_object_get(m, "id"));
        char *text = json_dumps(a, 0);
        dprintf(p.fd, "%s\n", text);
        free(text);
        json_decref(a);
        json_decref(m);
        len = 0;
    }
    _exit(0);
}

/* What @run returns of a QEMU that is like @like */
static int with_fake(struct fake like, int (*run)(struct qmp *q, struct ff_error *err),
                     struct ff_error *err)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    char dir[] = "/tmp/state-XXXXXX", byte;
    int ready[2], status;
    struct qmp *q;

    if (!fake)
        fake = mmap(NULL, sizeof(*fake), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(fake, MAP_FAILED);
    *fake = like;
    assert_non_null(mkdtemp(dir));
    snprintf(a.sun_path, sizeof(a.sun_path), "%s/qmp", dir);
    assert_int_equal(pipe(ready), 0);
    pid_t pid = fork();
    if (!pid) { /* who listens is the process that a client sees */
        int listener = socket(AF_UNIX, SOCK_STREAM, 0);
        if (bind(listener, (struct sockaddr *)&a, sizeof(a)) || listen(listener, 1) ||
            write(ready[1], "", 1) != 1)
            _exit(1);
        serve(listener);
    }
    close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    assert_ok(qmp_connect(a.sun_path, -1, LIMIT_MS, &q, err), *err);
    assert_int_equal(qmp_pid(q), pid);
    int rc = run(q, err);
    qmp_free(q);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && !WEXITSTATUS(status));
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
    assert_int_equal(state_len, fake->len);
    for (size_t i = 0; i < state_len; i++)
        assert_int_equal(state[i], i % 251);
    free(state);
    assert_int_equal(fake->mode, O_WRONLY);
    assert_int_equal(fake->writer, -1);
}

static void test_saved(void **unused)
{
    struct ff_error err;

    (void)unused;
    assert_ok(with_fake(stopped, save, &err), err);
    check_state();
    assert_true(fake->live);
    assert_string_equal(fake->log, SAVED "query-named-block-nodes ");
    assert_ok(with_fake(stopped, save_beside, &err), err);
    check_state();
    assert_false(fake->live);
    assert_string_equal(fake->log, SAVED);
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
        assert_string_equal(fake->log, "query-status ");
    }
    like = stopped;
    like.runs_on = true;
    assert_fails(with_fake(like, save, &err), EINVAL);
    assert_string_equal(fake->log, SAVED);
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
    assert_string_equal(fake->log, SETTLED "add-fd xen-save-devices-state remove-fd ");
    assert_int_equal(fake->writer, -1);
    like = stopped;
    like.stays_active = true;
    assert_fails(with_fake(like, save, &err), EIO);
    assert_error(err, EIO, "b.raw", "'img'");
    like = stopped;
    like.len = 0;
    assert_fails(with_fake(like, save, &err), EPROTO);
    assert_error(err, EPROTO, "0 bytes");
}

static int settle(struct qmp *q, struct ff_error *err)
{
    return settle_devices(q, 300, err);
}

/* A throttled disk: what follows one request is the next one. Then a main loop that never sleeps */
static void test_settles(void **unused)
{
    struct fake like = stopped;
    struct ff_error err;

    (void)unused;
    like.requests = 3;
    assert_ok(with_fake(like, settle, &err), err);
    assert_string_equal(fake->log, SETTLED ROUND ROUND ROUND);
    like.requests = 1u << 30;
    assert_fails(with_fake(like, settle, &err), ETIMEDOUT);
    assert_error(err, ETIMEDOUT, "still busy after 300 ms");
    like.requests = 0;
    like.spins = true;
    assert_fails(with_fake(like, settle, &err), ETIMEDOUT);
    assert_error(err, ETIMEDOUT, "still busy");
    assert_string_equal(fake->log, "query-status ");
}

/* @opaque: it passes a descriptor */
static int carried(void *opaque, const char *line, int fd, char **answer, struct ff_error *why)
{
    bool adds = strstr(line, "add-fd");

    assert_int_equal(fd >= 0, adds);
    if (adds && !opaque)
        return ff_error_set(why, EOPNOTSUPP, "a descriptor");
    if (adds)
        assert_int_equal(write(fd, "carried", 7), 7);
    *answer = strdup(adds ? "{\"return\":{\"fdset-id\":7}}" : "{\"return\":{\"status\":\"paused\"}}");
    return 0;
}

static void test_carried(void **unused)
{
    pid_t pid = fork();
    struct ff_error err;

    (void)unused;
    if (!pid) {
        poll(NULL, 0, LIMIT_MS);
        _exit(0);
    }
    struct qmp *q = qmp_by(carried, NULL, pid);
    assert_fails(save(q, &err), EOPNOTSUPP);
    qmp_free(q);
    q = qmp_by(carried, &err, pid);
    assert_ok(save(q, &err), err);
    assert_int_equal(state_len, 7);
    assert_memory_equal(state, "carried", 7);
    free(state);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    /* one that has ended has no main thread */
    assert_fails(save(q, &err), ESRCH);
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
          cmocka_unit_test(test_fails), cmocka_unit_test(test_settles),
          cmocka_unit_test(test_carried), cmocka_unit_test(test_may))
