/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * rundir.h - BASE/ID/NODE: where one fork has its sockets, logs and state on one host
 */
#ifndef FF_CONTROL_HOST_RUNDIR_H
#define FF_CONTROL_HOST_RUNDIR_H

#include <jansson.h>
#include <sys/types.h>

#include "error.h"
#include "strv.h"

#define STATE_FILE "state.json"
#define HOSTS_FILE "hosts.json"
#define RECORDS_FOLDER ".vmclone" /* in BASE; agents and what they start cannot write to it */

/* $FARFORK_RUNDIR; root: /run/farfork; else $XDG_RUNTIME_DIR/farfork, or /tmp/farfork-UID */
char *rundir_base(void);

/* What outlasts a boot, beside the run directories of @base, where that is the default:
 * /var/lib/farfork of root, $XDG_STATE_HOME/farfork or ~/.local/state/farfork; for any @base
 * $FARFORK_STATEDIR. @base NULL: the default. NULL: nothing. rundir_make_lasting_base() makes it;
 * rundir_make_lasting() makes one there as rundir_make() does; *@out is NULL where nothing can be
 * kept */
char *rundir_lasting_base(const char *base);
char *rundir_make_lasting_base(const char *base);
int rundir_make_lasting(const char *base, const char *id, const char *node, char **out,
                        struct ff_error *why);

/* Letters, digits and . _ - of at most 40 bytes, the first no dot or dash: for an ID or a NODE */
bool rundir_name_valid(const char *name);
char *rundir_name_from(const char *text); /* made from anything */

/* Make it, for this user only; *@out is its path. -EEXIST: a fork of that name is there */
int rundir_make(const char *base, const char *id, const char *node, char **out,
                struct ff_error *why);

/* As rundir_make(), where only vmclone writes: BASE/.vmclone/ID/NODE. No socket has room in it */
int rundir_make_record(const char *base, const char *id, const char *node, char **out,
                       struct ff_error *why);

/* The folder of all of them; -EPERM: somebody else could open it */
int rundir_make_base(const char *base, struct ff_error *why);

/* A folder that nobody else has made, or can put anything into */
bool rundir_is_own(const char *path);

/* Remove it with the files in it, and BASE/ID if that is empty then; @dir is BASE/ID/NODE, and none
 * of the three a symbolic link */
void rundir_remove(const char *dir);

/* Whether a QEMU to which a guest was moved has left that file; NULL, "": there is none to look for.
 * Of its option until-go=: no guest ran in it. The one beside that: one did, and has shut itself down
 * before the move was complete. LEFT_NO only where the kernel says that it is not there */
enum rundir_left { LEFT_NO, LEFT_YES, LEFT_UNKNOWN };
enum rundir_left rundir_was_left(const char *file);
/* What that file says, of which move it is: "": no source has come; NULL: it is not there, or cannot be read */
char *rundir_mark(const char *file);

/* rundir_state.c. The state file is replaced at once or not at all; it says which host wrote it.
 * rundir_reserve_state(): room for texts of so many bytes, also when the folder is full later */
int rundir_reserve_state(const char *dir, size_t bytes, struct ff_error *why);
int rundir_write_state(const char *dir, const json_t *state);
int rundir_sync_state(const char *dir); /* it outlasts a crash of the host */
json_t *rundir_read_state(const char *dir);

/* The name of this host, by which state files say whose they are */
const char *rundir_host(void);

/* Not of another host that has the folder too. It changes the times of start in @state: 0 where the
 * processes are of an earlier boot; START_UNKNOWN, START_ELSEWHERE */
bool rundir_is_of_here(json_t *state);

/* Each fork and node in @base that has a state file of this host, those that vmclone has recorded,
 * then those that outlast a boot and have no run directory any more. "unfinished" of a state is left
 * out where it is not vmclone's own */
void rundir_each(const char *base, const char *id,
                 void (*fn)(void *opaque, const char *dir, json_t *state), void *opaque);

/**
 * rundir_lock() - be the only one of this user that changes what forks have in common
 * @limit_ms: how long to wait for another one; who must not wait: LOCK_SHORT_MS
 * @lock:     for rundir_unlock(); -1: there is no such folder, or it is not this user's
 *
 * Return: 0; -EBUSY: somebody else has it; -EPERM: other users could have it. With the reason
 */
#define LOCK_SHORT_MS 2000
#define LOCK_LIMIT_MS 5000
int rundir_lock(const char *base, int limit_ms, int *lock, struct ff_error *why);
void rundir_unlock(int lock); /* also -1 */

/* flock() of a file or folder, for at most @limit_ms: 0, also where a file system has no locks;
 * -EBUSY: somebody else has it; -errno */
int lock_within(int fd, int limit_ms);

/**
 * rundir_write_hosts() - how to get to hosts of a fork whose run directories are not to be seen
 * here
 * @hosts: an array of objects; an empty one removes what is written
 *
 * Between rundir_lock() and rundir_unlock(): others may do it too.
 * Return: 0, or -errno with the reason.
 */
int rundir_write_hosts(const char *base, const char *id, const json_t *hosts, struct ff_error *why);
json_t *rundir_read_hosts(const char *base, const char *id); /* NULL: there are none, or broken */
json_t *rundir_recorded(const char *base); /* ids of forks that may have some, an array */

/* process_look.c. When a process was started, in ticks since boot: with its pid that names a process once and for
 * all. 0: there is none, it has ended. START_UNKNOWN: it cannot be read. START_ELSEWHERE: the pid is
 * one of another PID namespace, and says nothing here */
#define START_UNKNOWN UINT64_MAX
#define START_ELSEWHERE (UINT64_MAX - 1)
uint64_t process_start_time(pid_t pid);
double process_age_s(pid_t pid); /* since it was started; 0: it has ended, or that cannot be read */

/**
 * process_look() - whether a process has ended
 *
 * Return: PROCESS_GONE only where the kernel says that no process has that pid, or one that has
 *         ended, or was started at another time. What cannot be read is PROCESS_UNKNOWN: the caller
 *         neither takes a guest back, nor removes a file for it
 */
enum process_state { PROCESS_GONE, PROCESS_ALIVE, PROCESS_UNKNOWN }; /* evacuate.c has it as an index */
enum process_state process_look(pid_t pid, uint64_t start);
bool process_is(pid_t pid, uint64_t start); /* PROCESS_ALIVE */

/* Signal it, by a descriptor: its number could be somebody else's a moment later. Then wait for its end,
 * at most @limit_ms */
void process_signal(pid_t pid, uint64_t start, int number, int limit_ms);

/* Of a state file, after rundir_is_of_here(): its agent by "agent"; of one of its children by "pid" */
enum process_state rundir_look(const json_t *o, const char *pid);

#endif
