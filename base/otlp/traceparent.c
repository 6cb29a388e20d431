#include "base/otlp/traceparent.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/net/http.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

enum { VALUE_BYTES = 55 }; /* version 00: 2-32-16-2 and three dashes */

/* From a stock, because asking the kernel for each costs as much as reading the request. */
void trace_random_hex(char *hex, size_t n)
{
    static const char digit[] = "0123456789abcdef";
    static _Thread_local uint8_t stock[512];
    static _Thread_local size_t left;
    if (left < n && getrandom(stock, sizeof stock, GRND_NONBLOCK) == (ssize_t)sizeof stock)
        left = sizeof stock;
    if (left < n) { /* early at boot: an id need not be a secret */
        static atomic_ullong counter;
        uint64_t r[2] = {clock_ns(), atomic_fetch_add(&counter, 1) + 1};
        memcpy(stock, r, sizeof r);
        left = sizeof r;
    }
    left -= n;
    for (size_t i = 0; i < n; i++) {
        hex[2 * i] = digit[stock[left + i] >> 4];
        hex[2 * i + 1] = digit[stock[left + i] & 15];
    }
    hex[2 * n] = '\0';
}

bool traceparent_parse(const char *value, struct traceparent *ret)
{
    struct traceparent t = *ret;
    char version[3];
    int n = 0;
    (void)sscanf(value, "%2[0-9a-f]-%32[0-9a-f]-%16[0-9a-f]-%2[0-9a-f]%n", version, t.trace,
                 t.parent, t.flags, &n);
    if (n != VALUE_BYTES || strcmp(version, "ff") == 0) return false;
    /* Later versions may append fields; this one may not. */
    if (value[n] && (strcmp(version, "00") == 0 || value[n] != '-')) return false;
    if (strspn(t.trace, "0") == 32 || strspn(t.parent, "0") == 16) return false; /* no ids */
    *ret = t;
    return true;
}

bool traceparent_read(const struct http_head *h, struct traceparent *ret)
{
    const char *value = NULL;
    memset(ret, 0, sizeof *ret);
    for (size_t i = 0; i < h->n_headers; i++) {
        if (!http_header_is(&h->headers[i], "traceparent")) continue;
        if (value) return false; /* two say nothing */
        value = h->headers[i].value;
    }
    if (!value || !traceparent_parse(value, ret)) return false;
    trace_random_hex(ret->span, 8);
    return true;
}

void traceparent_begin(struct traceparent *ret, bool sampled)
{
    memset(ret, 0, sizeof *ret);
    trace_random_hex(ret->trace, 16);
    trace_random_hex(ret->span, 8);
    (void)snprintf(ret->flags, sizeof ret->flags, "0%d", sampled);
}

/* Of the flags only the first is defined. */
bool traceparent_sampled(const struct traceparent *t)
{
    return t->trace[0] && strchr("13579bdf", t->flags[1]) != NULL;
}

int traceparent_header(const struct traceparent *t, struct buf *out)
{
    if (!t->trace[0]) return 0;
    /* Always version 00: what a later one appends is not ours to repeat. */
    return buf_addf(out, "traceparent: 00-%s-%s-0%d\r\n", t->trace, t->span,
                    traceparent_sampled(t));
}
