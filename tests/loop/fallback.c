/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * fallback.c - moves with fallback=go: a fence, a record, and a guest that beats while its lease lets it
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#include "cleanup.h"
#include "fallback.h"
#include "loop.h"

static char dir[32];
char record[64], fence[64], fenced[64], options[256];
struct leased *leased;

void fallback_setup(void)
{
    leased = mmap(NULL, sizeof(*leased), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(leased != MAP_FAILED);
}

/* --- files --- */

void write_file(const char *path, const char *text, int mode)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);

    must(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
}

bool file_says(const char *path, const char *text)
{
    char buf[512] = "";
    FF_AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);

    return fd >= 0 && read(fd, buf, sizeof(buf) - 1) > 0 && strstr(buf, text);
}

bool is_there(const char *path)
{
    return !access(path, F_OK);
}

void make_fence(int code)
{
    char text[300];

    snprintf(text, sizeof(text),
             "#!/bin/sh\ntest -e %s || exit 9\necho $FARFORK_DESTINATION $FARFORK_SESSION >>%s\n"
             "exit %d\n",
             record, fenced, code);
    write_file(fence, text, 0700);
}

void remove_files(void)
{
    unlink(record);
    unlink(fence);
    unlink(fenced);
    rmdir(dir);
}

const char *set_out(int lease_s, const char *more)
{
    memset(leased, 0, sizeof(*leased));
    atomic_store(&leased->runs, true); /* once it is started, until a lease says otherwise */
    strcpy(dir, "/tmp/farfork-loop-XXXXXX");
    must(loop_mkdtemp(dir));
    snprintf(record, sizeof(record), "%s/record", dir);
    snprintf(fence, sizeof(fence), "%s/fence", dir);
    snprintf(fenced, sizeof(fenced), "%s/fenced", dir);
    make_fence(0);
    snprintf(options, sizeof(options), "fallback=go,lease=%d,fence=%s,record=%s%s", lease_s, fence,
             record, more);
    return options;
}

uint64_t image_sum(void)
{
    uint64_t sum = 0;

    for (uint64_t i = 0; i < image_cells * CELL / 8; i++)
        sum = (sum ^ ((const uint64_t *)(const void *)image)[i]) * 0x100000001b3ull;
    return sum;
}

/* --- the guest --- */

static void on_lease(void *opaque, bool may_run)
{
    (void)opaque;
    usleep((useconds_t)atomic_load(&leased->slow_ms) * 1000);
    atomic_fetch_add(may_run ? &leased->goes : &leased->stops, 1);
    atomic_store(&leased->runs, may_run);
}

static void *guest_main(void *arg)
{
    (void)arg;
    for (;; usleep(200)) {
        if (atomic_load(&leased->runs))
            atomic_store(&leased->beat_ns, ff_boot_ns());
    }
    return NULL;
}

void hears_leases(struct move *m)
{
    ff_dest_on_lease(m->dest, on_lease, NULL);
}

void guest_start(void)
{
    pthread_t guest;

    must(!pthread_create(&guest, NULL, guest_main, NULL));
}

/* --- taking it back --- */

static void on_alarm(int number)
{
    (void)number;
}

void interrupt_often(bool often)
{
    const struct itimerval t = {.it_interval.tv_usec = often * 200, .it_value.tv_usec = often * 200};

    must(!sigaction(SIGALRM, &(struct sigaction){.sa_handler = on_alarm}, NULL));
    must(!setitimer(ITIMER_REAL, &t, NULL));
}

/* Nobody runs it there from here on */
static void must_be_still(void)
{
    uint64_t now = ff_boot_ns();

    must(atomic_load(&leased->beat_ns) < now);
    usleep(300000);
    must(atomic_load(&leased->beat_ns) < now);
}

void take_back(struct move *m, uint64_t sum)
{
    struct ff_error err;

    must(m->went);
    must_ok(ff_source_take_back(m->source, &err), err);
    must_be_still();
    must(image_sum() == sum);
    must(file_says(record, "taken-back\nsession=") && file_says(fenced, "127.0.0.1:"));
    char session[FF_SESSION_TEXT];
    ff_source_session(m->source, session);
    must(*session && file_says(record, session) && file_says(fenced, session));
    must(ff_source_resume(m->source, NULL, 1000, &err) == -EINVAL);
    must_ok(ff_source_take_back(m->source, &err), err); /* it is */
}
