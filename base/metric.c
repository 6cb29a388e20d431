#include "base/metric.h"

#include "base/assert.h"
#include "base/buf.h"
#include "base/err.h"

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
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

void metric_observe(struct metric *m, double v)
{
    if (isnan(v)) return;
    size_t i = 0;
    while (i < m->n_bounds && v > m->bounds[i])
        i++;
    atomic_fetch_add_explicit(&m->bucket[i], 1, memory_order_relaxed);
    add_double(&m->sum, v);
}

/* The shortest of the two usual precisions that reads back as the same number. */
static int add_number(struct buf *out, double v)
{
    if (isnan(v)) return buf_adds(out, "NaN");
    if (isinf(v)) return buf_adds(out, v < 0 ? "-Inf" : "+Inf");
    size_t start = out->len;
    int r = buf_addf(out, "%.15g", v);
    if (r < 0) return r;
    const char *text = buf_cstr(out);
    if (text && strtod(text + start, NULL) == v) return 0;
    out->len = start;
    return buf_addf(out, "%.17g", v);
}

static int add_line(struct buf *out, const struct metric *m, const char *suffix, const char *le,
                    double v)
{
    const char *labels = m->labels ? m->labels : "";
    int r = buf_addf(out, "%s%s", m->name, suffix);
    if (r == 0 && (*labels || le))
        r = buf_addf(out, "{%s%s%s%s%s}", labels, *labels && le ? "," : "", le ? "le=\"" : "",
                     le ? le : "", le ? "\"" : "");
    if (r == 0) r = buf_addc(out, ' ');
    if (r == 0) r = add_number(out, v);
    return r < 0 ? r : buf_addc(out, '\n');
}

static int render_histogram(struct buf *out, struct metric *m)
{
    uint64_t count = 0;
    int r = 0;
    for (size_t i = 0; r == 0 && i <= m->n_bounds; i++) {
        count += atomic_load_explicit(&m->bucket[i], memory_order_relaxed);
        struct buf le = BUF_INIT;
        r = add_number(&le, i < m->n_bounds ? m->bounds[i] : (double)INFINITY);
        const char *text = r == 0 ? buf_cstr(&le) : NULL;
        r = text ? add_line(out, m, "_bucket", text, (double)count) : -ENOMEM;
        buf_fini(&le);
    }
    if (r == 0)
        r = add_line(out, m, "_sum", NULL, atomic_load_explicit(&m->sum, memory_order_relaxed));
    return r < 0 ? r : add_line(out, m, "_count", NULL, (double)count);
}

static int render_group(struct buf *out, struct metric *first)
{
    static const char *const types[] = {"counter", "gauge", "histogram"};
    int r = buf_addf(out, "# HELP %s %s\n# TYPE %s %s\n", first->name,
                     first->help ? first->help : first->name, first->name, types[first->type]);
    for (struct metric *m = first; r == 0 && m; m = m->next) {
        if (strcmp(m->name, first->name) != 0) continue;
        r = m->type == METRIC_HISTOGRAM
                ? render_histogram(out, m)
                : add_line(out, m, "", NULL, atomic_load_explicit(&m->value, memory_order_relaxed));
    }
    return r;
}

int metric_render(struct buf *out)
{
    size_t start = out->len;
    int r = 0;
    pthread_mutex_lock(&list_lock);
    for (struct metric *m = list_head; r == 0 && m; m = m->next) {
        struct metric *first = list_head;
        while (strcmp(first->name, m->name) != 0)
            first = first->next;
        if (first == m) r = render_group(out, m);
    }
    pthread_mutex_unlock(&list_lock);
    if (r < 0) out->len = start;
    return r;
}
