/* OpenMetrics 1.0 out of the text format: of a counter the family's name has no _total, its sample
 * has; units are told; quotes in help texts are escaped. Bounds of buckets stay as they are
 * written ("1", not "1.0"), or each series would be two. */
#include "base/buf.h"
#include "base/metric.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* A piece of the page, borrowed. */
struct part {
    const char *p;
    size_t n;
};

static struct part part_to(const char *from, const char *end, const char *stops)
{
    const char *p = from;
    while (p < end && !strchr(stops, *p))
        p++;
    return (struct part){from, (size_t)(p - from)};
}

static bool ends_so(struct part name, const char *suffix)
{
    const size_t n = strlen(suffix);
    return name.n > n && memcmp(name.p + name.n - n, suffix, n) == 0;
}

static void put_help(struct buf *out, struct part family, struct part help)
{
    (void)buf_addf(out, "# HELP %.*s ", (int)family.n, family.p);
    for (size_t i = 0; i < help.n; i++) {
        const bool escaped = help.p[i] == '\\' && i + 1 < help.n;
        if (help.p[i] == '"') (void)buf_addc(out, '\\');
        (void)buf_addc(out, help.p[i]);
        if (escaped) (void)buf_addc(out, help.p[++i]);
    }
    (void)buf_addc(out, '\n');
}

static void put_family(struct buf *out, struct part name, struct part type, struct part help)
{
    static const char *const units[] = {"seconds", "bytes", "ratio"};
    const bool counts = type.n == 7 && memcmp(type.p, "counter", 7) == 0;
    if (counts && ends_so(name, "_total")) name.n -= strlen("_total");
    (void)buf_addf(out, "# TYPE %.*s %.*s\n", (int)name.n, name.p, (int)type.n, type.p);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        const size_t n = strlen(units[i]);
        if (ends_so(name, units[i]) && name.p[name.n - n - 1] == '_')
            (void)buf_addf(out, "# UNIT %.*s %s\n", (int)name.n, name.p, units[i]);
    }
    if (help.p) put_help(out, name, help);
}

int metric_open(const char *text, size_t len, struct buf *out)
{
    const char *end = text + len;
    struct part help = {NULL, 0};
    bool counts = false;
    for (const char *p = text, *next; p < end; p = next) {
        const struct part line = part_to(p, end, "\n");
        const char *last = p + line.n;
        next = last + 1;
        if (line.n > 7 && memcmp(p, "# HELP ", 7) == 0) {
            const struct part name = part_to(p + 7, last, " ");
            const char *rest = name.p + name.n + 1;
            help = (struct part){rest, rest < last ? (size_t)(last - rest) : 0};
        } else if (line.n > 7 && memcmp(p, "# TYPE ", 7) == 0) {
            const struct part name = part_to(p + 7, last, " ");
            const char *rest = name.p + name.n < last ? name.p + name.n + 1 : last;
            const struct part type = {rest, (size_t)(last - rest)};
            counts = type.n == 7 && memcmp(type.p, "counter", 7) == 0;
            put_family(out, name, type, help);
            help.p = NULL;
        } else if (line.n > 0 && *p != '#') {
            const struct part name = part_to(p, last, "{ ");
            (void)buf_add(out, name.p, name.n);
            if (counts && !ends_so(name, "_total")) (void)buf_adds(out, "_total");
            (void)buf_add(out, name.p + name.n, line.n - name.n);
            (void)buf_addc(out, '\n');
        }
    }
    return buf_status(out);
}

/* ---- negotiation ---- */

/* q of one range of an Accept header; 1 where none is said. */
static double weight_of(struct part range)
{
    for (size_t i = 0; i + 2 < range.n; i++)
        if (range.p[i] == ';') {
            size_t k = i + 1;
            while (k < range.n && range.p[k] == ' ')
                k++;
            if (k + 2 < range.n && (range.p[k] | 32) == 'q' && range.p[k + 1] == '=')
                return strtod(range.p + k + 2, NULL);
        }
    return 1;
}

bool metric_wants_open(const char *accept)
{
    static const char open[] = "application/openmetrics-text", plain[] = "text/plain";
    double q_open = 0, q_plain = 0;
    for (const char *p = accept; p && *p;) {
        p += strspn(p, ", \t");
        const struct part range = part_to(p, p + strlen(p), ",");
        const struct part type = part_to(p, p + range.n, "; \t");
        const double q = weight_of(range);
        if (type.n == sizeof open - 1 && strncasecmp(type.p, open, type.n) == 0 && q > q_open)
            q_open = q;
        if (type.n == sizeof plain - 1 && strncasecmp(type.p, plain, type.n) == 0 && q > q_plain)
            q_plain = q;
        p += range.n;
    }
    return q_open > 0 && q_open >= q_plain;
}
