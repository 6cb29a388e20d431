#include "base/metric.h"

#include "base/assert.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Design: a list in order of registration; only registration takes the lock (objects are static and
 * never leave the list), so that updates are single atomic operations. */
static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct metric *list_head; /* guarded by list_lock */

void metric_register(struct metric *m)
{
    ASSERT(m->n_bounds <= METRIC_BUCKETS_MAX);
    pthread_mutex_lock(&list_lock);
    struct metric **p = &list_head;
    while (*p && *p != m)
        p = &(*p)->next;
    if (!*p) {
        m->next = NULL;
        *p = m;
    }
    pthread_mutex_unlock(&list_lock);
}

static void add_double(_Atomic double *to, double v)
{
    double old = atomic_load_explicit(to, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(to, &old, old + v, memory_order_relaxed,
                                                  memory_order_relaxed))
        continue;
}

void metric_add(struct metric *m, double v)
{
    add_double(&m->value, v);
}

void metric_set(struct metric *m, double v)
{
    atomic_store_explicit(&m->value, v, memory_order_relaxed);
}

static pthread_mutex_t exemplar_lock = PTHREAD_MUTEX_INITIALIZER;

void metric_observe(struct metric *m, double v)
{
    metric_observe_traced(m, v, "");
}

void metric_observe_traced(struct metric *m, double v, const char *trace)
{
    if (isnan(v)) return;
    size_t i = 0;
    while (i < m->n_bounds && v > m->bounds[i])
        i++;
    if (m->exemplar && *trace) {
        struct metric_exemplar *x = &m->exemplar[i];
        pthread_mutex_lock(&exemplar_lock);
        (void)snprintf(x->trace, sizeof x->trace, "%s", trace);
        x->value = v;
        x->when_s = clock_wall_s();
        pthread_mutex_unlock(&exemplar_lock);
    }
    atomic_fetch_add_explicit(&m->bucket[i], 1, memory_order_relaxed);
    add_double(&m->sum, v);
}

/* The shortest of the two usual precisions that reads back as the same number. */
static const char *number_text(double v, char ret[32])
{
    if (isnan(v)) return "NaN";
    if (isinf(v)) return v < 0 ? "-Inf" : "+Inf";
    (void)snprintf(ret, 32, "%.15g", v);
    if (strtod(ret, NULL) != v) (void)snprintf(ret, 32, "%.17g", v);
    return ret;
}

static void add_line(struct buf *out, const struct metric *m, const char *suffix, const char *le,
                     double v)
{
    const char *labels = m->labels ? m->labels : "";
    char number[32];
    (void)buf_addf(out, "%s%s", m->name, suffix);
    if (*labels || le)
        (void)buf_addf(out, "{%s%s%s%s%s}", labels, *labels && le ? "," : "", le ? "le=\"" : "",
                       le ? le : "", le ? "\"" : "");
    (void)buf_addf(out, " %s\n", number_text(v, number));
}

/* Behind the sample, in its line. */
static void put_exemplar(struct buf *out, const struct metric_exemplar *from)
{
    char number[32];
    pthread_mutex_lock(&exemplar_lock);
    const struct metric_exemplar x = *from;
    pthread_mutex_unlock(&exemplar_lock);
    if (!x.trace[0] || buf_status(out) < 0) return;
    out->len--; /* the end of the line */
    (void)buf_addf(out, " # {trace_id=\"%s\"} %s %.3f\n", x.trace, number_text(x.value, number),
                   x.when_s);
}

static void render_histogram(struct buf *out, struct metric *m, bool traced)
{
    uint64_t count = 0;
    char le[32];
    for (size_t i = 0; i <= m->n_bounds; i++) {
        count += atomic_load_explicit(&m->bucket[i], memory_order_relaxed);
        const double bound = i < m->n_bounds ? m->bounds[i] : (double)INFINITY;
        add_line(out, m, "_bucket", number_text(bound, le), (double)count);
        if (traced && m->exemplar) put_exemplar(out, &m->exemplar[i]);
    }
    add_line(out, m, "_sum", NULL, atomic_load_explicit(&m->sum, memory_order_relaxed));
    add_line(out, m, "_count", NULL, (double)count);
}

static void render_group(struct buf *out, struct metric *first, bool traced)
{
    static const char *const types[] = {"counter", "gauge", "histogram"};
    (void)buf_addf(out, "# HELP %s %s\n# TYPE %s %s\n", first->name,
                   first->help ? first->help : first->name, first->name, types[first->type]);
    for (struct metric *m = first; m; m = m->next) {
        if (strcmp(m->name, first->name) != 0) continue;
        if (m->type == METRIC_HISTOGRAM)
            render_histogram(out, m, traced);
        else
            add_line(out, m, "", NULL, atomic_load_explicit(&m->value, memory_order_relaxed));
    }
}

static int render_all(struct buf *out, bool traced)
{
    size_t start = out->len;
    pthread_mutex_lock(&list_lock);
    for (struct metric *m = list_head; m; m = m->next) {
        struct metric *first = list_head;
        while (strcmp(first->name, m->name) != 0)
            first = first->next;
        if (first == m) render_group(out, m, traced);
    }
    pthread_mutex_unlock(&list_lock);
    if (buf_status(out) < 0) out->len = start;
    return buf_status(out);
}

int metric_render(struct buf *out)
{
    return render_all(out, false);
}

int metric_render_traced(struct buf *out)
{
    return render_all(out, true);
}
