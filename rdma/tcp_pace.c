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
 * States       FREE  what does the link carry? The window is doubled while the rate grows by
 *                    GROWS; when it has not for some looks, the rate is known.
 *              HELD  window = gain * rate * shortest round trip + SPARE. Since that is more
 *                    than the link holds, a link that gets faster shows it. The gain comes down
 *                    from GAIN_FIRST to GAIN while that costs nothing.
 *                    Slower than it was by TOO_SLOW: the window is too small (a host that is slow
 *                    to answer looks like a longer link), so it grows; when GAIN_MAX was no help,
 *                    FREE without a window:
 *                      no faster without a limit: the link is slower now: HELD with its new rate
 *                      faster: the hosts are the limit and not the link: FREE for longer
 *
 *              Who has nothing to ask for, since its relay has nothing new, learns nothing of the
 *              link: a look with such a pause counts only if it was faster than all before.
 *
 * Threads      the queue's own.
 * Limits       A look lasts LOOK_NS (FIRST_LOOK_NS) or two round trips. A rate is what prefill
 *              and faults receive together: faults take what they take of the link, and that is
 *              not a window that is too small. Other traffic is not known of.
 *              RECEIVE_BUF: what may come while the reader installs 2 MiB. Data that nobody reads
 *              does not close a window that is smaller than the free space behind it.
 * Sources      Little's law; BBR (Cardwell et al. 2016) for gain, rate and round trip, and what
 *              is limited by its application. tcp(7);
 *              socket(7). Autotuning would raise the clamp again: SO_BUF_LOCK (Linux 5.14).
 *              SO_RCVLOWAT makes room up to half of tcp_rmem, where SO_RCVBUF ends at rmem_max.
 */
#include <linux/socket.h>
#include <linux/tcp.h>
#include <limits.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include "cleanup.h"
#include "tcp_pace.h"
#include "tcp_socket.h"

#define LOOK_NS 5000000u
#define FIRST_LOOK_NS 2000000u
#define FIRST_WINDOW (64u << 10)
#define WINDOW_MAX (64u << 20)
#define GROWS 1.25
#define FREE_LOOKS 2u     /* at first */
#define AGAIN_LOOKS 10u   /* after a window that was too small */
#define FREE_LOOKS_MAX 2000u
#define GAIN 1.5
#define GAIN_FIRST 3.0
#define GAIN_STEP 1.4
#define GAIN_MAX 6.0
#define TOO_SLOW 0.9
#define LOW_LOOKS 4u      /* one or two are a busy host */
#define SETTLE_LOOKS 2u
#define GOOD_LOOKS 20u
#define SPARE (12u << 10) /* packets come in bursts */
#define FASTER 1.1
#define RISES 1.05
#define IDLE_SHARE 8u     /* so much of a look, and it tells only what the link carries at least */
#define RECEIVE_BUF (3 << 20)

void tcp_pace_init(struct pace *p)
{
    *p = (struct pace){.free_looks = FREE_LOOKS, .window = FIRST_WINDOW};
}

static void release(struct pace *p, unsigned looks)
{
    p->held = false;
    p->window = 0;
    p->top = p->sum = 0;
    p->flat = 0;
    p->free_looks = FF_MIN(looks, FREE_LOOKS_MAX);
}

static void hold_rate(struct pace *p, double rate)
{
    p->held = true;
    p->best = rate;
    p->gain = GAIN_FIRST;
    p->settled = false;
    p->rise = 0;
    p->low = p->good = 0;
    p->sum = 0;
}

static void look_free(struct pace *p, double rate)
{
    if (rate > p->top * GROWS) {
        p->top = rate;
        p->flat = 0;
        p->sum = 0;
        p->window = p->window < WINDOW_MAX ? p->window * 2 : 0;
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
        hold_rate(p, mean);
    }
}

static void look_held(struct pace *p, double rate)
{
    if (rate > p->best * RISES) {
        if (p->rise > 0) /* not what was late and then came at once */
            p->best = FF_MAX(p->best, FF_MIN(p->rise, rate));
        p->rise = rate;
        p->low = p->good = 0;
        p->sum = 0;
        return;
    }
    p->rise = 0;
    if (rate > p->best)
        p->best += (rate - p->best) / 4;
    if (rate >= p->best * TOO_SLOW) {
        p->low = 0;
        p->sum = 0;
        if (++p->good % (p->settled ? GOOD_LOOKS : SETTLE_LOOKS) == 0)
            p->gain = FF_MAX(p->gain / GAIN_STEP, GAIN);
        p->settled |= p->gain == GAIN;
        if (p->good >= 10 * GOOD_LOOKS) {
            p->free_looks = FREE_LOOKS;
            hold_rate(p, p->best); /* once a second: would it be faster? */
        }
        return;
    }
    p->good = 0;
    p->sum += rate;
    if (++p->low < LOW_LOOKS)
        return;
    p->settled = true;
    if (p->gain < GAIN_MAX) {
        p->gain *= GAIN_STEP;
    } else {
        p->held_rate = p->sum / p->low;
        release(p, FF_MAX(p->free_looks, AGAIN_LOOKS));
    }
    p->low = 0;
    p->sum = 0;
}

uint32_t tcp_pace_look(struct pace *p, uint64_t bytes, uint64_t ns, uint32_t min_rtt_us, bool idle)
{
    double rate = (double)bytes / (double)ns;

    if (idle && rate <= (p->held ? p->best * RISES : p->top * GROWS))
        bytes = 0, p->rise = 0;
    if (bytes && p->held)
        look_held(p, rate);
    else if (bytes) /* else little was asked for, or nothing but zeros: nothing is learned */
        look_free(p, rate);
    if (!p->held)
        return p->window;
    double window = p->gain * p->best * min_rtt_us * 1000 + SPARE;
    return window < WINDOW_MAX ? (uint32_t)window : 0;
}

/* --- the socket --- */

static bool get_info(int fd, struct tcp_info *info)
{
    socklen_t len = sizeof(*info);

    memset(info, 0, sizeof(*info));
    return !getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &len);
}

static uint32_t min_rtt(const struct tcp_info *info)
{
    return info->tcpi_min_rtt == UINT32_MAX ? 0 : info->tcpi_min_rtt;
}

uint32_t tcp_rtt_us(int fd)
{
    struct tcp_info info;

    return get_info(fd, &info) ? min_rtt(&info) : 0;
}

/* What both connections have received; false: it cannot be known */
static bool take_pool(const struct tcp_pace *t, int fd, uint64_t *bytes, uint32_t *min_rtt_us)
{
    struct tcp_info info;

    if (!get_info(fd, &info) || !min_rtt(&info))
        return false;
    *min_rtt_us = min_rtt(&info);
    *bytes = info.tcpi_bytes_received;
    if (t->beside_fd >= 0 && get_info(t->beside_fd, &info))
        *bytes += info.tcpi_bytes_received;
    return true;
}

/* The window is ours: the kernel does not raise it, and a reader who has something else to do for
 * a while does not close it */
static void take_window(int fd)
{
    int lock = SOCK_RCVBUF_LOCK, bytes = RECEIVE_BUF, one = 1;

    setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof(bytes)); /* makes room for as much */
    setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof(one));
    setsockopt(fd, SOL_SOCKET, SO_BUF_LOCK, &lock, sizeof(lock));
}

static void set_window(struct tcp_pace *t, int fd, uint32_t window)
{
    int clamp = window ? (int)window : INT_MAX, none = 0;

    if (window && !t->window)
        take_window(fd);
    if (window != t->window)
        setsockopt(fd, IPPROTO_TCP, TCP_WINDOW_CLAMP, &clamp, sizeof(clamp));
    if (!window && t->window)
        setsockopt(fd, SOL_SOCKET, SO_BUF_LOCK, &none, sizeof(none));
    t->window = window;
}

void tcp_pace_start(struct tcp_pace *t, int fd, int beside_fd)
{
    uint32_t min_rtt_us;

    if (t->on || tcp_is_local(fd))
        return;
    t->beside_fd = beside_fd;
    if (!take_pool(t, fd, &t->last_bytes, &min_rtt_us))
        return;
    tcp_pace_init(&t->pace);
    t->on = true;
    t->last_ns = ff_now_ns();
    t->next_ns = t->last_ns + FIRST_LOOK_NS;
    set_window(t, fd, t->pace.window);
}

void tcp_pace_turn(struct tcp_pace *t, int fd, uint64_t now_ns)
{
    uint64_t bytes;
    uint32_t min_rtt_us;

    if (!t->on || now_ns < t->next_ns || !take_pool(t, fd, &bytes, &min_rtt_us))
        return;
    uint64_t now = ff_now_ns(), took = now - t->last_ns;
    bool idle = (t->idle_ns + (t->idle_from ? now - t->idle_from : 0)) * IDLE_SHARE > took;
    set_window(t, fd, tcp_pace_look(&t->pace, bytes - t->last_bytes, took, min_rtt_us, idle));
    t->idle_ns = 0;
    t->idle_from = t->idle_from ? now : 0;
    t->last_ns = now;
    t->last_bytes = bytes;
    uint64_t look_ns = t->pace.settled ? LOOK_NS : FIRST_LOOK_NS;
    t->next_ns = now + FF_MAX(look_ns, 2000ull * min_rtt_us);
}

void tcp_pace_asks(struct tcp_pace *t, bool any)
{
    uint64_t now = ff_now_ns();

    if (any && t->idle_from)
        t->idle_ns += now - t->idle_from;
    t->idle_from = any ? 0 : now;
}
