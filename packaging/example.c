/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * example.c - memory moves from one process to another, page by page, after the move
 *
 *     gcc example.c -o example $(pkg-config --cflags --libs farfork)
 *     ./example
 *
 * A "guest" is here a buffer, and its "device state" one number. As root, or where
 * vm.unprivileged_userfaultfd is 1, or who may open /dev/userfaultfd.
 */
#include <farfork.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define LEN (16u << 20)
#define CONFIG "example 1" /* both sides must say the same */

static struct ff_error *err;

/* What every call returns: 0, or the error has a line for people */
static void must(int rc)
{
    if (!rc)
        return;
    fprintf(stderr, "example: %s\n", ff_error_message(err));
    exit(1);
}

static struct ff_region memory(void)
{
    void *host = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (host == MAP_FAILED)
        exit(1);
    return (struct ff_region){.name = "ram", .host = host, .len_bytes = LEN, .psize = 4096,
                              .fd = -1, .zero_fill = true};
}

static void destination(int port_pipe)
{
    struct ff_address *a;
    struct ff_dest *d;
    struct ff_region r = memory();
    void *state;
    size_t len;

    must(ff_address_parse("127.0.0.1:0,insecure=on", &a, err));
    must(ff_dest_new(a, &d, err));
    must(ff_dest_add_region(d, &r, err));
    unsigned port = ff_dest_port(d);
    if (write(port_pipe, &port, sizeof(port)) != sizeof(port))
        exit(1);
    must(ff_dest_accept(d, CONFIG, err));
    must(ff_dest_start(d, err));
    must(ff_dest_recv_state(d, &state, &len, err));
    must(ff_dest_ready(d, err));
    must(ff_dest_wait_go(d, err));
    must(ff_dest_running(d, err));
    /* runs already: what it touches comes first, the rest follows */
    printf("destination: state %d, the last page begins with \"%s\"\n", *(int *)state,
           (char *)r.host + LEN - 4096);
    must(ff_dest_wait_done(d, err));
    printf("destination: all of it is here, over %s\n", ff_dest_link(d));
    ff_dest_free(d);
    ff_address_free(a);
    free(state);
}

static void source(unsigned port)
{
    struct ff_address *a;
    struct ff_source *s;
    struct ff_region r = memory();
    char text[80];
    int state = 42;

    strcpy((char *)r.host + LEN - 4096, "written at the source");
    snprintf(text, sizeof(text), "127.0.0.1:%u,insecure=on", port);
    must(ff_address_parse(text, &a, err));
    must(ff_source_new(a, &s, err));
    must(ff_source_add_region(s, &r, err));
    must(ff_source_connect(s, CONFIG, err));
    must(ff_source_publish(s, err));
    /* the guest stands still from here on */
    must(ff_source_send_state(s, &state, sizeof(state), NULL, 0, err));
    must(ff_source_wait_ready(s, err));
    must(ff_source_go(s, err)); /* and never runs here again */
    must(ff_source_wait_running(s, err));
    must(ff_source_wait_done(s, err));
    ff_source_free(s);
    ff_address_free(a);
}

int main(void)
{
    int ports[2], status;
    unsigned port;

    err = ff_error_new();
    if (!err || pipe(ports))
        return 1;
    pid_t child = fork();
    if (!child) {
        close(ports[0]);
        destination(ports[1]);
        exit(0);
    }
    close(ports[1]);
    if (read(ports[0], &port, sizeof(port)) != sizeof(port))
        return 1;
    source(port);
    return waitpid(child, &status, 0) != child || status;
}
