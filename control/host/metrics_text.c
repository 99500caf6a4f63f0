/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * metrics_text.c - series of metrics, to text and back
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      two formats of one content. They differ in a counter's name: `# TYPE x_total counter`
 *              in text format 0.0.4 is `# TYPE x counter` in OpenMetrics, and either reader loses or
 *              refuses the other's. `# UNIT` and `# EOF` are comments in the former. The unit, where
 *              there is one, is the end of the name: kubevirt_vmi_migration_* are our model.
 * Invariants   1. The last line is `# EOF`: a file that was cut off shows it.
 *              2. What is read back has every bucket of a histogram, and they add up.
 */
#include "metrics_text.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cleanup.h"
#include "xalloc.h"

#define END_LINE "# EOF\n"
#define LABEL_BYTES_MAX 64 /* of a value: a name, never a message */

static const double pauses_s[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                  0.25,  0.5,    1,     2.5,  5,     10};
static const double durations_s[] = {0.1, 0.25, 0.5, 1,   2.5, 5,   10,
                                     30,  60,   120, 300, 600, 1800};
static const double latencies_s[] = {0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001,
                                     0.0025,  0.005,    0.01,    0.025,  0.1,     1};

/* Without the _total of a counter */
static const struct family {
    const char *name, *unit, *help;
    enum metric_type type;
    const double *le; /* of a histogram: METRICS_BUCKETS - 1 */
} families[METRICS] = {
    [METRIC_MIGRATION_STARTED] = {"farfork_migration_started", "", "Moves that were begun.",
                                  METRIC_COUNTER, NULL},
    [METRIC_MIGRATION_SUCCEEDED] = {"farfork_migration_succeeded", "",
                                    "Moves after which the guest runs there with all its memory.",
                                    METRIC_COUNTER, NULL},
    [METRIC_MIGRATION_FAILED] = {"farfork_migration_failed", "",
                                 "Other moves, by where the guest is.", METRIC_COUNTER, NULL},
    [METRIC_MIGRATION_BYTES] = {"farfork_migration_processed_bytes", "bytes",
                                "Guest memory that moves brought.", METRIC_COUNTER, NULL},
    [METRIC_MIGRATION_FAULTS] = {"farfork_migration_faults", "",
                                 "Pages that guests waited for after they moved.", METRIC_COUNTER,
                                 NULL},
    [METRIC_MIGRATION_BREAKS] = {"farfork_migration_link_breaks", "",
                                 "Links that broke and were followed by another.", METRIC_COUNTER,
                                 NULL},
    [METRIC_MIGRATION_PAUSED] = {"farfork_migration_link_paused_seconds", "seconds",
                                 "Time without a link.", METRIC_COUNTER, NULL},
    [METRIC_MIGRATION_AGAIN] = {"farfork_migration_again_bytes", "bytes",
                                "Memory fetched again after a break.", METRIC_COUNTER, NULL},
    [METRIC_MIGRATION_DURATION] = {"farfork_migration_duration_seconds", "seconds",
                                   "From the command to migrate until the last page.",
                                   METRIC_HISTOGRAM, durations_s},
    [METRIC_MIGRATION_DOWNTIME] = {"farfork_migration_downtime_seconds", "seconds",
                                   "How long a guest stood still.", METRIC_HISTOGRAM, pauses_s},
    [METRIC_MIGRATION_FAULT_P99] = {"farfork_migration_fault_p99_seconds", "seconds",
                                    "Of each move: 99 % of its faults waited no longer.",
                                    METRIC_HISTOGRAM, latencies_s},
    [METRIC_MIGRATION_LAST_TOTAL] = {"farfork_migration_data_total_bytes", "bytes",
                                     "Guest memory of the last move.", METRIC_GAUGE, NULL},
    [METRIC_MIGRATION_LAST_PROCESSED] = {"farfork_migration_data_processed_bytes", "bytes",
                                         "What the last move brought of it.", METRIC_GAUGE, NULL},
    [METRIC_MIGRATION_LAST_REMAINING] = {"farfork_migration_data_remaining_bytes", "bytes",
                                         "What the last move did not bring.", METRIC_GAUGE, NULL},
    [METRIC_MIGRATION_LAST_RATE] = {"farfork_migration_memory_transfer_rate_bytes", "bytes",
                                    "Of the last move, each second.", METRIC_GAUGE, NULL},
    [METRIC_MIGRATION_LAST_START] = {"farfork_migration_start_time_seconds", "seconds",
                                     "When the last move began, since 1970.", METRIC_GAUGE, NULL},
    [METRIC_MIGRATION_LAST_END] = {"farfork_migration_end_time_seconds", "seconds",
                                   "When it ended.", METRIC_GAUGE, NULL},
    [METRIC_FORK_STARTED] = {"farfork_fork_started", "", "Forks that were begun.", METRIC_COUNTER,
                             NULL},
    [METRIC_FORK_SUCCEEDED] = {"farfork_fork_succeeded", "", "Forks of which all children run.",
                               METRIC_COUNTER, NULL},
    [METRIC_FORK_FAILED] = {"farfork_fork_failed", "", "Forks of which some run, or none.",
                            METRIC_COUNTER, NULL},
    [METRIC_FORK_CHILDREN] = {"farfork_fork_children", "", "Children, by whether they ran.",
                              METRIC_COUNTER, NULL},
    [METRIC_FORK_BYTES] = {"farfork_fork_processed_bytes", "bytes",
                           "Guest memory that came to agents, sent or lent as a file.",
                           METRIC_COUNTER, NULL},
    [METRIC_FORK_FAULTS] = {"farfork_fork_faults", "", "Pages that children waited for.",
                            METRIC_COUNTER, NULL},
    [METRIC_FORK_BREAKS] = {"farfork_fork_link_breaks", "", "Links to agents that broke.",
                            METRIC_COUNTER, NULL},
    [METRIC_FORK_PAUSE] = {"farfork_fork_pause_seconds", "seconds", "How long a parent stood still.",
                           METRIC_HISTOGRAM, pauses_s},
    [METRIC_FORK_DURATION] = {"farfork_fork_duration_seconds", "seconds",
                              "From the export until every host has all memory.", METRIC_HISTOGRAM,
                              durations_s},
    [METRIC_FORK_CHILD_START] = {"farfork_fork_child_start_seconds", "seconds",
                                 "From the export until a child runs.", METRIC_HISTOGRAM, pauses_s},
    [METRIC_AGENT_STARTED] = {"farfork_agent_started", "", "Agents that were started here.",
                              METRIC_COUNTER, NULL},
    [METRIC_AGENT_IMAGES] = {"farfork_agent_images", "", "Images, by whether all of them came.",
                             METRIC_COUNTER, NULL},
    [METRIC_AGENT_BYTES] = {"farfork_agent_received_bytes", "bytes",
                            "Guest memory that came here, sent or lent as a file.", METRIC_COUNTER,
                            NULL},
    [METRIC_AGENT_IMAGE] = {"farfork_agent_image_seconds", "seconds",
                            "From the device state until the last page.", METRIC_HISTOGRAM,
                            durations_s},
    [METRIC_AGENT_CHILDREN_STARTED] = {"farfork_agent_children_started", "",
                                       "QEMUs that agents started here.", METRIC_COUNTER, NULL},
    [METRIC_AGENT_CHILDREN_ENDED] = {"farfork_agent_children_ended", "",
                                     "Of those that ended while their agent saw it.",
                                     METRIC_COUNTER, NULL},
};
_Static_assert(FF_ARRAY_LEN(pauses_s) == METRICS_BUCKETS - 1, "pauses_s");
_Static_assert(FF_ARRAY_LEN(durations_s) == METRICS_BUCKETS - 1, "durations_s");
_Static_assert(FF_ARRAY_LEN(latencies_s) == METRICS_BUCKETS - 1, "latencies_s");

enum metric_type metric_type(enum metric metric)
{
    return families[metric].type;
}

/* --- labels --- */

/* Readers refuse a file with a value that is not UTF-8 */
static void print_label_value(FILE *out, const char *value)
{
    FF_AUTO_FREE char *cut = strndup(value, LABEL_BYTES_MAX);
    json_t *utf8 = json_string(cut);

    for (const char *c = cut; *c; c++)
        if (*c == '\n')
            fputs("\\n", out);
        else if (*c == '"' || *c == '\\')
            fprintf(out, "\\%c", *c);
        else
            fputc((unsigned char)*c < ' ' || (!utf8 && (*c & 0x80)) ? '?' : *c, out);
    json_decref(utf8);
}

char *series_labels(va_list pairs)
{
    char *text = NULL;
    size_t len;
    FILE *out = open_memstream(&text, &len);
    const char *name, *before = "";

    while ((name = va_arg(pairs, const char *))) {
        fprintf(out, "%s%s=\"", before, name);
        print_label_value(out, va_arg(pairs, const char *));
        fputc('"', out);
        before = ",";
    }
    fclose(out);
    return text;
}

/* --- series --- */

static struct series *series_find(const struct series_list *list, enum metric metric,
                                  const char *labels)
{
    for (size_t i = 0; i < list->n; i++)
        if (list->v[i].metric == metric && !strcmp(list->v[i].labels, labels))
            return &list->v[i];
    return NULL;
}

static struct series *series_add(struct series_list *list, enum metric metric, const char *labels)
{
    list->v = xrealloc(list->v, (list->n + 1) * sizeof(*list->v));
    list->v[list->n] = (struct series){.metric = metric, .labels = xstrdup(labels)};
    return &list->v[list->n++];
}

struct series series_of(enum metric metric, double value, char *labels)
{
    struct series s = {.metric = metric, .labels = labels, .value = value};
    const double *le = families[metric].le;
    unsigned i = 0;

    while (le && i < METRICS_BUCKETS - 1 && value > le[i])
        i++;
    s.count[i] = le != NULL;
    return s;
}

void series_merge(struct series_list *to, const struct series *from)
{
    struct series *s = series_find(to, from->metric, from->labels);

    if (!s && to->n == METRICS_SERIES_MAX)
        return;
    if (!s)
        s = series_add(to, from->metric, from->labels);
    s->value = metric_type(from->metric) == METRIC_GAUGE ? from->value : s->value + from->value;
    for (unsigned i = 0; i < METRICS_BUCKETS; i++)
        s->count[i] += from->count[i];
}

void series_free(struct series_list *list)
{
    for (size_t i = 0; i < list->n; i++)
        free(list->v[i].labels);
    free(list->v);
    *list = (struct series_list){0};
}

/* --- to text --- */

/* The shortest that is read back as the same number */
static const char *number_text(double value, char room[static 32])
{
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(room, 32, "%.*g", digits, value);
        if (strtod(room, NULL) == value)
            break;
    }
    return room;
}

/* Of a bucket: OpenMetrics wants one that shows that it is no integer */
static const char *edge_text(const struct family *f, unsigned i, char room[static 32])
{
    if (i == METRICS_BUCKETS - 1)
        return "+Inf";
    number_text(f->le[i], room);
    return strpbrk(room, ".e") ? room : strcat(room, ".0");
}

static void print_sample(FILE *out, const char *name, const char *suffix, const char *labels,
                         double value)
{
    char room[32];

    fprintf(out, *labels ? "%s%s{%s} %s\n" : "%s%s%s %s\n", name, suffix, labels,
            number_text(value, room));
}

static void print_histogram(FILE *out, const struct family *f, const struct series *s)
{
    double sum = 0;
    char room[32], edge[32];

    for (unsigned i = 0; i < METRICS_BUCKETS; i++) {
        sum += s->count[i];
        fprintf(out, "%s_bucket{%s%sle=\"%s\"} %s\n", f->name, s->labels, *s->labels ? "," : "",
                edge_text(f, i, edge), number_text(sum, room));
    }
    print_sample(out, f->name, "_sum", s->labels, s->value);
    print_sample(out, f->name, "_count", s->labels, sum);
}

static void print_family(FILE *out, enum metric metric, const struct series_list *list,
                         bool openmetrics)
{
    static const char *const types[] = {"counter", "gauge", "histogram"};
    const struct family *f = &families[metric];
    const char *total = f->type == METRIC_COUNTER ? "_total" : "";
    bool begun = false;

    for (size_t i = 0; i < list->n; i++) {
        const struct series *s = &list->v[i];
        if (s->metric != metric)
            continue;
        if (!begun) {
            const char *head = openmetrics ? "" : total;
            fprintf(out, "# HELP %s%s %s\n# TYPE %s%s %s\n", f->name, head, f->help, f->name, head,
                    types[f->type]);
            if (*f->unit)
                fprintf(out, "# UNIT %s%s %s\n", f->name, head, f->unit);
            begun = true;
        }
        if (f->type == METRIC_HISTOGRAM)
            print_histogram(out, f, s);
        else
            print_sample(out, f->name, total, s->labels, s->value);
    }
}

char *series_print(const struct series_list *list, bool openmetrics, size_t *len)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, len);

    for (enum metric metric = 0; metric < METRICS; metric++)
        print_family(out, metric, list, openmetrics);
    fputs(END_LINE, out);
    fclose(out);
    return text;
}

/* --- and back --- */

/* NAME{LABELS} VALUE, cut into those; @line is changed. False: it is none */
static bool cut_line(char *line, char **labels, double *value)
{
    char *space = strrchr(line, ' '), *end, *open = line + strcspn(line, "{ ");

    if (!space || space[1] < '0' || space[1] > '9')
        return false;
    *value = strtod(space + 1, &end);
    *space = '\0';
    if (space[1 + strspn(space + 1, "0123456789.e+-")] || *end || !isfinite(*value) || strspn(line, "abcdefghijklmnopqrstuvwxyz0123456789_") !=
                                         (size_t)(open - line))
        return false;
    *labels = open == space ? space : open + 1;
    if (open != space && (space <= open + 2 || space[-1] != '}'))
        return false;
    if (open != space)
        space[-1] = '\0';
    *open = '\0';
    return true;
}

/* name="value",...: as series_labels() writes them */
static bool are_labels(const char *text)
{
    while (*text) {
        size_t name = strspn(text, "abcdefghijklmnopqrstuvwxyz_");
        text += name;
        if (!name || strncmp(text, "=\"", 2))
            return false;
        for (text += 2; *text && *text != '"'; text++)
            if (*text == '\\' && !strchr("n\\\"", *++text))
                return false;
            else if (!*text)
                return false;
        if (*text++ != '"' || (*text && (*text++ != ',' || !*text)))
            return false;
    }
    return true;
}

/* Which family, and what of it; NULL: of another version */
static const struct family *find_family(const char *name, const char **suffix)
{
    static const char *const suffixes[][3] = {
        [METRIC_COUNTER] = {"_total"}, [METRIC_GAUGE] = {""},
        [METRIC_HISTOGRAM] = {"_bucket", "_sum", "_count"}};

    for (const struct family *f = families; f < families + METRICS; f++) {
        size_t n = strlen(f->name);
        for (unsigned i = 0; !strncmp(name, f->name, n) && i < 3 && suffixes[f->type][i]; i++)
            if (!strcmp(name + n, suffixes[f->type][i])) {
                *suffix = suffixes[f->type][i];
                return f;
            }
    }
    return NULL;
}

/* The last label of a bucket, cut off; its number, METRICS_BUCKETS: none of these */
static unsigned cut_edge(const struct family *f, char *labels)
{
    char *at = labels, *next, room[32];

    while ((next = strstr(at, ",le=\"")))
        at = next + 1;
    for (unsigned i = 0; i < METRICS_BUCKETS; i++) {
        size_t n = strlen(edge_text(f, i, room));
        if (strncmp(at, "le=\"", 4) || strncmp(at + 4, edge_text(f, i, room), n) ||
            strcmp(at + 4 + n, "\""))
            continue;
        at[at > labels ? -1 : 0] = '\0';
        return i;
    }
    return METRICS_BUCKETS;
}

/* Buckets count as they come, each with those below it; then one that says how many there were */
struct reader {
    struct series_list *list;
    struct series *s;
    unsigned bucket; /* which comes next; METRICS_BUCKETS: _sum, + 1: _count, + 2: nothing */
    double below;
};

#define HISTOGRAM_OVER (METRICS_BUCKETS + 2)

static bool take_histogram(struct reader *r, const struct family *f, const char *suffix,
                           char *labels, double value)
{
    bool is_bucket = !strcmp(suffix, "_bucket");
    unsigned i = is_bucket                ? cut_edge(f, labels)
                 : !strcmp(suffix, "_sum") ? METRICS_BUCKETS
                                           : METRICS_BUCKETS + 1;
    enum metric metric = (enum metric)(f - families);

    if (is_bucket && i == 0 && r->bucket == HISTOGRAM_OVER &&
        !series_find(r->list, metric, labels)) {
        r->s = series_add(r->list, metric, labels);
        r->bucket = 0;
        r->below = 0;
    }
    if (i != r->bucket || r->s->metric != metric || strcmp(r->s->labels, labels) ||
        (is_bucket && i == METRICS_BUCKETS))
        return false;
    r->bucket++;
    if (i == METRICS_BUCKETS)
        r->s->value = value;
    else if (i > METRICS_BUCKETS)
        return value == r->below;
    else
        r->s->count[i] = value - r->below;
    if (i < METRICS_BUCKETS) {
        bool up = value >= r->below;
        r->below = value;
        return up;
    }
    return true;
}

static bool take_metric_line(struct reader *r, char *line)
{
    const char *suffix;
    char *labels;
    double value;

    if (*line == '#')
        return true;
    if (!cut_line(line, &labels, &value) || !are_labels(labels) ||
        r->list->n > METRICS_SERIES_MAX)
        return false;
    const struct family *f = find_family(line, &suffix);
    if (!f)
        return true;
    if (f->type == METRIC_HISTOGRAM)
        return take_histogram(r, f, suffix, labels, value);
    enum metric metric = (enum metric)(f - families);
    if (r->bucket != HISTOGRAM_OVER || series_find(r->list, metric, labels))
        return false;
    series_add(r->list, metric, labels)->value = value;
    return true;
}

int series_parse(const char *text, size_t len, struct series_list *list, struct ff_error *why)
{
    struct reader r = {.list = list, .bucket = HISTOGRAM_OVER};
    FF_AUTO_FREE char *copy = strndup(text, len);
    unsigned number = 0;
    size_t tail = strlen(END_LINE);

    *list = (struct series_list){0};
    if (strlen(copy) != len || len < tail || strcmp(copy + len - tail, END_LINE) ||
        (len > tail && copy[len - tail - 1] != '\n'))
        return ff_error_set(why, EBADMSG, "its last line is not # EOF, or it has a byte 0");
    for (char *line = copy, *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = '\0';
        number++;
        if (take_metric_line(&r, line))
            continue;
        series_free(list);
        return ff_error_set(why, EBADMSG, "line %u is not one that Farfork writes", number);
    }
    if (r.bucket == HISTOGRAM_OVER)
        return 0;
    series_free(list);
    return ff_error_set(why, EBADMSG, "a histogram is not whole");
}
