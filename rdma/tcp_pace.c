/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * tcp_pace.c - how much of prefill may be on the way at once: the receive window
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      on a link that is slower than the hosts, prefill fills whatever queue there is
 *              in front of it, and the replies to faults wait behind: 2 ms at 1 Gbit/s. Who
 *              receives prefill keeps its window (TCP_WINDOW_CLAMP) at what the link needs to be
 *              full and little more. The kernels do the rest: a sender sends when an
 *              acknowledgement comes, no thread of ours is waited for, whatever the congestion
 *              control is. A queue of gain - 1 round trips remains.
 *
 * States       FREE  no limit: what does the link carry? When the rate has not grown by GROWS for
 *                    some looks, it is known.
 *              HELD  window = gain * rate * shortest round trip + SPARE. Since that is more
 *                    than the link holds, a link that gets faster shows it.
 *                    Slower than it was by TOO_SLOW: the window is too small (a host that is slow to
 *                    answer looks like a longer link), so it grows; when GAIN_MAX was no help, FREE:
 *                      no faster without a limit: the link is slower now: HELD with its new rate
 *                      faster: the hosts are the limit and not the link: FREE for longer
 *
 * Threads      the queue's own.
 * Limits       A look lasts LOOK_NS or two round trips. The rate must be known before it is held:
 *              a queue of up to the window that the kernel takes (tcp_rmem) for some 15 ms.
 *              Only one side's packets are counted: other traffic on the same link makes it slower.
 * Sources      Little's law; BBR (Cardwell et al. 2016) for gain, rate and round trip. tcp(7);
 *              autotuning raises the clamp again, so it is set at each look.
 */
#include <linux/tcp.h>
#include <limits.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include "cleanup.h"
#include "tcp_pace.h"
#include "tcp_socket.h"

#define LOOK_NS 5000000u
#define GROWS 1.25
#define FREE_LOOKS 2u     /* at first */
#define AGAIN_LOOKS 10u   /* after a window that was too small */
#define FREE_LOOKS_MAX 2000u
#define GAIN 1.5
#define GAIN_STEP 1.4
#define GAIN_MAX 6.0
#define TOO_SLOW 0.9
#define LOW_LOOKS 4u      /* one or two are a busy host */
#define GOOD_LOOKS 20u
#define SPARE (12u << 10) /* packets come in bursts */
#define FASTER 1.1

void pace_init(struct pace *p)
{
    *p = (struct pace){.free_looks = FREE_LOOKS};
}

static void release(struct pace *p, unsigned looks)
{
    p->held = false;
    p->top = p->sum = 0;
    p->flat = 0;
    p->free_looks = FF_MIN(looks, FREE_LOOKS_MAX);
}

static void hold(struct pace *p, double rate)
{
    p->held = true;
    p->best = rate;
    p->gain = GAIN;
    p->low = p->good = 0;
    p->sum = 0;
}

static void look_free(struct pace *p, double rate)
{
    if (rate > p->top * GROWS) {
        p->top = rate;
        p->flat = 0;
        p->sum = 0;
        return;
    }
    p->sum += rate;
    if (++p->flat < p->free_looks)
        return;
    double mean = p->sum / p->flat;
    if (p->held_rate > 0 && mean > p->held_rate * FASTER) {
        p->held_rate = 0; /* and then it is tried again */
        release(p, p->free_looks * 8);
    } else {
        p->held_rate = 0;
        hold(p, mean);
    }
}

static void look_held(struct pace *p, double rate)
{
    if (rate > p->best)
        p->best += (rate - p->best) / 4;
    if (rate >= p->best * TOO_SLOW) {
        p->low = 0;
        p->sum = 0;
        if (++p->good % GOOD_LOOKS == 0)
            p->gain = FF_MAX(p->gain / GAIN_STEP, GAIN);
        if (p->good >= 10 * GOOD_LOOKS)
            p->free_looks = FREE_LOOKS;
        return;
    }
    p->good = 0;
    p->sum += rate;
    if (++p->low < LOW_LOOKS)
        return;
    if (p->gain < GAIN_MAX) {
        p->gain *= GAIN_STEP;
    } else {
        p->held_rate = p->sum / p->low;
        release(p, FF_MAX(p->free_looks, AGAIN_LOOKS));
    }
    p->low = 0;
    p->sum = 0;
}

uint32_t pace_look(struct pace *p, uint64_t bytes, uint64_t ns, uint32_t min_rtt_us)
{
    double rate = (double)bytes / (double)ns;

    if (p->held)
        look_held(p, rate);
    else
        look_free(p, rate);
    if (!p->held)
        return 0;
    double window = p->gain * p->best * min_rtt_us * 1000 + SPARE;
    return window < INT_MAX / 2 ? (uint32_t)window : 0;
}

/* --- the socket --- */

static bool get_info(int fd, struct tcp_info *info)
{
    socklen_t len = sizeof(*info);

    memset(info, 0, sizeof(*info));
    return !getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &len) && info->tcpi_min_rtt &&
           info->tcpi_min_rtt != UINT32_MAX;
}

void tcp_pace_start(struct tcp_pace *t, int fd)
{
    struct tcp_info info;

    if (t->on || tcp_is_local(fd) || !get_info(fd, &info))
        return;
    pace_init(&t->pace);
    t->on = true;
    t->last_ns = ff_now_ns();
    t->next_ns = t->last_ns + LOOK_NS;
    t->last_bytes = info.tcpi_bytes_received;
}

void tcp_pace_turn(struct tcp_pace *t, int fd, uint64_t now_ns)
{
    struct tcp_info info;

    if (!t->on || now_ns < t->next_ns || !get_info(fd, &info))
        return;
    uint64_t now = ff_now_ns();
    uint32_t window = pace_look(&t->pace, info.tcpi_bytes_received - t->last_bytes,
                                now - t->last_ns, info.tcpi_min_rtt);
    t->last_ns = now;
    t->last_bytes = info.tcpi_bytes_received;
    t->next_ns = now + FF_MAX(LOOK_NS, 2000ull * info.tcpi_min_rtt);
    if (window || t->window) {
        int clamp = window ? (int)window : INT_MAX;
        setsockopt(fd, IPPROTO_TCP, TCP_WINDOW_CLAMP, &clamp, sizeof(clamp));
    }
    t->window = window;
}
