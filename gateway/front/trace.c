#include "gateway/front/trace.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/net/http.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

enum { VALUE_BYTES = 55 }; /* version 00: 2-32-16-2 and three dashes */

/* n random bytes as hex digits. From a stock, because asking the kernel for each costs as much as
 * reading the request. */
static void put_random(char *hex, size_t n)
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

/* ---- the request's own id ---- */

/* The client's own id when it is harmless, else a fresh one. */
void gw_id_choose(const struct http_head *h, char id[GW_ID_BYTES])
{
    const char *given = http_header_find(h, "x-request-id");
    size_t n = 0;
    while (given && n < 128 && given[n] > 0x20 && given[n] < 0x7f && given[n] != '"')
        n++;
    if (n > 0 && given[n] == '\0') {
        memcpy(id, given, n + 1);
        return;
    }
    memcpy(id, "req_", 4);
    put_random(id + 4, 16);
}

/* ---- traceparent ---- */

bool gw_trace_parse(const char *value, struct gw_trace *ret)
{
    struct gw_trace t = *ret;
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
    put_random(ret->span, 8);
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

/* ---- hops ---- */

void gw_hop_new(char id[GW_HOP_BYTES])
{
    put_random(id, 8);
}

bool gw_hop_loops(const struct http_head *h, const char *id)
{
    size_t len = strlen(id);
    unsigned n_hops = 0;
    for (size_t i = 0; i < h->n_headers; i++) {
        if (!http_header_is(&h->headers[i], GW_HOP_HEADER)) continue;
        for (const char *p = h->headers[i].value; *(p += strspn(p, ", \t"));) {
            size_t n = strcspn(p, ", \t");
            if ((n == len && memcmp(p, id, n) == 0) || ++n_hops >= GW_HOPS_MAX) return true;
            p += n;
        }
    }
    return false;
}

int gw_hop_header(const struct http_head *h, const char *id, struct buf *out)
{
    int r = buf_adds(out, GW_HOP_HEADER ": ");
    for (size_t i = 0; r == 0 && i < h->n_headers; i++)
        if (http_header_is(&h->headers[i], GW_HOP_HEADER))
            r = buf_addf(out, "%s, ", h->headers[i].value);
    if (r == 0) r = buf_adds(out, id);
    return r < 0 ? r : buf_adds(out, "\r\n");
}
