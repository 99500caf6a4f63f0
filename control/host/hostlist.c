/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * hostlist.c - which hosts, from arguments, files and batch systems
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      hosts from arguments, from files, and from what a batch system says in the
 *              environment. A name goes to a launcher, so what may stand in it is limited, and its
 *              first character is no dash.
 */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hostlist.h"

#define NODES_MAX 4096
#define SLOTS_MAX 100000

/* What may stand in a host name or an address; the first one is no dash: it goes to a launcher */
static bool name_valid(const char *s)
{
    if (!isalnum((unsigned char)*s) && *s != '_' && *s != ':' && *s != '[')
        return false;
    for (; *s; s++)
        if (!isalnum((unsigned char)*s) && !strchr("._-@:%[]", *s))
            return false;
    return true;
}

/* Without user and brackets: what can be connected to */
static char *plain_address(const char *host)
{
    const char *at = strrchr(host, '@');
    char *a = xstrdup(at ? at + 1 : host);
    size_t len = strlen(a);

    if (len > 1 && a[0] == '[' && a[len - 1] == ']') {
        memmove(a, a + 1, len - 2);
        a[len - 2] = '\0';
    }
    return a;
}

/* Where ":SLOTS" of @spec begins, or its end */
static const char *slots_at(const char *spec)
{
    const char *bracket = strrchr(spec, ']');
    const char *colon = strchr(bracket ? bracket : spec, ':');

    if (colon && !bracket && strchr(colon + 1, ':')) /* an IPv6 address without brackets */
        return spec + strlen(spec);
    return colon ? colon : spec + strlen(spec);
}

static int parse_slots(const char *text, unsigned *slots)
{
    char *end;

    if (!isdigit((unsigned char)*text))
        return -EINVAL;
    unsigned long n = strtoul(text, &end, 10);
    if (*end || n < 1 || n > SLOTS_MAX)
        return -EINVAL;
    *slots = (unsigned)n;
    return 0;
}

static int add(struct hostlist *l, const char *host, const char *address, unsigned slots,
               struct ff_error *why)
{
    for (size_t i = 0; i < l->n; i++)
        if (!strcmp(l->v[i].host, host)) {
            struct node *n = &l->v[i];
            n->slots = n->slots && slots ? n->slots + slots : SLOTS_ANY;
            return 0;
        }
    if (l->n == NODES_MAX)
        return ff_error_set(why, E2BIG, "hosts: more than %d", NODES_MAX);
    struct node *v = realloc(l->v, (l->n + 1) * sizeof(*v));
    if (!v)
        return ff_error_set(why, ENOMEM, "hosts: no memory");
    l->v = v;
    v[l->n++] = (struct node){.host = xstrdup(host),
                              .address = plain_address(address ? address : host),
                              .address_given = address != NULL, .slots = slots};
    return 0;
}

int hostlist_add(struct hostlist *l, const char *spec, struct ff_error *why)
{
    const char *colon = slots_at(spec);
    FF_AUTO_FREE char *host = xprintf("%.*s", (int)(colon - spec), spec);
    char *address = strchr(host, '=');
    unsigned slots = SLOTS_ANY;

    if (*colon && parse_slots(colon + 1, &slots))
        return ff_error_set(why, EINVAL,
                            "host \"%s\": \"%s\" is no number of children from 1 to %d: "
                            "want HOST[=ADDRESS][:SLOTS], an IPv6 address in brackets",
                            spec, colon + 1, SLOTS_MAX);
    if (address)
        *address++ = '\0';
    if (!name_valid(host) || (address && !name_valid(address)))
        return ff_error_set(why, EINVAL,
                            "host \"%s\": want HOST[=ADDRESS][:SLOTS], of letters, digits "
                            "and . _ - @ : %% [ ]",
                            spec);
    return add(l, host, address, slots, why);
}

int hostlist_read_file(struct hostlist *l, const char *path, bool count_slots, struct ff_error *why)
{
    FILE *f = fopen(path, "re");
    char *line = NULL;
    size_t room = 0, before = l->n;
    int rc = 0;

    if (!f)
        return ff_error_set(why, errno, "host file %s: %s", path, strerror(errno));
    while (!rc && getline(&line, &room, f) > 0) {
        line[strcspn(line, "#\n")] = '\0';
        char *save = NULL;
        char *w = strtok_r(line, " \t\r", &save);
        for (; w && !rc; w = strtok_r(NULL, " \t\r", &save)) {
            FF_AUTO_FREE char *counted =
                count_slots && !*slots_at(w) ? xprintf("%s:1", w) : xstrdup(w);
            rc = hostlist_add(l, counted, why);
        }
    }
    free(line);
    fclose(f);
    if (!rc && l->n == before)
        return ff_error_set(why, EINVAL, "host file %s: names no host", path);
    return rc;
}

/* --- SLURM --- */

static int bad_list(const char *list, struct ff_error *why)
{
    return ff_error_set(why, EINVAL, "node list \"%s\": want names like node[01-03,7],other", list);
}

/* One item with all its brackets: @done is expanded, @rest is not yet */
static int expand(struct hostlist *l, const char *done, const char *rest, const char *whole,
                  struct ff_error *why)
{
    const char *open = strchr(rest, '[');

    if (!open) {
        FF_AUTO_FREE char *name = xprintf("%s%s", done, rest);
        return name_valid(name) && !strpbrk(name, "[]:") ? add(l, name, NULL, SLOTS_ANY, why)
                                                         : bad_list(whole, why);
    }
    const char *close = strchr(open, ']'), *s = open + 1;
    if (!close)
        return bad_list(whole, why);
    for (;;) {
        char *end;
        unsigned long from = strtoul(s, &end, 10);
        int width = (int)(end - s);
        if (!isdigit((unsigned char)*s) || width > 9)
            return bad_list(whole, why);
        unsigned long to = from;
        if (*end == '-') {
            const char *second = end + 1;
            to = strtoul(second, &end, 10);
            if (!isdigit((unsigned char)*second) || end - second > 9 || to < from ||
                to - from >= NODES_MAX)
                return bad_list(whole, why);
        }
        for (unsigned long i = from; i <= to; i++) {
            FF_AUTO_FREE char *more =
                xprintf("%s%.*s%0*lu", done, (int)(open - rest), rest, width, i);
            int rc = expand(l, more, close + 1, whole, why);
            if (rc)
                return rc;
        }
        if (end == close)
            return 0;
        if (*end != ',')
            return bad_list(whole, why);
        s = end + 1;
    }
}

int hostlist_add_slurm(struct hostlist *l, const char *list, struct ff_error *why)
{
    const char *s = list;
    int rc = 0, depth = 0;

    while (!rc) {
        const char *end = s;
        for (depth = 0; *end && (*end != ',' || depth); end++)
            depth += (*end == '[') - (*end == ']');
        FF_AUTO_FREE char *item = xprintf("%.*s", (int)(end - s), s);
        rc = *item ? expand(l, "", item, list, why) : bad_list(list, why);
        if (!*end)
            break;
        s = end + 1;
    }
    return rc;
}

/* --- what is not named --- */

/* Scripts of a job's own, as TaskProlog, leave the variable to its tasks */
bool hostlist_in_prolog(void)
{
    const char *context = getenv("SLURM_SCRIPT_CONTEXT"), *of = context ? strrchr(context, '_') : NULL;

    return of && (!strcmp(of, "_slurmd") || !strcmp(of, "_slurmctld"));
}

int hostlist_from_environment(struct hostlist *l, struct ff_error *why)
{
    const char *slurm = getenv("SLURM_JOB_NODELIST"), *pbs = getenv("PBS_NODEFILE");

    if (slurm && *slurm && !hostlist_in_prolog())
        return hostlist_add_slurm(l, slurm, why);
    if (pbs && *pbs)
        return hostlist_read_file(l, pbs, true, why);
    return add(l, "localhost", NULL, SLOTS_ANY, why);
}

bool hostlist_is_here(const struct node *n)
{
    char own[256] = "";

    if (!strcmp(n->host, "localhost") || !strcmp(n->host, "127.0.0.1") || !strcmp(n->host, "[::1]"))
        return true;
    if (gethostname(own, sizeof(own) - 1))
        return false;
    size_t len = strcspn(own, ".");
    return !strcmp(n->host, own) || (strlen(n->host) == len && !strncmp(n->host, own, len));
}

char *hostlist_spec(const struct node *n)
{
    return n->address_given ? xprintf(strchr(n->address, ':') ? "%s=[%s]" : "%s=%s", n->host, n->address)
                            : xstrdup(n->host);
}

void hostlist_drop(struct hostlist *l, size_t i)
{
    free(l->v[i].host);
    free(l->v[i].address);
    memmove(l->v + i, l->v + i + 1, (--l->n - i) * sizeof(*l->v));
}

void hostlist_free(struct hostlist *l)
{
    while (l->n)
        hostlist_drop(l, l->n - 1);
    free(l->v);
    *l = (struct hostlist){0};
}
