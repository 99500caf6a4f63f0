/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * metrics_text.h - series of metrics, to text and back
 */
#ifndef FF_CONTROL_HOST_METRICS_TEXT_H
#define FF_CONTROL_HOST_METRICS_TEXT_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "error.h"
#include "metrics.h"

#define METRICS_BUCKETS 14    /* of a histogram, with the one for all that is larger */
#define METRICS_SERIES_MAX 500

enum metric_type { METRIC_COUNTER, METRIC_GAUGE, METRIC_HISTOGRAM };

/* One line, or all lines of one histogram */
struct series {
    enum metric metric;
    char *labels;   /* as in the file: side="source",via="attach"; "": none */
    double value;   /* of a histogram the sum */
    double count[METRICS_BUCKETS]; /* of a histogram, not added up */
};

struct series_list {
    struct series *v;
    size_t n;
};

enum metric_type metric_type(enum metric metric);

/* name="value", with what the format cannot hold escaped or replaced: to be freed */
char *series_labels(va_list pairs);

/* Add @from to its like in @to, or set that. Past METRICS_SERIES_MAX a new one is left out */
void series_merge(struct series_list *to, const struct series *from);

/* A series that a value makes; @labels is taken */
struct series series_of(enum metric metric, double value, char *labels);
void series_free(struct series_list *list);

/* The file, to be freed: in text format 0.0.4, or OpenMetrics */
char *series_print(const struct series_list *list, bool openmetrics, size_t *len);

/**
 * series_parse() - read what series_print() wrote, in text format 0.0.4
 * @text: @len bytes
 *
 * A series of a name that is not known here, of another version of this program, is left out.
 * Return: 0; -EBADMSG: it is not whole, or not of this program: @list is empty then
 */
int series_parse(const char *text, size_t len, struct series_list *list, struct ff_error *why);

#endif
