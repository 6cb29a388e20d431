#include "gateway/front/trace.h"

#include "base/buf.h"
#include "base/net/http.h"
#include "base/otlp/traceparent.h"

#include <string.h>

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
    trace_random_hex(id + 4, 16);
}

/* ---- hops ---- */

void gw_hop_new(char id[GW_HOP_BYTES])
{
    trace_random_hex(id, 8);
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
