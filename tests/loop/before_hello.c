/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * before_hello.c - a thousand strangers at a destination: what they take of its host before HELLO
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <linux/sock_diag.h>
#include <malloc.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "by_hand.h"
#include "cleanup.h"
#include "handshake.h"
#include "log.h"
#include "tcp_socket.h"

#ifndef SO_MEMINFO
#define SO_MEMINFO 55
#endif

#define STRANGERS 1000u
#define REPORT_EVERY 50u
#define KINDS 4u
/* Who waits to be heard has a descriptor */
#define PLACES 64u
/* Who may be heard without a key has a link: room for a message, and a table of memory */
#define LINKS 9u
#define LINK_BYTES (128u << 10)
/* Less than a thousand of anything */
#define FEW_BYTES (16u << 10)
/* A receive buffer takes one packet more than there is room for */
#define PACKET_BYTES (128u << 10)

/* In the log, at each of two places that count them */
#define LINES 80u

/* What this process has */
struct has {
    size_t heap, rss, unread, unread_max;
    unsigned files, threads;
};

static unsigned count_in(const char *dir)
{
    DIR *d = opendir(dir);
    unsigned n = 0;

    must(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n - 2; /* . and .. */
}

static size_t anon_bytes(void)
{
    FILE *f = fopen("/proc/self/status", "re");
    char line[200];
    size_t kib = 0;

    must(f);
    while (fgets(line, sizeof(line), f) && sscanf(line, "RssAnon: %zu", &kib) != 1)
        ;
    fclose(f);
    must(kib);
    return kib << 10;
}

/* What the kernel keeps for sockets that nobody has read; and what it may keep for them */
static void count_unread(struct has *h)
{
    for (int fd = 0; fd < 4096; fd++) {
        uint32_t m[SK_MEMINFO_VARS];
        socklen_t len = sizeof(m);

        if (getsockopt(fd, SOL_SOCKET, SO_MEMINFO, m, &len) || len < sizeof(m))
            continue;
        h->unread += m[SK_MEMINFO_RMEM_ALLOC];
        h->unread_max += m[SK_MEMINFO_RCVBUF] + PACKET_BYTES;
    }
}

static struct has look(void)
{
    struct has h = {.heap = mallinfo2().uordblks, .rss = anon_bytes(),
                    .files = count_in("/proc/self/fd") - 1, .threads = count_in("/proc/self/task")};

    count_unread(&h);
    return h;
}

/* --- the strangers, in a process of their own --- */

struct crowd {
    unsigned port;
    int says; /* a byte for each REPORT_EVERY of them */
    pid_t pid;
};

static void talk(int fd, unsigned i)
{
    static char much[64 << 10];
    uint8_t nonce[FF_HS_NONCE_LEN], hello[FF_HS_HELLO_LEN];
    struct ff_handshake h;

    switch (i % KINDS) {
    case 0: /* silent */
        break;
    case 1: /* says hello, and proves nothing */
        must(!ff_hs_nonce(nonce, NULL));
        ff_hs_ask(&h, FF_HS_SUITES, nonce, hello);
        send(fd, hello, sizeof(hello), MSG_NOSIGNAL);
        break;
    case 2: /* the head of a message that never comes */
        send(fd, "FFcm\0\0\1\0", 8, MSG_NOSIGNAL);
        break;
    case 3: /* as much as is taken */
        while (send(fd, much, sizeof(much), MSG_NOSIGNAL | MSG_DONTWAIT) > 0)
            ;
    }
}

static void crowd_main(void *arg)
{
    const struct crowd *c = arg;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)c->port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct rlimit files;

    must(!getrlimit(RLIMIT_NOFILE, &files));
    files.rlim_cur = files.rlim_max;
    must(!setrlimit(RLIMIT_NOFILE, &files));
    for (unsigned i = 0; i < STRANGERS; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        must(fd >= 0 && !connect(fd, (struct sockaddr *)&to, sizeof(to)));
        talk(fd, i);
        if (i % REPORT_EVERY == REPORT_EVERY - 1)
            must(write(c->says, "", 1) == 1);
    }
    pause(); /* they stay */
}

/* --- at a destination that waits for its source --- */

static struct crowd crowd;
static size_t heap_max;
static atomic_uint n_logs;

static void count_log(enum ff_log_level level, const char *line)
{
    (void)level;
    if (atomic_fetch_add(&n_logs, 1) < 2)
        printf("      %s\n", line);
}

static void max_of(struct has *most, const struct has *now, const struct has *before)
{
    most->heap = FF_MAX(most->heap, now->heap - FF_MIN(before->heap, now->heap));
    most->rss = FF_MAX(most->rss, now->rss - FF_MIN(before->rss, now->rss));
    most->files = FF_MAX(most->files, now->files - FF_MIN(before->files, now->files));
    most->threads = FF_MAX(most->threads, now->threads - FF_MIN(before->threads, now->threads));
    most->unread = FF_MAX(most->unread, now->unread);
    most->unread_max = FF_MAX(most->unread_max, now->unread_max);
}

/* One who is dropped at once: what the library needs once for all is there then */
static void warm_up(struct move *m)
{
    static const uint8_t rubbish[100] = "GET / HTTP/1.0\r\n\r\n";
    struct ff_link *l = hand_say(m, rubbish, sizeof(rubbish));
    static uint8_t buf[FF_MSG_MAX];
    struct ff_error err;

    while (l->ops->recv(l, buf, 20000, &err) >= 0)
        ;
    l->ops->free(l);
}

static void crowd_comes(struct move *m, enum stage stage)
{
    struct has before, most = {0};
    int says[2];
    char byte;

    if (stage == S_END) {
        kill(crowd.pid, SIGKILL);
        waitpid(crowd.pid, NULL, 0);
        printf("      %u lines in the log\n", atomic_load(&n_logs));
        must(atomic_load(&n_logs) && atomic_load(&n_logs) <= LINES);
    }
    if (stage != S_CONNECT)
        return;
    ff_log_set(count_log, FF_LOG_WARN);
    warm_up(m);
    must(!pipe2(says, O_CLOEXEC));
    before = look();
    crowd = (struct crowd){.port = ff_dest_port(m->dest), .says = says[1]};
    crowd.pid = child_start(crowd_main, &crowd);
    close(says[1]);
    for (unsigned i = 0; i < STRANGERS / REPORT_EVERY; i++) {
        must(read(says[0], &byte, 1) == 1);
        struct has now = look();
        max_of(&most, &now, &before);
    }
    close(says[0]);
    printf("      heap %zu bytes (permitted %zu), resident %zu KiB, unread in the kernel %zu KiB "
           "(permitted %zu), %u files, %u threads\n", most.heap, heap_max, most.rss >> 10,
           most.unread >> 10, most.unread_max >> 10, most.files, most.threads);
    must(most.heap <= heap_max);
    must(UNDER_SANITIZER || most.rss <= heap_max + (256u << 10));
    must(most.unread <= most.unread_max);
    must(most.files <= PLACES && !most.threads);
}

static void with_a_key(void)
{
    static const char hex[] = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
    static struct move m;
    char dir[] = "/tmp/farfork-before-hello-XXXXXX", path[64], options[96];

    must(loop_mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/key", dir);
    FF_AUTO_CLOSE int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    must(fd >= 0 && write(fd, hex, strlen(hex)) == (ssize_t)strlen(hex));
    snprintf(options, sizeof(options), "key-file=%s,prealloc=0", path);
    heap_max = FEW_BYTES;
    m = (struct move){.tcp = true, .options = options, .hook = crowd_comes};
    move_run(&m);
    must(!unlink(path) && !rmdir(dir));
    move_must_succeed(&m);
}

static void without(void)
{
    static struct move m;

    heap_max = LINKS * LINK_BYTES + FEW_BYTES;
    m = (struct move){.tcp = true, .options = "insecure=on,prealloc=0", .hook = crowd_comes};
    move_run(&m);
    move_must_succeed(&m);
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"1,000 strangers, with a key", with_a_key, 120},
        {"1,000 strangers, insecure=on", without, 120},
    };

    image_new(3000);
    return loop_main(argc, argv, NULL, tests, FF_ARRAY_LEN(tests));
}
