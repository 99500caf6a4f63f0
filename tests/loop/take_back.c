/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * take_back.c - fallback=go: leases, and a source that takes its guest back from a destination that
 *               died, or that cannot be reached
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      source: the test's process            destination: one of its own
 *              ff_source_take_back() ................ a "guest" that beats in memory of both,
 *                                                     for as long as the lease's function lets it
 *              fence: a script that writes down what it was told, and how it is to end
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cleanup.h"
#include "failpoint.h"
#include "fallback.h"
#include "loop.h"
#include "wire.h"

#define GUEST .touchers = 4, .writes = true, .touch_late = true

static void setup(void)
{
    image_new(4000);
    fallback_setup();
}

/* --- the destination --- */

static void refuses_leases(struct move *m)
{
    ff_dest_refuse_lease(m->dest, "its disks are its own");
}

struct mortal {
    struct move *m;
    const char *faults;
    int recover_ms; /* after the break; 0: the test wants it killed before */
    bool released;  /* after the first break: somebody thinks that the source is dead */
    bool mistaken;  /* ... while it is heard */
};

static void *release_soon(void *arg)
{
    usleep(300000);
    ff_dest_release(arg);
    return NULL;
}

/* Its exit code: 0: told that the guest was taken back; 2: complete; else 3 */
static void mortal_main(void *arg)
{
    struct mortal *k = arg;
    struct ff_error err;
    int rc = 0;

    must_ok(ff_failpoints_arm(k->faults, &err), err);
    hears_leases(k->m);
    for (enum stage s = D_ACCEPT; s < D_END && !rc; s++) {
        if (s == D_RUNNING)
            guest_start();
        pthread_t thread;
        if (s == D_RUNNING && k->mistaken)
            must(!pthread_create(&thread, NULL, release_soon, k->m->dest));
        rc = move_stage(k->m, s, &err);
    }
    if (!rc)
        _exit(2);
    if (k->released) {
        ff_dest_release(k->m->dest);
        must_ok(ff_dest_recover(k->m->dest, k->recover_ms, &err), err);
        must(ff_dest_wait_done(k->m->dest, &err) < 0);
    }
    _exit(ff_dest_recover(k->m->dest, k->recover_ms, &err) == -EKEYREVOKED ? 0 : 3);
}

static int mortal_start(struct mortal *k, struct move *m)
{
    move_prepare(m);
    int pid = child_start(mortal_main, k);
    ff_dest_free(m->dest); /* the child has it */
    m->dest = NULL;
    return pid;
}

/* The source's stages, up to the one that fails */
static enum stage source_stages(struct move *m, enum stage end)
{
    struct ff_error err;
    enum stage s = S_CONNECT;

    while (s < end && !move_stage(m, s, &err))
        s++;
    return s;
}

static void must_end(int pid, int signal, int code)
{
    int status;

    must(waitpid(pid, &status, 0) == pid);
    if (signal ? WIFSIGNALED(status) && WTERMSIG(status) == signal
               : WIFEXITED(status) && WEXITSTATUS(status) == code)
        return;
    loop_fail(__FILE__, __LINE__, "the destination ended with status 0x%x", status);
}

/* --- it dies --- */

static void dies_at(const char *faults, enum stage first, enum stage last)
{
    static struct move m;
    struct mortal k = {.m = &m, .faults = faults};
    uint64_t sum = image_sum();

    m = (struct move){.tcp = true, .options = set_out(1, ",timeout=5,chunk=64K,window=1")};
    int pid = mortal_start(&k, &m);
    enum stage ended = source_stages(&m, S_END);
    if (ended < first || ended > last)
        loop_fail(__FILE__, __LINE__, "%s: the source ended in %d", faults, ended);
    must_end(pid, SIGKILL, 0);
    take_back(&m, sum);
    move_free(&m);
    remove_files();
}

static void dies(void)
{
    dies_at("dest.running=kill", S_RUNNING, S_RUNNING);
    dies_at("dest.lease=kill", S_RUNNING, S_DONE);
    dies_at("dest.prefill=kill", S_RUNNING, S_DONE);
    dies_at("dest.install=kill", S_RUNNING, S_DONE);
    dies_at("dest.install=kill@20", S_RUNNING, S_DONE);
}

/* It was complete, and DONE is lost: it has not committed anything yet */
static void dies_complete(void)
{
    static struct move m;
    struct mortal k = {.m = &m, .recover_ms = 60000};
    struct ff_error err;

    loop_arm("source.done=fail");
    m = (struct move){.tcp = true, .options = set_out(1, ",timeout=5")};
    uint64_t sum = image_sum();
    int pid = mortal_start(&k, &m);
    must(source_stages(&m, S_END) == S_DONE);
    kill(pid, SIGKILL);
    must_end(pid, SIGKILL, 0);
    take_back(&m, sum);
    must(ff_source_tell_taken_back(m.source, &err) < 0); /* to whom? */
    move_free(&m);
    remove_files();
}

/* --- it lives, and is not reached --- */

static int unreached(struct move *m, struct mortal *k, int lease_s)
{
    *m = (struct move){.tcp = true, .options = set_out(lease_s, ",timeout=5,prefill=off")};
    int pid = mortal_start(k, m);
    must(source_stages(m, S_DONE) == S_DONE);
    for (unsigned ms = 0; !atomic_load(&leased->beat_ns); ms++, usleep(1000))
        must(ms < 20000);
    return pid;
}

/* The fence does nothing: the lease alone keeps two from running */
static void lives(void)
{
    static struct move m;
    struct mortal k = {.m = &m, .recover_ms = 60000};
    uint64_t sum = image_sum();
    struct ff_error err;

    int pid = unreached(&m, &k, 1);
    take_back(&m, sum);
    must(atomic_load(&leased->stops) == 1 && !atomic_load(&leased->goes));
    must_ok(ff_source_tell_taken_back(m.source, &err), err);
    must_end(pid, 0, 0);
    move_free(&m);
    remove_files();
}

/* It was told that the source is dead, which comes back: its guest is under a lease again */
static void released_too_soon(void)
{
    static struct move m;
    struct mortal k = {.m = &m, .recover_ms = 60000, .released = true};
    uint64_t sum = image_sum();
    struct ff_error err;

    int pid = unreached(&m, &k, 1);
    ff_source_pause(m.source);
    usleep(1500000);
    must_ok(ff_source_resume(m.source, NULL, 10000, &err), err);
    take_back(&m, sum);
    must_ok(ff_source_tell_taken_back(m.source, &err), err);
    must_end(pid, 0, 0);
    move_free(&m);
    remove_files();
}

static void *serve_on(void *arg)
{
    struct move *m = arg;
    struct ff_error err;

    must(ff_source_wait_done(m->source, &err) < 0);
    return NULL;
}

/* ... while it is heard: that says nothing of later */
static void released_while_heard(void)
{
    static struct move m;
    struct mortal k = {.m = &m, .recover_ms = 60000, .mistaken = true};
    uint64_t sum = image_sum();
    struct ff_error err;
    pthread_t serves;

    int pid = unreached(&m, &k, 1);
    must(!pthread_create(&serves, NULL, serve_on, &m));
    usleep(900000);
    ff_source_pause(m.source);
    pthread_join(serves, NULL);
    take_back(&m, sum);
    must(atomic_load(&leased->stops) == 1 && !atomic_load(&leased->goes));
    must_ok(ff_source_tell_taken_back(m.source, &err), err);
    must_end(pid, 0, 0);
    move_free(&m);
    remove_files();
}

/* It cannot stop its guest in time, or is stopped itself: the kernel ends it */
static void hangs(bool stopped)
{
    static struct move m;
    struct mortal k = {.m = &m, .recover_ms = 60000};
    uint64_t sum = image_sum();

    int pid = unreached(&m, &k, 2);
    atomic_store(&leased->slow_ms, 3600000);
    if (stopped)
        kill(pid, SIGSTOP);
    take_back(&m, sum);
    must(!atomic_load(&leased->stops));
    must(waitpid(pid, NULL, WNOHANG) == pid); /* before the source took it back */
    move_free(&m);
    remove_files();
}

static void hangs_in_stopping(void)
{
    hangs(false);
}

static void is_stopped(void)
{
    hangs(true);
}

/* --- the fence, the record --- */

static void fence_fails(void)
{
    static struct move m;
    struct mortal k = {.m = &m};
    struct ff_error err;

    loop_arm("source.record=fail:28@1");
    m = (struct move){.tcp = true, .options = set_out(1, ",timeout=5")};
    uint64_t sum = image_sum();
    k.faults = "dest.running=kill";
    int pid = mortal_start(&k, &m);
    source_stages(&m, S_END);
    must_end(pid, SIGKILL, 0);

    /* no space: nothing was decided */
    must(ff_source_take_back(m.source, &err) == -EIO && strstr(err.text, "No space") &&
         !is_there(record) && !is_there(fenced));
    must(ff_source_resume(m.source, NULL, 100, &err) == -ETIMEDOUT);
    make_fence(1);
    int rc = ff_source_take_back(m.source, &err);
    must(rc == -EPERM && strstr(err.text, "it ended with 1") && is_there(record));
    must(ff_source_resume(m.source, NULL, 100, &err) == -EINVAL &&
         strstr(err.text, "taken back"));
    signal(SIGCHLD, SIG_IGN); /* nobody knows how it ends */
    rc = ff_source_take_back(m.source, &err);
    must(rc == -EPERM && strstr(err.text, "SIGCHLD is ignored"));
    signal(SIGCHLD, SIG_DFL);
    make_fence(0);
    interrupt_often(true);
    must_ok(ff_source_take_back(m.source, &err), err);
    interrupt_often(false);
    take_back(&m, sum);
    move_free(&m);
    remove_files();
}

static void refused_with(const char *says, enum stage last, void (*prepared)(struct move *))
{
    static struct move m;

    m = (struct move){.options = options, .prepared = prepared};
    move_run(&m);
    if (!m.src.rc || m.went || m.ran || m.src.stage > last || !strstr(m.src.err.text, says))
        loop_fail(__FILE__, __LINE__, "want \"%s\": source %d, stage %d: %s", says, m.src.rc,
                  m.src.stage, m.src.err.text);
    move_free(&m);
}

/* While the guest runs at the source, and nothing has been said of its state */
static void refusals(void)
{
    set_out(30, "");
    refused_with("cannot stop its guest", S_WATCHED, NULL);
    refused_with("its disks are its own", S_WATCHED, refuses_leases);
    write_file(record, "of another move", 0600);
    refused_with("remove it", S_CONNECT, hears_leases);
    unlink(record);
    chmod(fence, 0600);
    if (geteuid()) /* root may write, not execute */
        refused_with("Permission denied", S_CONNECT, hears_leases);
    unlink(fence);
    refused_with("No such file", S_CONNECT, hears_leases);
    signal(SIGCHLD, SIG_IGN);
    refused_with("trap - CHLD", S_CONNECT, hears_leases);
    signal(SIGCHLD, SIG_DFL);
    *strstr(options, "fence,") = '='; /* env(1) would take that for a variable */
    refused_with("without '='", S_CONNECT, hears_leases);
    remove_files();
}

/* In a process of its own: who has done that starts no thread */
static void first_of_namespace_main(void *arg)
{
    int status;

    if (unshare(CLONE_NEWPID))
        _exit(77);
    pid_t pid = fork();
    if (!pid)
        mortal_main(arg);
    must(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    _exit(WEXITSTATUS(status));
}

/* The kernel would not end it when its lease does */
static void first_of_namespace(void)
{
    static struct move m;
    struct mortal k = {.m = &m};
    struct ff_error err;
    enum stage s = S_CONNECT;
    int status;

    /* /proc is not of that namespace, and cannot say there whose a connection is */
    m = (struct move){.tcp = true, .options = set_out(30, ",timeout=5,insecure=on")};
    move_prepare(&m);
    int pid = child_start(first_of_namespace_main, &k);
    ff_dest_free(m.dest);
    m.dest = NULL;
    while (s < S_END && !move_stage(&m, s, &err))
        s++;
    must(waitpid(pid, &status, 0) == pid);
    move_free(&m);
    remove_files();
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        loop_skip("unshare(CLONE_NEWPID) is not permitted");
    if (s > S_WATCHED || !strstr(err.text, "first process of its PID namespace"))
        loop_fail(__FILE__, __LINE__, "source, stage %d: %s", s, err.text);
}

static void holds_output(struct move *m)
{
    hears_leases(m);
    must(!ff_dest_hold_output(m->dest)); /* nobody has come yet */
}

/* WELCOME without the feature, to whoever comes */
static void *welcome_main(void *arg)
{
    static uint8_t buf[FF_MSG_MAX];
    struct ff_welcome w = {.version = FF_WIRE_VERSION, .epoch = 1};
    struct ff_link *l;
    struct ff_error err;

    must_ok(ff_port_accept(arg, NULL, 0, 20000, &l, &err), err);
    must(l->ops->recv(l, buf, 20000, &err) > 0);
    must_ok(l->ops->send(l, buf, (uint32_t)ff_wire_put_welcome(buf, &w), &err), err);
    l->ops->recv(l, buf, 20000, &err); /* it hangs up */
    l->ops->free(l);
    return NULL;
}

/* A destination that has never heard of it */
static void unheard_of(void)
{
    struct ff_link_params p = {.host = "127.0.0.1", .port = "0", .timeout_ms = 15000};
    struct ff_region r = {.host = image, .len_bytes = 1 << 20, .psize = 4096, .name = "m"};
    struct ff_source *s;
    struct ff_address *a;
    struct ff_port *port;
    struct ff_error err;
    pthread_t thread;
    char text[400];

    must_ok(ff_port_listen(&p, FF_LINK_TCP, &port, &err), err);
    must(!pthread_create(&thread, NULL, welcome_main, port));
    snprintf(text, sizeof(text), "127.0.0.1:%u,%s", ff_port_number(port), options);
    must_ok(ff_address_parse(text, &a, &err), err);
    must_ok(ff_source_new(a, &s, &err), err);
    must_ok(ff_source_add_region(s, &r, &err), err);
    must(ff_source_connect(s, "test", &err) == -ENOTSUP && strstr(err.text, "does not know it"));
    ff_source_free(s);
    ff_address_free(a);
    must(!pthread_join(thread, NULL));
    ff_port_free(port);
}

/* A source that wants its guest's output held finds a destination that can, or goes nowhere */
static void held_output(void)
{
    static struct move m;

    set_out(30, ",output=hold");
    unheard_of();
    refused_with("cannot hold what its guest sends", S_WATCHED, hears_leases);
    m = (struct move){.tcp = true, .options = options, GUEST, .prepared = holds_output};
    move_run(&m);
    must(!m.dst.rc && ff_dest_hold_output(m.dest));
    move_must_succeed(&m);
    remove_files();
}

/* --- nobody dies --- */

static void whole(void)
{
    static struct move m;
    struct ff_error err;

    m = (struct move){.tcp = true, .options = set_out(30, ""), GUEST, .prepared = hears_leases};
    move_run(&m);
    must(!m.dst.rc && ff_dest_is_told(m.dest));
    must(ff_source_take_back(m.source, &err) == -EINVAL && strstr(err.text, "for good"));
    must(!atomic_load(&leased->stops) && !is_there(record) && !is_there(fenced));
    move_must_succeed(&m);
    remove_files();
}

/* The link is away for longer than the lease: the guest rests meanwhile */
static void long_outage(struct move *m, bool source)
{
    (void)m;
    if (source)
        sleep(3);
}

static void outage(void)
{
    static struct move m;

    m = (struct move){.options = set_out(2, ",timeout=5,chunk=64K,window=1,prefill=pull"), GUEST,
                      .prepared = hears_leases, .broken = long_outage};
    move_must_survive(&m, "dest.fault=delay:2000,tcp.serve.prefill=fail@9", 1);
    must(atomic_load(&leased->stops) == 1 && atomic_load(&leased->goes) == 1 && !is_there(record));
    remove_files();
}

/* DONE is lost: a complete destination is not content before it has heard WITHDRAWN */
static void done_lost(void)
{
    static struct move m;

    m = (struct move){.options = set_out(30, ",timeout=5"), GUEST, .prepared = hears_leases};
    move_must_survive(&m, "source.done=fail@1,source.resume=fail@1", 1);
    must(atomic_load(&m.breaks_dst));
    remove_files();
}

/* ... and waits for a source that may not have read its answer, which asks again */
static void recover_once_complete(struct move *m, enum stage stage)
{
    struct ff_error err;

    must(stage != D_END ||
         (!ff_dest_is_told(m->dest) && !ff_dest_recover(m->dest, 20000, &err)));
}

static void answer_lost(void)
{
    static struct move m;

    m = (struct move){.options = set_out(30, ",timeout=3"), GUEST, .prepared = hears_leases,
                      .hook = recover_once_complete};
    move_must_survive(&m, "dest.withdrawn=fail@1", 1);
    remove_files();
}

/* GO comes so late that nothing is left of the lease that READY asked for */
static void late_go(void)
{
    static struct move m;

    loop_arm("source.go=delay:1500000");
    m = (struct move){.tcp = true, .options = set_out(1, ",timeout=5"), GUEST,
                      .prepared = hears_leases};
    move_run(&m);
    for (unsigned ms = 0; !atomic_load(&leased->goes) && ms < 5000; ms++)
        usleep(1000);
    must(atomic_load(&leased->stops) == 1);
    move_must_succeed(&m);
    remove_files();
}

/* --- the source dies --- */

static void source_main(void *arg)
{
    struct ff_error err;

    must_ok(ff_failpoints_arm("source.done=kill", &err), err);
    source_stages(arg, S_END);
    _exit(3);
}

static void source_dies(void)
{
    static struct move m;
    struct ff_error err;
    int rc = 0;

    m = (struct move){.tcp = true, .options = set_out(1, ",timeout=5")};
    move_prepare(&m);
    int pid = child_start(source_main, &m);
    ff_source_free(m.source);
    m.source = NULL;
    hears_leases(&m);
    for (enum stage s = D_ACCEPT; s < D_END && !rc; s++)
        rc = move_stage(&m, s, &err);
    must(rc == -ENOTCONN && !ff_dest_is_told(m.dest)); /* every page is here */
    must_end(pid, SIGKILL, 0);
    must(ff_dest_recover(m.dest, 1500, &err) == -ETIMEDOUT);
    must(atomic_load(&leased->stops) == 1 && !atomic_load(&leased->goes));
    atomic_store(&leased->slow_ms, 300);
    ff_dest_release(m.dest); /* an operator says so */
    must_ok(ff_dest_recover(m.dest, 1500, &err), err);
    must_ok(ff_dest_wait_done(m.dest, &err), err);
    must(atomic_load(&leased->goes) == 1);
    verify_all(&m);
    ff_dest_free(m.dest);
    remove_files();
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"whole", whole, 30},
        {"the destination dies", dies, 90},
        {"the destination dies complete", dies_complete, 60},
        {"the destination lives", lives, 30},
        {"released too soon", released_too_soon, 30},
        {"released while heard", released_while_heard, 30},
        {"the destination hangs", hangs_in_stopping, 30},
        {"the destination is stopped", is_stopped, 30},
        {"fence and record", fence_fails, 30},
        {"refusals", refusals, 60},
        {"first of its namespace", first_of_namespace, 30},
        {"output=hold", held_output, 60},
        {"outage longer than the lease", outage, 60},
        {"DONE lost", done_lost, 60},
        {"the last answer lost", answer_lost, 60},
        {"GO late", late_go, 30},
        {"the source dies", source_dies, 30},
    };
    return loop_main(argc, argv, setup, tests, FF_ARRAY_LEN(tests));
}
