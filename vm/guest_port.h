/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * guest_port.h - the virtio-serial port on which a guest asks for a fork, or a visit (docs/guest.md)
 */
#ifndef FF_VM_GUEST_PORT_H
#define FF_VM_GUEST_PORT_H

#include <stdbool.h>
#include <stddef.h>

#include "error.h"
#include "strv.h"

#define GUEST_CHANNEL "org.farfork.0"
#define GUEST_LINE_MAX 4096 /* bytes of a line, its newline included */
#define GUEST_WORD_MAX 32   /* bytes of the word of a request, which its answer begins with; of an alias, too */

enum guest_verb {
    GUEST_FORK,   /* fork N [USER DATA]: fork this machine */
    GUEST_LINK,   /* link [SELF]: NICs have their new addresses, their links may go up */
    GUEST_READY,  /* ready [SELF]: all of the identity is set, user space goes on */
    GUEST_EXIT,   /* exit CODE [SELF]: this child has done its work, and may be ended */
    GUEST_JOIN,   /* join [WORD]: say which children exit, until all have */
    GUEST_JOINED, /* joined: all of that has been heard */
    GUEST_VISIT,  /* visit ALIAS [WORD]: let this machine visit that host */
    GUEST_RETURN, /* return [WORD]: take it home */
};

struct guest_request {
    enum guest_verb verb;
    unsigned count;                /* FORK */
    int code;                      /* EXIT: 0..255 */
    char user[GUEST_LINE_MAX];     /* FORK: "" if none; LINK, READY, EXIT: FORK NUMBER, who says so, or "" */
    char word[GUEST_WORD_MAX + 1]; /* JOIN, VISIT, RETURN: likewise */
    char alias[GUEST_WORD_MAX + 1]; /* VISIT */
};

/* What has come, and is no whole line yet. {0} at the start */
struct guest_input {
    char line[GUEST_LINE_MAX];
    size_t n;
};

/**
 * guest_port_room() - where to read to next, and how much
 * guest_port_take() - after @got bytes were read there: call it until it does not return 1
 * @max_children: of a fork
 *
 * The guest is not trusted: here, and here alone, its words are checked.
 *
 * Return: 1: *@out is a request; 0: no whole line is left; -EPROTO: a line that is none, with the
 *         reason, which may be sent as guest_port_failed(); the next call goes on behind it
 */
char *guest_port_room(struct guest_input *in, size_t *room);
void guest_port_drop_unfinished(struct guest_input *in); /* another port follows: a line that has not ended never will */
int guest_port_take(struct guest_input *in, size_t got, unsigned max_children,
                     struct guest_request *out, struct ff_error *why);

/* Answers, to be freed. @message is that of identity_message() */
char *guest_port_forked(const char *message);
char *guest_port_failed(const char *reason); /* of a fork; newlines become spaces */
char *guest_port_failed_word(const char *word,
                             const char *reason); /* of a request with that word, or "" */
char *guest_port_joining(const char *word); /* of a join; "": it had none */
char *guest_port_exited(unsigned number, int code);
char *guest_port_joined(void);
char *guest_port_visiting(const char *word); /* it runs there; it is home again */
char *guest_port_home(const char *word);

bool guest_port_is_word(const char *s); /* one that a request may have */

/* Connect to the host's end of a port, the socket @path; the descriptor, or -errno. @option, in messages,
 * has named it */
int guest_port_connect(const char *path, const char *option, struct ff_error *why);

#endif
