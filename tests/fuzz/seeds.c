/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * seeds.c - write a small corpus for the fuzzers
 *
 * usage: seeds WIRE QUEUE CLONE GATE DEST SOURCE AGENT GUEST COMMAND ADDRESS
 *        FEED, a folder each
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "error.h"
#include "farfork-clone.h"
#include "message.h"
#include "tcp_wire.h"
#include "wire.h"

static const char *folder;
static unsigned n_files;

static void save(unsigned how, const uint8_t *data, int len)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/seed-%03u", folder, n_files++);
    FILE *f = fopen(path, "wb");
    if (!f || len < 0 || fputc((int)how, f) == EOF ||
        fwrite(data, 1, (size_t)len, f) != (size_t)len || fclose(f)) {
        fprintf(stderr, "seeds: cannot write %s\n", path);
        exit(1);
    }
}

static void save_messages(void)
{
    static uint8_t buf[FF_MSG_MAX];
    struct ff_wire_region r[] = {{.name = "pc.ram", .len_bytes = 1 << 30, .psize = 4096},
                                 {.name = "huge", .len_bytes = 4 << 20, .psize = 2 << 20}};
    struct ff_hello h = {.version = FF_WIRE_VERSION,
                         .oldest = FF_WIRE_VERSION,
                         .n_regions = 2,
                         .config = "pc-q35",
                         .regions = r};
    struct ff_welcome w = {.version = FF_WIRE_VERSION, .session = "0123456789abcde", .epoch = 1};
    struct ff_resume again = {.version = FF_WIRE_VERSION, .oldest = FF_WIRE_VERSION,
                              .session = "0123456789abcde", .epoch = 2, .digest = 77};
    struct ff_publish pub = {
        .segment_bytes = 64 << 20, .n_keys = 1, .addr = {0x7f0000000000, 0x7f1000000000, 0x1000}};
    struct ff_wire_key k[2] = {{0, 0, 1}, {1, 0, 2}};
    struct ff_grant g = {.region = 0, .offset = 4096, .len_bytes = 8192, .rkey = 1, .addr = 4096};
    struct ff_state_head s = {.total_bytes = 100000, .n_first = 2};
    struct ff_dirty d = {.n = 17, .first = 64, .bits = (const uint8_t *)"\1\200\1"};
    struct ff_page_ref p[2] = {{0, 4096}, {1, 8192}};
    struct ff_stats st = {.bytes_total = 1};
    static struct ff_offer o = {.version = FF_WIRE_VERSION, .oldest = FF_WIRE_VERSION, .digest = 77,
                                .r[2] = {.addr = 4096, .claims_addr = 1, .rkey = 1, .claims_rkey = 2}};

    save(0, buf, ff_wire_put_hello(buf, &h, NULL));
    save(0, buf, ff_wire_put_welcome(buf, &w));
    save(0, buf, ff_wire_put_resume(buf, &again));
    save(0, buf, ff_wire_put_lease(buf, 3));
    save(0, buf, ff_wire_put_refuse(buf, FF_REFUSAL_FINAL, "region pc.ram: length differs"));
    save(0, buf, ff_wire_put_refuse(buf, FF_REFUSAL_NOT_YET, "feed: there is no image here yet"));
    save(0, buf, ff_wire_put_publish(buf, &pub, 1)); /* regions: 1 + 2 * how */
    save(1, buf, ff_wire_put_publish(buf, &pub, 3));
    save(1, buf, ff_wire_put_keys(buf, k, 2));
    save(1, buf, ff_wire_put_grants(buf, &g, 1));
    save(0, buf, ff_wire_put_state(buf, &s));
    save(1, buf, ff_wire_put_first(buf, p, 2));
    save(1, buf, ff_wire_put_data(buf, "state", 5));
    save(1, buf, ff_wire_put_dirty(buf, &d));
    for (o.n = 1; o.n <= 3; o.n += 2) /* regions: likewise */
        save(o.n / 2, buf, ff_wire_put_feed(buf, &o));
    save(0, buf, ff_wire_put_empty(buf, FF_MSG_LOGGING));
    save(0, buf, ff_wire_put_stats(buf, FF_MSG_PASSED, &st));
    for (enum ff_msg t = FF_MSG_READY; t <= FF_MSG_WATCHING; t++) {
        bool empty = t == FF_MSG_GO || t == FF_MSG_WITHDRAWN || t == FF_MSG_WATCHING;
        save(0, buf, empty ? ff_wire_put_empty(buf, t) : ff_wire_put_stats(buf, t, &st));
    }
}

static void save_frames(void)
{
    uint8_t f[TCP_REQ_LEN];
    struct tcp_req req = {
        .op = TCP_OP_READ, .id = 1, .addr = 4096, .rkey = 7, .len = 8192, .granule = 4096};
    struct tcp_rep rep = {.op = TCP_OP_READ, .id = 7, .len = 8192, .flags = TCP_F_ZEROS};

    tcp_ctrl_encode(f, 100);
    save(0, f, TCP_CTRL_HEAD_LEN);
    tcp_pad_encode(f, TCP_PAD_LEN);
    save(0, f, TCP_PAD_HEAD_LEN);
    tcp_join_encode(f, FF_QUEUE_PREFILL,
                    &(struct tcp_tokens){.of[FF_QUEUE_PREFILL] = "a session of 16"});
    save(0, f, TCP_JOIN_LEN);
    tcp_req_encode(f, &req);
    save(0, f, TCP_REQ_LEN);
    req.op = TCP_OP_WRITE;
    req.granule = 0;
    tcp_req_encode(f, &req);
    save(0, f, TCP_REQ_LEN);
    tcp_rep_encode(f, &rep);
    save(7, f, TCP_REP_LEN); /* a READ with a zero map was asked for */
}

/* Steps of queue_fuzz.c */
static void save_steps(void)
{
    static const char *const steps[] = {
        /* post READ; reply; its data; poll */
        "\1\1\0\0\0\20\0\0\0\0\3\5\0\6\7\0\0\0\21\3",
        /* post READ with a zero map; reply with a map, all clear; data */
        "\1\4\0\0\20\0\0\0\0\0\3\5\2\0\10\0\0\0\0\0\0\0\0\6\7\0\0\20\0\3",
        /* post WRITE; peer reads; reply */
        "\1\2\0\0\20\0\0\0\0\0\3\7\3\5\1\3",
        /* request: READ of content, with granules; poll; peer reads */
        "\4\34\3\0\0\200\0\0\0\20\0\3\7\3",
        /* request: WRITE and its data */
        "\4\3\3\0\0\0\0\0\0\0\40\6\11\0\0\0\41\3\7\3",
        /* four requests, then leave */
        "\4\0\1\0\0\0\0\0\0\0\5\4\0\2\0\0\0\0\0\0\0\5\4\0\3\0\0\0\0\0\0\0\5\4\0\4\0\0\0\0\0\0"
        "\0\5\10\0\3",
        /* a page fails; request: READ of it and others, with granules, and without */
        "\11\1\4\34\3\0\0\220\0\0\0\100\0\3\7\3\4\4\3\0\0\240\0\0\0\4\0\3\7\3",
        /* READs with a map; replies: two maps, each granule in both; cannot be read */
        "\1\4\0\0\20\0\0\0\0\0\3\5\22\0\2\377\2\377\3\1\4\0\0\20\0\0\0\0\0\5\4\4\3",
    };
    static const int lengths[] = {20, 30, 16, 14, 20, 48, 30, 33};

    for (unsigned i = 0; i < 8; i++)
        save((uint8_t)steps[i][0], (const uint8_t *)steps[i] + 1, lengths[i] - 1);
}

/* Of clone_fuzz.c, as they are on the socket */
static void save_clone(const struct ff_clone_msg *m)
{
    static uint8_t buf[FF_CLONE_MSG_MAX];
    struct ff_clone_msg with = *m;
    struct ff_error err;
    int pair[2], null = open("/dev/null", O_RDONLY | O_CLOEXEC);

    for (unsigned i = 0; i < with.n_fds; i++)
        with.fd[i] = null;
    if (null < 0 || socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) < 0 ||
        ff_clone_send(pair[0], &with, &err)) {
        fprintf(stderr, "seeds: cannot send %s\n", ff_clone_name(m->type));
        exit(1);
    }
    save(m->n_fds, buf, (int)recv(pair[1], buf, sizeof(buf), 0));
    close(pair[0]);
    close(pair[1]);
    close(null);
}

static void save_clone_messages(void)
{
    struct ff_wire_region r[] = {{.name = "pc.ram", .len_bytes = 1 << 30, .psize = 4096},
                                 {.name = "pc.rom", .len_bytes = 1 << 17, .psize = 4096}};
    struct ff_clone_msg hello = {
        .type = FF_CLONE_HELLO, .number = 3, .host = {0x7f0000000000, 0x7f1000000000},
        .table = {.version = FF_WIRE_VERSION, .oldest = FF_WIRE_VERSION, .n_regions = 2,
                  .config = "pc", .regions = r}};
    struct ff_clone_msg image = {
        .type = FF_CLONE_IMAGE, .state_bytes = 70000, .complete = true, .n_fds = 1};
    struct ff_clone_msg files = {
        .type = FF_CLONE_MEMORY, .n = 2, .n_fds = 2, .memory = {{0, true, 0}, {1, false, 4096}}};
    struct ff_clone_msg why = {.type = FF_CLONE_REFUSE, .code = 22, .text = "another machine"};

    save_clone(&hello);
    hello.lends = true;
    save_clone(&hello);
    save_clone(&image);
    save_clone(&files);
    save_clone(&why);
    for (unsigned t = FF_CLONE_WATCH; t <= FF_CLONE_COMPLETE; t++)
        save_clone(&(struct ff_clone_msg){.type = (enum ff_clone_type)t,
                                          .n_fds = t == FF_CLONE_WATCH});
}

/* To each that gate_fuzz tries: what is right, a bit beside it, and something else */
static void save_strangers(void)
{
    static const uint8_t right[FF_HS_ANSWER_LEN], wrong[FF_HS_ANSWER_LEN] = {[50] = 1};
    uint8_t hello[FF_HS_HELLO_LEN], nonce[FF_HS_NONCE_LEN] = {1};
    struct ff_handshake h;

    ff_hs_ask(&h, FF_HS_SUITES, nonce, hello);
    for (unsigned who = 0; who < 4; who++) {
        save(128 + who, right, sizeof(right));
        save(128 + who, wrong, sizeof(wrong));
        save(who, hello, sizeof(hello));
    }
}

/* Steps are bytes: an array of them, as the fuzzer of the name reads it */
#define SAVE(...)                                                                           \
    do {                                                                                    \
        const uint8_t all[] = {__VA_ARGS__};                                                \
        save(all[0], all + 1, sizeof(all) - 1);                                             \
    } while (0)

/* Of dest_fuzz.c and source_fuzz.c: by each way and with each option, a move that is right, of
 * memory that fails too, and with a lease; one whose link breaks after GO, and is resumed or not */
static void save_dest_moves(uint8_t steps)
{
    for (uint8_t how = 0; how < 12; how++)
        for (uint8_t i = 0; i < 8; i++) {
            uint8_t way = (uint8_t)(how % 3 + 48 * (i / 4) + 64 * (how / 3));
            SAVE(way, i, steps);
            SAVE(way, i, (uint8_t)(steps - 1), 5, 4, 0, 0, 8, 31);
            SAVE(way, i + 8, steps);
            SAVE(way, i, 4, 12, 3, 4, 1, 0, 8);
            if (how < 6 || i)
                continue;
            SAVE(way, i, (uint8_t)(steps - 1), 10, 3, 8, 31, 10, 7, 8, 31, 0, 8, 31); /* late */
            SAVE(way, i, (uint8_t)(steps - 1), 11, 0, 8, 31, 11, 2);
            SAVE(way, i + 16, steps);
            SAVE(way, i, (uint8_t)(steps - 1), 5, 8, 8, 31); /* taken back */
            SAVE(way, i, (uint8_t)(steps - 2), 5, 8, 8, 31);
            SAVE(way, i, (uint8_t)(steps - 3), 10, 7, 0, 0, 0); /* GO comes late */
            SAVE(way, i, (uint8_t)(steps - 1), 10, 247, 8, 31, 5, 4, 0, 0); /* for good */
        }
}

static void save_source_moves(uint8_t steps)
{
    for (uint8_t how = 0; how < 12; how++)
        for (uint8_t i = 0; i < 8; i++) {
            uint8_t way = (uint8_t)(how % 3 + 48 * (i % 2) + 64 * (how / 3)), then = i / 2;
            if (then && !(way & 64))
                continue;
            SAVE(way, then, steps);
            SAVE(way, then + 4, steps);
            for (uint8_t until = 8; until < steps; until++) {
                SAVE(way, then, until, 5, i % 3 | 8, 0, 0, 0);
                SAVE(way, then, until, 10, 1, 8, 9, 10, 0, 0, 0, 0, 9);
            }
        }
}

/* Of dest_fuzz.c: at each stage a message that has no place there */
static void save_out_of_order(void)
{
    for (uint8_t stage = 1; stage < 14; stage++) {
        SAVE(0, 0, stage, 4, 0, stage == 11 ? FF_MSG_WITHDRAWN : FF_MSG_GO);
        SAVE(0, 4, stage, 4, 0, FF_MSG_LOGGING, 0, 0);
    }
}

/* Of agent_fuzz.c: an image that is handed over, or comes by a link, and its children */
static void save_agents(void)
{
    SAVE(0, 0, 0, 176, 0, 176, 0, 176, 0, 0, 0, 0, 0, 176, 0, 0, 0, 0, 0);
    SAVE(0, 176, 0, 176, 0, 176, 0, 0, 0, 0, 0, 0, 0, 16, 0, 16, 0, 16, 0, 176, 0, 0, 0, 16, 0);
    SAVE(2, 0, 0, 0, 0, 176, 1, 176, 0, 176, 1, 183, 4, 176, 0, 0, 0, 0, 1, 0, 0, 8, 8, 8);
    SAVE(0, 0, 1, 176, 1, 183, 4, 176, 0, 0, 1, 0, 1, 0, 1, 0, 1);
}

/* Of feed_fuzz.c: one that feeds all; with the source away; a part of it, then the rest; links break */
static void save_feeds(void)
{
    SAVE(4);
    SAVE(1, 14, 0, 0, 0);
    SAVE(2, 14, 0, 0);
    SAVE(1, 4, 3, 0, 4, 20, 1, 132, 2, 0, 14, 0, 0, 255, 4, 3, 2, 4, 20, 2, 132, 2, 3, 255, 255, 6);
    SAVE(1, 0, 0, 63, 5, 14, 0, 0, 63, 5, 6, 0, 0, 0);
    SAVE(1, 2, 0, 5, 1, 0, 0, 0, 0, 2, 16, 9, 4, 0, 3, 1, FF_MSG_DONE, 3, 0, FF_MSG_REFUSE);
    SAVE(0, 2, 0, 0, 0, 1, 1, 1, 1);
}

/* Of guest_fuzz.c: forks, what they report, joins; a child that is ready and exits */
static void save_guests(void)
{
    SAVE(0, 60, 0, 0, 1, 4, 0, 0, 7, 9, 4, 0, 1, 4, 0, 2, 0, 2, 1, 4, 0, 3, 0, 4, 1, 0, 1, 1, 6, 1,
         0, 3, 1, 7, 0);
    SAVE(1, 6, 2, 7, 2, 2, 18, 0, 18, 5, 2);
}

/* Of command_fuzz.c: each command, in each state; a fork's image and its children; a guest that is
 * moved to a child; QEMU's answers */
static void save_commands(void)
{
    for (uint8_t i = 0; i < 13; i++)
        for (uint8_t how = 0; how < 4; how++) {
            SAVE(how, 0, 0, 1, 0, i, 1, 0, 7, 2);
            SAVE(how, 0, 0, 1, 2, 0, 0, 9, 1, 0, i, 1, 0, 2, 1); /* its number is in use */
            SAVE(how, 0, 0, 1, 2, 0, 5, 0, 2, 0, i, 1, 0, 7, 2); /* kept */
            SAVE(how, 0, 0, 1, 0, 9, 1, 0, i, 1);               /* detached */
            SAVE(how, 0, 10, 1, 0, i, 1);                       /* ending */
            SAVE(how, 0, 0, 1, 6, 6, 13, 0, i, 1);              /* it has ended */
            SAVE(how, 3, 0, 1, 9, 0, i, 1, i, 2);               /* at once */
            SAVE(how, 3, 1, 1, 10, 0, i, 1, i, 2);
            SAVE(how, 30 + 32 * (i % 5), 0, i, 1, 0, 0, 2);     /* the host fails */
            SAVE(how, 4, i, 1, 2, 12, 'x', 3, '"');
        }
    SAVE(1, 0, 0, 1, 2, 0, 24, 1, 9, 24, 2, 24, 3, 10, 6, 10, 8, 26, 0, 26, 1, 26, 2, 9, 24, 4, 25,
         7, 7, 15);
    SAVE(1, 0, 0, 1, 2, 0, 9, 121, 57, 89, 24, 5, 93, 13, 13); /* paused, then lost */
    SAVE(2, 0, 0, 1, 2, 0, 0, 4, 1, 10, 0, 10, 1, 10, 2, 0, 5, 0, 3, 1, 10, 0, 10, 1, 10, 4, 0, 9);
    for (uint8_t i = 1; i < 6; i++) { /* a guest's port; questions; nobody comes */
        SAVE(0, 0, 0, 1, 7, 2, 24, FF_CHILD_RUNNING, 10, 8, 13, 26, 0, 26, 1, 26, i, 26, i, 26,
             255);
        SAVE(2, 0, 0, 1, 7, 2, 3, 3, 1, 4, 1, 3, 1, 4, 1, 10, 0, 26, 0, 10, 1, 26, 1, 10, i, 26, i,
             13);
        SAVE(0, 0, 0, 1, 7, 2, 0, 5, 0, 47, 253, 10, 0, 10, 1, 10, i, 253, 10, 0, 10, 1, 10, i);
    }
    SAVE(2, 0, 0, 1, 2, 0, 0, 5, 15, 93, 93, 10, 0, 10, 1, 10, 2); /* nobody comes: SIGTERM */
    SAVE(0, 0, 5, 0, 0, 0, 1, 47, 15); /* a child that comes after keep has its secrets, too */
    SAVE(0, 0, 3, 1, 5, 14, '{', '"', 'p', 'i', 'n', 'g', '"', ':', 't', 'r', 'u', 'e', '}', '\n',
         5, 3, '[', ']', '\n', 5, 2, '1', '\n');
    for (uint8_t how = 0; how < 8; how++)
        SAVE(how % 4, 14 + 32 * how);
}

static void save_addresses(void)
{
    static const char *const texts[] = {
        "unix", "unix,timeout=4,reconnect=0", "[::1]:4444,link=tcp", "a:0,link=verbs,qps=2,odp=on",
        "h:1,device=mlx5_0:1,chunk=64K,window=32,landing=copy,prefill=push,precopy=1,prealloc=1",
        "h:1,landing=move,prefill=off,landing=continue,prefill=pull,prefill=auto,insecure=on",
        "h:1,verify=on",
        "h:65535,key-file=/k,until-go=/run/u,odp=off,reconnect=86400,timeout=3600",
        "h:1,fallback=go,lease=3600,fence=/bin/true,record=/var/r",
        "h:1,fallback=go,fence=/f", "h:1,record=/r", "h:1,fallback=off,fence=/f,record=/r",
        "h:1,fallback=go,lease=0,fence=f,record=/r", "h:1,chunk=3000", "h:1,no=1", "h:1,x", ":",
    };

    for (unsigned i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        save((uint8_t)texts[i][0], (const uint8_t *)texts[i] + 1, (int)strlen(texts[i]) - 1);
    SAVE('h', ':', '1', 0, '5', 'f', '\n');
}

int main(int argc, char **argv)
{
    if (argc != 12) {
        fprintf(stderr, "usage: seeds WIRE QUEUE CLONE GATE DEST SOURCE AGENT GUEST COMMAND "
                        "ADDRESS FEED\n");
        return 2;
    }
    folder = argv[1];
    save_messages();
    save_frames();
    folder = argv[2];
    save_steps();
    folder = argv[3];
    save_clone_messages();
    folder = argv[4];
    save_strangers();
    folder = argv[5];
    save_dest_moves(14);
    save_out_of_order();
    folder = argv[6];
    save_source_moves(12);
    folder = argv[7];
    save_agents();
    folder = argv[8];
    save_guests();
    folder = argv[9];
    save_commands();
    folder = argv[10];
    save_addresses();
    folder = argv[11];
    save_feeds();
    return 0;
}
