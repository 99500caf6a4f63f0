/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * guest_port.c - the virtio-serial port on which a guest asks for a fork, or a visit
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      lines in, lines out; docs/guest.md has the protocol. Reading and writing is up to
 *              the caller, whose socket it is.
 * Limits       a line that does not fit is refused once and skipped up to its end.
 */
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "guest_port.h"

char *guest_port_room(struct guest_input *in, size_t *room)
{
    *room = sizeof(in->line) - in->n;
    return in->line + in->n;
}

void guest_port_drop_unfinished(struct guest_input *in)
{
    while (in->n && in->line[in->n - 1] != '\n')
        in->n--;
}

/* 0..@max, all digits; -1: it is not */
static long take_number(const char *s, long max)
{
    long v = 0;

    if (!*s)
        return -1;
    for (; *s; s++) {
        if (!isdigit((unsigned char)*s) || (v = 10 * v + (*s - '0')) > max)
            return -1;
    }
    return v;
}

bool guest_port_is_word(const char *s)
{
    size_t n = strlen(s);

    return n >= 1 && n <= GUEST_WORD_MAX &&
           strspn(s, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz._-") == n;
}

/* FORK NUMBER */
static bool is_self(const char *s)
{
    size_t n = strcspn(s, " ");

    return n && s[n] == ' ' && take_number(s + n + 1, INT_MAX) > 0;
}

/* [WORD] of @verb */
static int request_word(const char *verb, const char *rest, struct guest_request *out, struct ff_error *why)
{
    if (rest && !guest_port_is_word(rest))
        return ff_error_set(why, EPROTO,
                            "guest: %s: word %.40s (permitted: 1..%d letters, digits and . _ -)", verb, rest,
                            GUEST_WORD_MAX);
    snprintf(out->word, sizeof(out->word), "%s", rest ? rest : "");
    return 1;
}

static int parse_request(char *line, unsigned max_children, struct guest_request *out,
                         struct ff_error *why)
{
    static const char *const verbs[] = {"fork", "link", "ready",
                                        "exit", "join", "joined", "visit", "return"};
    char *rest = line, *word = strsep(&rest, " ");
    size_t verb = 0;
    long v;

    while (verb < sizeof(verbs) / sizeof(verbs[0]) && strcmp(word, verbs[verb]))
        verb++;
    *out = (struct guest_request){.verb = (enum guest_verb)verb};
    switch (verb) {
    case GUEST_FORK:
        word = rest ? strsep(&rest, " ") : "";
        v = take_number(word, (long)max_children);
        if (v < 1)
            return ff_error_set(why, EPROTO, "guest: fork: %.20s children (permitted: 1..%u)", word,
                          max_children);
        out->count = (unsigned)v;
        snprintf(out->user, sizeof(out->user), "%s", rest ? rest : "");
        return 1;
    case GUEST_JOIN:
    case GUEST_RETURN:
        return request_word(verbs[verb], rest, out, why);
    case GUEST_VISIT:
        word = rest ? strsep(&rest, " ") : "";
        if (!guest_port_is_word(word))
            return ff_error_set(why, EPROTO,
                                "guest: visit: alias %.40s (permitted: 1..%d letters, digits and . _ -)",
                                word, GUEST_WORD_MAX);
        snprintf(out->alias, sizeof(out->alias), "%s", word);
        return request_word(verbs[verb], rest, out, why);
    case GUEST_EXIT:
        word = rest ? strsep(&rest, " ") : "";
        v = take_number(word, 255);
        if (v < 0)
            return ff_error_set(why, EPROTO, "guest: exit: code %.20s (permitted: 0..255)", word);
        out->code = (int)v;
        /* fall through */
    case GUEST_LINK:
    case GUEST_READY:
        if (rest && !is_self(rest))
            return ff_error_set(why, EPROTO, "guest: %s: of %.40s (permitted: FORK NUMBER, or none)",
                                verbs[verb], rest);
        snprintf(out->user, sizeof(out->user), "%s", rest ? rest : "");
        return 1;
    case GUEST_JOINED:
        if (!rest)
            return 1;
        return ff_error_set(why, EPROTO, "guest: %s: takes no word (%.20s)", word, rest);
    default:
        return ff_error_set(why, EPROTO,
                      "guest: no such request (permitted: fork, link, ready, exit, "
                      "join, joined, visit, return)");
    }
}

int guest_port_take(struct guest_input *in, size_t got, unsigned max_children,
                     struct guest_request *out, struct ff_error *why)
{
    char line[GUEST_LINE_MAX];

    in->n += got;
    char *end = memchr(in->line, '\n', in->n);
    if (!end) {
        if (in->n < sizeof(in->line))
            return 0;
        in->n = 1; /* no verb begins so: the line's end is refused, too */
        in->line[0] = '\r';
        return ff_error_set(why, EPROTO, "guest: a line of more than %d bytes", GUEST_LINE_MAX);
    }
    size_t len = (size_t)(end - in->line);
    memcpy(line, in->line, len);
    line[len] = '\0';
    in->n -= len + 1;
    memmove(in->line, end + 1, in->n);
    for (size_t i = 0; i < len; i++)
        if (iscntrl((unsigned char)line[i]))
            return ff_error_set(why, EPROTO, "guest: control character %#x in a line",
                          (unsigned char)line[i]);
    return parse_request(line, max_children, out, why);
}

char *guest_port_forked(const char *message)
{
    return xprintf("forked\n%s", message);
}

char *guest_port_failed(const char *reason)
{
    char *s = xprintf("failed %s\n", *reason ? reason : "no reason given");

    for (char *p = s; p[1]; p++)
        if (iscntrl((unsigned char)*p))
            *p = ' ';
    return s;
}

char *guest_port_failed_word(const char *word, const char *reason)
{
    FF_AUTO_FREE char *text = xprintf("%s%s%s", word, *word ? " " : "", reason);

    return guest_port_failed(text);
}

static char *with_word(const char *answer, const char *word)
{
    return xprintf("%s%s%s\n", answer, *word ? " " : "", word);
}

char *guest_port_joining(const char *word)
{
    return with_word("joining", word);
}

char *guest_port_exited(unsigned child, int code)
{
    return xprintf("exited %u %d\n", child, code);
}

char *guest_port_joined(void)
{
    return xstrdup("joined\n");
}

char *guest_port_visiting(const char *word)
{
    return with_word("visiting", word);
}

char *guest_port_home(const char *word)
{
    return with_word("home", word);
}

int guest_port_connect(const char *path, const char *option, struct ff_error *why)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};

    if (strlen(path) >= sizeof(a.sun_path))
        return ff_error_set(why, ENAMETOOLONG, "%s %s: the name is too long", option, path);
    strcpy(a.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && !connect(fd, (struct sockaddr *)&a, sizeof(a)))
        return fd;
    int code = errno;
    if (fd >= 0)
        close(fd);
    return ff_error_set(why, code, "%s %s: %s: want the socket of the parent's port " GUEST_CHANNEL, option, path,
                        strerror(code));
}
