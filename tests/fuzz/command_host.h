/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * command_host.h - the host that command_fuzz.c gives an agent: nothing on it is real
 */
#ifndef FF_TESTS_FUZZ_COMMAND_HOST_H
#define FF_TESTS_FUZZ_COMMAND_HOST_H

#include "agent_state.h"
#include "input.h"

#define FILES "/fuzz"
#define KEY_TEXT "5f3c0e9d6b2a48f1c7e6d5b4a39281706f5e4d3c2b1a09f8e7d6c5b4a3928170"
#define KIDS 32u
#define FIRST_PID 0x40000000 /* beyond all that the kernel gives */
#define FARS 16u
#define SECRETS 16u
#define NUMBERS 8u

struct kid {
    bool ended, reaped;
    int status, exec_status; /* the writing end; -1 */
};

extern struct world {
    struct agent a;
    struct input in;
    bool runs, said_end, image_told, wait_told, library_freed;
    int to_agent, signals;
    unsigned turns, may_spawn; /* once it is detached: those that waited */
    unsigned failing;          /* bits: what of the host fails */
    struct kid kid[KIDS];
    unsigned n_kids;
    int far[FARS]; /* the other ends of its sockets to QEMUs and guests; -1 */
    char *secret[SECRETS];
    json_int_t made[256]; /* numbers that have overlays, and so a child */
    unsigned n_made, ended_told[NUMBERS];
} w;

enum failing { NO_PROCESS = 1, NO_ROOM = 2, NO_SOCKET = 4, NO_CHECK = 8, NO_READER = 16 };

/* What it did is over, with that status of waitpid(2) */
void end_kid(struct kid *k, int status);

#endif
