/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * names.c - the model's names are the code's: what is renamed there does not compile here
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dest.h"
#include "farfork.h"
#include "failpoint.h"
#include "model.h"
#include "pager.h"

/* A new message has to be put into the model: then change this line. FEED is not in it: it changes
 * nothing of who may run the guest */
_Static_assert(FF_MSG_LAST == FF_MSG_FEED && FF_MSG_FEED < 32, "every message has its place");
_Static_assert(FF_WIRE_VERSION == 11, "HELLO and WELCOME are as the model has them");
_Static_assert(LINKS >= 3 && S_STATES <= 32 && D_STATES <= 32, "bits of search_result");

/* The function that waits in a state. NULL: it is none, or the code does not have it yet */
typedef void (*any_function)(void);
#define AT(function) #function, (any_function)(function), NULL
#define QEMU(function, side) #function, NULL, "qemu-patches/src/rdma-postcopy-" side ".c"
#define PLANNED(text) text, NULL, NULL

struct state_name {
    const char *name;
    any_function function;
    const char *file;      /* of QEMU's side, which defines it */
    const char *failpoint; /* where a test can stop or kill the code in that state */
    int stage;             /* enum stage; -1: after the library's handle is gone, or destination */
};

static const struct state_name source[S_STATES] = {
    [S_CONNECT] = {AT(ff_source_new), NULL, NEW},
    [S_WAIT_WELCOME] = {AT(ff_source_connect), "source.welcomed", NEW},
    [S_PUBLISH] = {AT(ff_source_publish), "source.publish", CONNECTED},
    [S_WAIT_WATCHED] = {AT(ff_source_wait_watched), NULL, PUBLISHED},
    [S_PRECOPY] = {AT(ff_source_precopy), "source.precopy", PUBLISHED},
    [S_WAIT_PASSED] = {AT(ff_source_wait_alive), "control.send", PUBLISHED},
    [S_STOP] = {QEMU(outgoing_stop, "stop"), NULL, PUBLISHED},
    [S_SEND_STATE] = {AT(ff_source_send_state), "source.state", PUBLISHED},
    [S_WAIT_READY] = {AT(ff_source_wait_ready), NULL, SENT},
    [S_GO] = {AT(ff_source_go), "source.go", SENT},
    [S_WAIT_RUNNING] = {AT(ff_source_wait_running), "source.running", GONE},
    [S_WAIT_DONE] = {AT(ff_source_wait_done), NULL, GONE},
    [S_COMPLETE] = {AT(ff_source_free), "source.free", DONE},
    [S_FAILED] = {PLANNED("failed"), NULL, -1},
    [S_PAUSED] = {PLANNED("postcopy-paused"), NULL, GONE},
    [S_ASKED] = {AT(ff_source_resume), "source.resume", GONE},
    [S_TAKING] = {AT(ff_source_take_back), "source.fence", TAKING},
    [S_FENCED] = {PLANNED("taking back: overlays"), NULL, TAKEN},
    [S_DROPPED] = {PLANNED("taking back: activate"), NULL, TAKEN},
    [S_TAKEN_BACK] = {PLANNED("taken back"), NULL, -1},
    [S_DEAD] = {PLANNED("dead"), NULL, -1},
};

static const struct state_name dest[D_STATES] = {
    [D_ACCEPT] = {AT(ff_dest_accept), "dest.accepted", -1},
    [D_START] = {AT(ff_dest_start), "dest.pager", -1},
    [D_RECV_STATE] = {AT(ff_dest_recv_state), "dest.state", -1},
    [D_PRECOPY] = {AT(ff_pager_wait_precopy), "dest.precopy", -1},
    [D_LOAD] = {AT(ff_dest_ready), "dest.ready", -1},
    [D_WAIT_GO] = {AT(ff_dest_wait_go), NULL, -1},
    [D_LINGER] = {PLANNED("lingers"), NULL, -1},
    [D_SEALED] = {AT(ff_dest_recover), NULL, -1},
    [D_RUN] = {QEMU(incoming_run, "dest"), NULL, -1},
    [D_ACTIVATED] = {AT(ff_dest_running), "dest.running", -1},
    [D_WAIT_DONE] = {AT(ff_dest_wait_done), NULL, -1},
    [D_PAUSED] = {AT(ff_pager_park), "dest.resume", -1},
    [D_WAIT_WITHDRAWN] = {AT(ff_pager_drop_landing), NULL, -1},
    [D_COMPLETE] = {PLANNED("complete"), NULL, -1},
    [D_FAILED] = {PLANNED("ended"), NULL, -1},
    [D_DEAD] = {PLANNED("dead"), NULL, -1},
};

/* Home, as the source of a guest that visits */
static const struct state_name way_out[OUT_STATES] = {
    [OUT_SERVES] = {AT(ff_source_let_go), NULL, GONE},
    [OUT_TAKING] = {AT(ff_source_begin_taking), "source.record", GONE},
    [OUT_RECORDED] = {AT(ff_source_take_back), "source.fence", TAKING},
    [OUT_FENCED] = {QEMU(end_return, "source"), NULL, TAKEN},
    [OUT_TAKEN_BACK] = {PLANNED("taken back"), NULL, -1},
};

const char *out_name(unsigned at)
{
    return way_out[at].name;
}

const char *source_name(unsigned at)
{
    return source[at].name;
}

const char *dest_name(unsigned at)
{
    return dest[at].name;
}

const char *rule_name(unsigned rule)
{
    static const char *const names[RULES] = {
        [RULE_KEPT] = "kept",
        [TWO_RUNNERS] = "two runners",
        [TWO_DISKS] = "disks active on both sides",
        [RAN_THERE] = "the source goes on from GO, the destination has run since",
        [RAN_HERE] = "the destination runs, the source has gone on",
        [OLD_EPOCH] = "something of an old epoch was taken",
        [WRONG_BYTES] = "a page is not as it was at GO",
        [ZEROS_SHOWN] = "the pager has ended with pages missing",
        [KEYS_LEFT] = "keys still work where memory is no image any more",
        [OVERLAY_LOST] = "overlays were dropped under a guest that writes",
        [BASE_CHANGED] = "the disks as of GO were written to, and the guest as of GO runs",
        [NOT_WHOLE] = "home runs the guest as of GO, of memory that it had given up",
        [NO_RUNNER] = "nothing brings it to an end, and no loss explains why",
    };
    return names[rule];
}

const char *loss_name(unsigned loss)
{
    static const char *const names[LOSSES] = {
        [LOSS_NONE] = "none",
        [LOSS_SOURCE_DIED] = "the source died before GO was read",
        [LOSS_GO_BROKEN] = "the link broke at GO; nobody can ask whether it arrived",
        [LOSS_LINK_BROKEN] = "the link broke after GO; nothing can mend it",
        [LOSS_PAGES] = "the source died with pages that the destination misses",
        [LOSS_DEST_DIED] = "the destination died after it ran",
        [LOSS_DEST_UNKNOWN] =
            "the destination died after GO was sent; nobody knows that it never ran",
        [LOSS_BOTH_DIED] = "both died",
        [LOSS_TAKING_DIED] = "the source died after it wrote TAKEN-BACK down",
        [LOSS_AWAY_DIED] = "the visited host died with the guest",
        [LOSS_GIVEN_UP] = "the visited host died when home had given up its image",
    };
    return names[loss];
}

void msg_text(uint8_t msg, char *out, unsigned len)
{
    static const char *const welcome[] = {
        [FF_ANSWER_NEW] = "NEW",           [FF_ANSWER_NOT_STARTED] = "NOT-STARTED",
        [FF_ANSWER_RUNNING] = "RUNNING",   [FF_ANSWER_COMPLETE] = "COMPLETE",
        [FF_ANSWER_TAKEN_BACK] = "TAKEN-BACK",
    };
    unsigned type = MSG_TYPE(msg), kind = MSG_KIND(msg);

    if (type == FF_MSG_RESUME && kind == RESUME_TAKEN_BACK)
        snprintf(out, len, "%s(TAKEN-BACK)", ff_msg_name(type));
    else if (type == FF_MSG_WELCOME)
        snprintf(out, len, "%s(%s)", ff_msg_name(type), welcome[kind]);
    else
        snprintf(out, len, "%s", ff_msg_name(type));
}

static bool has_failpoint(const char *name)
{
    for (unsigned i = 0; i < ff_failpoints_n; i++)
        if (!strcmp(name, ff_failpoints[i]))
            return true;
    return false;
}

/* Does the file of QEMU's side begin a line with this function? */
static bool is_defined(const struct state_name *s)
{
    const char *top = getenv("FARFORK_TOP");
    char path[512], line[256], want[64];
    bool found = false;

    snprintf(path, sizeof(path), "%s/%s", top ? top : ".", s->file);
    snprintf(want, sizeof(want), " %s(", s->name);
    FILE *f = fopen(path, "r");
    while (f && !found && fgets(line, sizeof(line), f))
        found = !strncmp(line, "static", 6) && strstr(line, want);
    if (f)
        fclose(f);
    return found;
}

static int check_states(const char *side, const struct state_name *s, unsigned n)
{
    int wrong = 0;

    for (unsigned i = 0; i < n; i++) {
        if (s[i].file && !is_defined(&s[i])) {
            printf("model: %s: %s() is not in %s\n", side, s[i].name, s[i].file);
            wrong++;
        }
        if (s[i].name && (!s[i].failpoint || has_failpoint(s[i].failpoint)))
            continue;
        printf("model: %s: state %u: %s is not there\n", side, i,
               s[i].name ? s[i].failpoint : "its name");
        wrong++;
    }
    return wrong;
}

/* The library's stage only rises on the way through the model's states up to DONE */
static int check_stages(void)
{
    for (unsigned i = 1; i <= S_COMPLETE; i++)
        if (source[i].stage < source[i - 1].stage) {
            printf("model: %s comes after %s: enum stage has them in another order\n",
                   source[i].name, source[i - 1].name);
            return 1;
        }
    return 0;
}

int names_check(void)
{
    int wrong = check_states("source", source, S_STATES) + check_states("dest", dest, D_STATES) +
                check_states("way out", way_out, OUT_STATES);

    for (unsigned t = FF_MSG_HELLO; t <= FF_MSG_LAST; t++)
        if (!strcmp(ff_msg_name(t), "unknown message")) {
            printf("model: message %u has no name\n", t);
            wrong++;
        }
    return wrong + check_stages();
}
