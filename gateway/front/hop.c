#include "gateway/front/hop.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/net/http.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

void gw_hop_new(char id[GW_HOP_BYTES])
{
    uint64_t r;
    if (getrandom(&r, sizeof r, GRND_NONBLOCK) != (ssize_t)sizeof r) r = clock_ns();
    (void)snprintf(id, GW_HOP_BYTES, "%016llx", (unsigned long long)r);
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
