#include "gateway/request/trace.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/rng.h"
#include "base/net/http.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

enum { VALUE_BYTES = 55 }; /* version 00: 2-32-16-2 and three dashes */

/* n digits and what follows them; all zeros are no id. */
static bool hex_field(const char *p, size_t n, char follow, bool zero_ok, char *ret)
{
    bool zero = true;
    for (size_t i = 0; i < n; i++) {
        if (!((p[i] >= '0' && p[i] <= '9') || (p[i] >= 'a' && p[i] <= 'f'))) return false;
        zero &= p[i] == '0';
    }
    if (p[n] != follow || (zero && !zero_ok)) return false;
    memcpy(ret, p, n);
    ret[n] = '\0';
    return true;
}

bool gw_trace_parse(const char *value, struct gw_trace *ret)
{
    struct gw_trace t = {0};
    char version[3];
    size_t len = strlen(value);
    if (len < VALUE_BYTES || !hex_field(value, 2, '-', true, version)) return false;
    if (strcmp(version, "ff") == 0) return false;
    /* Later versions may append fields; this one may not. */
    if (len > VALUE_BYTES && (strcmp(version, "00") == 0 || value[VALUE_BYTES] != '-'))
        return false;
    if (!hex_field(value + 3, 32, '-', false, t.trace)) return false;
    if (!hex_field(value + 36, 16, '-', false, t.parent)) return false;
    if (!hex_field(value + 53, 2, value[VALUE_BYTES], true, t.flags)) return false;
    memcpy(ret->trace, t.trace, sizeof t.trace);
    memcpy(ret->parent, t.parent, sizeof t.parent);
    memcpy(ret->flags, t.flags, sizeof t.flags);
    return true;
}

bool gw_trace_read(const struct http_head *h, struct gw_trace *ret)
{
    const char *value = NULL;
    memset(ret, 0, sizeof *ret);
    for (size_t i = 0; i < h->n_headers; i++) {
        if (!http_header_is(&h->headers[i], "traceparent")) continue;
        if (value) return false; /* two say nothing */
        value = h->headers[i].value;
    }
    if (!value || !gw_trace_parse(value, ret)) return false;
    uint64_t r;
    if (getrandom(&r, sizeof r, GRND_NONBLOCK) != (ssize_t)sizeof r) {
        static uint64_t counter;
        r = clock_ns() * RNG_STEP + ++counter;
    }
    (void)snprintf(ret->span, sizeof ret->span, "%016llx", (unsigned long long)(r ? r : 1));
    return true;
}

int gw_trace_header(const struct gw_trace *t, struct buf *out)
{
    if (!t->trace[0]) return 0;
    /* Always version 00: what a later one appends is not ours to repeat. Of the flags only the
     * first is defined. */
    bool sampled = strchr("13579bdf", t->flags[1]) != NULL;
    return buf_addf(out, "traceparent: 00-%s-%s-0%d\r\n", t->trace, t->span, sampled);
}
