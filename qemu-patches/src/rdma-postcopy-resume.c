/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * rdma-postcopy migration: a link that broke after GO, and the next one
 *
 *   postcopy-active -> postcopy-paused -> postcopy-recover -> postcopy-active
 *
 * The thread of each side waits for the other in rp_recover(): by itself for
 * reconnect=SECONDS, and then until somebody asks by `migrate-recover` (the
 * destination) or by `migrate` with `resume` (the source).  After
 * `migrate-pause` it waits for that at once.  The destination goes on
 * listening when its time is over, so that `migrate` with `resume` is enough.
 *
 * A destination whose process has ended cannot be asked.  Whoever knows that it
 * never ran the guest says so by `x-rdma-postcopy-not-started`.  With
 * fallback=go the source takes its guest back by `x-rdma-postcopy-take-back`,
 * also from one that did.
 *
 * The thread takes no BQL: whoever holds that may wait for a missing page.
 * The commands that may come out of band do not have it either: rp.lock keeps
 * the handles for them.
 */
#include "qemu/osdep.h"
#include "migration/migration.h"
#include "qapi/error.h"
#include "qapi/qapi-commands-migration.h"
#include "qemu/cutils.h"
#include "qemu/error-report.h"
#include <farfork-return.h>
#include "rdma-postcopy.h"
#include "rdma-postcopy-state.h"

/* So long `migrate` with `resume` stays in postcopy-recover-setup */
#define BY_HAND_MS 15000

static void __attribute__((constructor)) init_waiting(void)
{
    qemu_mutex_init(&rp.lock);
    qemu_sem_init(&rp.out.again, 0);
    qemu_sem_init(&rp.in.again, 0);
}

/* With rp.lock: what was said before counts no more */
static void forget_take_back(void)
{
    rp.takes_back = false;
    rp.take_back = RDMA_POSTCOPY_TAKE_BACK_NONE;
}

void rp_resume_reset(struct rp_wait *w, const struct ff_address *a)
{
    QEMU_LOCK_GUARD(&rp.lock);

    w->reconnect_ms = ff_address_reconnect_ms(a);
    w->held = w->asked = w->over = false;
    qatomic_set(&w->recovers, false);
    qatomic_set(&w->reconnects, false);
    if (w == &rp.out) {
        rp.not_started[0] = '\0';
        forget_take_back();
    }
}

void rp_set_reason(const struct rp_wait *w, const char *why)
{
    MigrationState *s = migrate_get_current();
    QEMU_LOCK_GUARD(&s->error_mutex);

    if (w == &rp.in && (rp.source || (!why && !rp.in.says))) {
        return; /* what is said is the source's, or why it failed */
    }
    rp.in.says = w == &rp.in && why;
    error_free(s->error);
    s->error = NULL;
    if (why) {
        error_setg(&s->error, "%s", why);
    }
}

static int64_t now_ms(void)
{
    return qemu_clock_get_ms(QEMU_CLOCK_REALTIME);
}

/* What query-migrate and the log say while it waits; once for each reason */
static void say(const struct rp_wait *w, char **said, char *text)
{
    if (g_strcmp0(*said, text)) {
        rp_set_reason(w, text);
        error_report("%s", text);
    }
    g_free(*said);
    *said = text;
}

/* Whether somebody has asked since the last time, and not taken it back */
static bool take_wish(struct rp_wait *w, bool *held)
{
    QEMU_LOCK_GUARD(&rp.lock);
    bool asked = w->asked;

    w->asked = false;
    *held = w->held;
    if (w == &rp.out && rp.next_to) {
        ff_address_free(rp.to);
        rp.to = g_steal_pointer(&rp.next_to);
    }
    return asked;
}

/* Source: whether somebody has said since the link broke that the destination is lost */
static bool is_lost(bool *never_ran)
{
    QEMU_LOCK_GUARD(&rp.lock);

    *never_ran = rp.not_started[0];
    return rp.not_started[0] || rp.takes_back;
}

/*
 * -ETIME: it never ran the guest; -EKEYREVOKED: that may run here, as it was at
 * GO; -EINTR: another command has come; -ECANCELED; else the guest is not here
 */
static int get_guest_back(bool never_ran, struct ff_error *err)
{
    int rc = never_ran ? ff_source_not_started(rp.source, rp.not_started, err)
                       : ff_source_take_back(rp.source, err);

    if (rc != -EINTR) {
        QEMU_LOCK_GUARD(&rp.lock);
        rp.takes_back = false;
        if (never_ran) {
            rp.not_started[0] = '\0';
        }
    }
    return rc ? rc : -EKEYREVOKED;
}

/* The guest was not taken back, and query-migrate has the reason. Unless somebody has asked again, or whoever had
 * asked has taken it back; that the fence has failed stays true */
static void set_take_back(int rc)
{
    QEMU_LOCK_GUARD(&rp.lock);

    if (!rp.takes_back &&
        (rc == -EPERM || rp.take_back == RDMA_POSTCOPY_TAKE_BACK_WAITING)) {
        rp.take_back = rc == -EPERM ? RDMA_POSTCOPY_TAKE_BACK_FENCE_FAILED
                     : rc == -EBUSY ? RDMA_POSTCOPY_TAKE_BACK_GIVEN_UP
                                    : RDMA_POSTCOPY_TAKE_BACK_FAILED;
    }
}

/* No other attempt will change that */
static bool ends_wait(int rc)
{
    return !rc || rc == -ETIME || rc == -ESTALE || rc == -ECANCELED || rc == -EKEYREVOKED;
}

static void set_paused(MigrationStatus *state)
{
    static const MigrationStatus from[] = {
        MIGRATION_STATUS_ACTIVE, MIGRATION_STATUS_POSTCOPY_ACTIVE,
        MIGRATION_STATUS_POSTCOPY_RECOVER_SETUP,
    };

    for (size_t i = 0; i < ARRAY_SIZE(from); i++) {
        migrate_set_state(state, from[i], MIGRATION_STATUS_POSTCOPY_PAUSED);
    }
}

/* The next wait may begin as soon as it says postcopy-active */
static void end_wait(struct rp_wait *w, MigrationStatus *state)
{
    qatomic_set(&w->recovers, false);
    qatomic_set(&w->reconnects, false);
    migrate_set_state(state, MIGRATION_STATUS_POSTCOPY_PAUSED,
                      MIGRATION_STATUS_POSTCOPY_RECOVER);
    migrate_set_state(state, MIGRATION_STATUS_POSTCOPY_RECOVER_SETUP,
                      MIGRATION_STATUS_POSTCOPY_RECOVER);
    rp_set_reason(w, NULL);
    migrate_set_state(state, MIGRATION_STATUS_POSTCOPY_RECOVER,
                      MIGRATION_STATUS_POSTCOPY_ACTIVE);
}

int rp_recover(const struct rp_side *side, const char *why, struct ff_error *err)
{
    static const char advice[] = "to go on, migrate-recover at the destination, then migrate with "
                                 "resume at the source";
    struct rp_wait *w = side->wait;
    int64_t until = now_ms() + w->reconnect_ms;
    g_autofree char *reason = g_strdup(why), *said = NULL;
    bool asked = false, alone = true, held, never_ran;
    int not_back = 0; /* why the guest is not back, which is still to be said */
    int rc;

    take_wish(w, &held); /* for the link that there was since, or that comes next anyway */
    WITH_QEMU_LOCK_GUARD(&rp.lock) {
        if (w == &rp.out) {
            rp.not_started[0] = '\0';
            forget_take_back();
        }
    }
    qatomic_set(&w->recovers, true);
    for (;;) {
        if (take_wish(w, &held)) {
            until = now_ms() + w->reconnect_ms;
            asked = alone = true;
        }
        if (qatomic_read(&w->over)) {
            rc = -ECANCELED;
            break;
        }
        if (w == &rp.out && is_lost(&never_ran)) {
            qatomic_set(&w->reconnects, false);
            say(w, &said, never_ran
                ? g_strdup_printf("%s; told that the destination never ran the guest", reason)
                : g_strdup_printf("%s; taking the guest back: when the destination's lease has "
                                  "ended, and by the fence", reason));
            set_paused(side->state);
            rc = get_guest_back(never_ran, err);
            if (ends_wait(rc)) {
                break;
            }
            asked = false;
            alone = rc != -EPERM; /* nobody connects any more once the fence was tried */
            if (rc != -EINTR) {
                g_free(reason);
                reason = g_strdup_printf("rdma-postcopy: %s", ff_error_message(err));
                not_back = rc;
            }
            continue;
        }
        int64_t left = until - now_ms();
        bool waits = held || !alone || left <= 0;

        asked &= !held;
        qatomic_set(&w->reconnects, !waits);
        say(w, &said, !waits ? g_strdup_printf("%s; waiting %d s for another link; %s", reason,
                                            w->reconnect_ms / 1000, side->meanwhile)
            : held        ? g_strdup_printf("%s; paused by migrate-pause: %s; %s", reason, advice,
                                            side->meanwhile)
                          : g_strdup_printf("%s; %s; %s", reason, advice, side->meanwhile));
        if (not_back) {
            set_take_back(not_back);
            not_back = 0;
        }
        if (!asked) {
            set_paused(side->state);
        }
        if (held || (waits && !(side->listens && alone))) {
            qemu_sem_wait(&w->again);
            continue;
        }
        bool held_then = w == &rp.out && ff_source_is_held(rp.source);

        rc = side->attempt(waits ? -1 : asked ? MIN(left, BY_HAND_MS) : left, err);
        if (rc == -EINTR) {
            continue;
        }
        if (ends_wait(rc)) {
            break;
        }
        if (held_then) { /* that time is not the network's */
            until = now_ms() + w->reconnect_ms;
        }
        asked = false;
        alone = rc == -ETIMEDOUT;
        if (!alone || !side->listens) { /* that nobody came is no news */
            g_free(reason);
            reason = g_strdup_printf("rdma-postcopy: %s", ff_error_message(err));
        }
    }
    if (!rc) {
        end_wait(w, side->state);
    } else {
        qatomic_set(&w->recovers, false);
        qatomic_set(&w->reconnects, false);
    }
    return rc;
}

/* --- commands --- */

/* Let go of the wait for a peer, or of the link: rp_recover() looks again */
static void wake_source(void)
{
    ff_source_interrupt(rp.source);
    qemu_sem_post(&rp.out.again);
}

bool rdma_postcopy_pause(Error **errp)
{
    QEMU_LOCK_GUARD(&rp.lock);
    bool away = rp_is(&rp.gave_away); /* once: a guest may just come home */

    if (!rp.source && !rp.dest) {
        return false;
    }
    if (!(rp.dest && !away ? &rp.in : &rp.out)->reconnect_ms) {
        error_setg(errp, "rdma-postcopy cannot pause with reconnect=0: nothing could resume it, "
                   "and the guest would be lost");
    } else if (rp.dest && rp_is(&rp.here) && !away) {
        rp.in.held = true;
        ff_dest_interrupt(rp.dest);
        ff_dest_pause(rp.dest);
    } else if (rp.source && away) {
        rp.out.held = true;
        forget_take_back();
        wake_source();
        ff_source_pause(rp.source);
    } else {
        error_setg(errp, "rdma-postcopy can be paused once the guest is the destination's; "
                   "before that, migrate_cancel at the source ends it");
    }
    return true;
}

/* Without rp.lock: a name server may take its time, and the main thread needs that lock, too */
static struct ff_address *look_up(const char *address, Error **errp)
{
    struct ff_address *a = rp_address(address, true, errp);
    struct ff_error *err;

    if (!a) {
        return NULL;
    }
    err = ff_error_new();
    if (ff_address_resolve(a, err)) {
        rp_take_error(errp, err);
        ff_address_free(a);
        return NULL;
    }
    ff_error_free(err);
    return a;
}

bool rdma_postcopy_recover(const char *uri, Error **errp)
{
    MigrationIncomingState *mis = migration_incoming_get_current();
    struct ff_address *a;
    const char *address;
    struct ff_error *err;

    WITH_QEMU_LOCK_GUARD(&rp.lock) {
        if (!rp.dest) {
            return false;
        }
        if (!qatomic_read(&rp.in.recovers)) {
            error_setg(errp, rp.in.reconnect_ms
                       ? "rdma-postcopy is paused for want of memory of this host, not of a link: "
                         "it goes on by itself"
                       : "rdma-postcopy does not resume with reconnect=0");
            return true;
        }
    }
    if (!strstart(uri, "rdma-postcopy:", &address)) {
        error_setg(errp, "this migration goes on by rdma-postcopy:HOST:PORT alone");
        return true;
    }
    a = look_up(address, errp);
    if (!a) {
        return true;
    }
    err = ff_error_new();
    WITH_QEMU_LOCK_GUARD(&rp.lock) {
        if (!rp.dest || !qatomic_read(&rp.in.recovers)) {
            error_setg(errp, "rdma-postcopy: there is another link by now");
            ff_error_free(err);
        } else if (ff_dest_listen(rp.dest, a, err)) {
            rp_take_error(errp, err);
        } else {
            migration_incoming_transport_cleanup(mis);
            rp_publish_address(address);
            rp.in.held = false;
            rp.in.asked = true;
            qemu_sem_post(&rp.in.again);
            ff_error_free(err);
        }
    }
    ff_address_free(a);
    return true;
}

/* With rp.lock: a source waits here for another link to where @uri says */
static bool is_sent_to(const char *uri, Error **errp)
{
    const char *address;

    if (!rp.source || !qatomic_read(&rp.out.recovers)) {
        error_setg(errp, "no rdma-postcopy migration waits here for another link");
        return false;
    }
    if (!strstart(uri, "rdma-postcopy:", &address) ||
        strcspn(address, ",") != strlen(rp.sent_to) || !strstart(address, rp.sent_to, NULL)) {
        error_setg(errp, "this guest was sent to rdma-postcopy:%s, not to %s", rp.sent_to, uri);
        return false;
    }
    return true;
}

/*
 * Whoever says so answers for it.  The address guards against an answer that
 * was meant for another migration.
 */
void qmp_x_rdma_postcopy_not_started(const char *uri, const char *mark, Error **errp)
{
    struct ff_error *err;

    QEMU_LOCK_GUARD(&rp.lock);

    if (!is_sent_to(uri, errp)) {
        return;
    }
    if (ff_source_runs_there(rp.source)) {
        error_setg(errp, "the destination has said that it runs the guest");
        return;
    }
    err = ff_error_new();
    if (ff_source_check_mark(rp.source, mark, err)) {
        rp_take_error(errp, err);
        return;
    }
    ff_error_free(err);
    g_strlcpy(rp.not_started, mark, sizeof(rp.not_started));
    wake_source();
}

/* As with that, the address guards against a command that was meant for another migration */
void qmp_x_rdma_postcopy_take_back(const char *uri, Error **errp)
{
    QEMU_LOCK_GUARD(&rp.lock);

    if (is_sent_to(uri, errp)) {
        rp.takes_back = true;
        rp.take_back = RDMA_POSTCOPY_TAKE_BACK_WAITING;
        wake_source();
    }
}

void rp_set_sent_to(const char *address)
{
    g_free(rp.sent_to);
    rp.sent_to = address ? g_strndup(address, strcspn(address, ",")) : NULL;
}

void rp_resume_by_hand(struct ff_address *a, const char *address, Error **errp)
{
    if (!rp.source) { /* it ended between QEMU's look at its state and here */
        error_setg(errp, "rdma-postcopy: there is nothing to resume any more");
        ff_address_free(a);
        return;
    }
    QEMU_LOCK_GUARD(&rp.lock);
    ff_address_free(rp.next_to);
    rp.next_to = a;
    rp_set_sent_to(address);
    rp.out.held = false;
    forget_take_back();
    rp.out.asked = true;
    wake_source();
}
