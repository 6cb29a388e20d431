#include "gateway/front/error.h"

#include "base/buf.h"

#include <string.h>

enum { RETRY_MS_MAX = 60000 }; /* the JavaScript client ignores more, Python's stops at 120 s */

static const struct {
    int status, retry_after_s;
    const char *type, *code;
} errors[] = {
#define X(name, status, type, code, retry) [GW_E_##name] = {status, retry, type, code},
    GW_ERROR_TABLE(X)
#undef X
};

int gw_error_status(enum gw_error e)
{
    return errors[e].status;
}

enum gw_error gw_error_of_status(int status)
{
    if (status == 400) return GW_E_BAD_REQUEST; /* these are not the first with their status */
    if (status == 503) return GW_E_SHED;
    for (int e = 0; e < GW_E_COUNT; e++)
        if (errors[e].status == status) return (enum gw_error)e;
    return status < 500 ? GW_E_BAD_REQUEST : GW_E_INTERNAL;
}

int gw_error_body(enum gw_error e, const char *message, const char *param, struct buf *out)
{
    int r = buf_adds(out, "{\"error\":{\"message\":");
    if (r == 0) r = buf_add_json_str(out, message, strlen(message));
    if (r == 0) r = buf_addf(out, ",\"type\":\"%s\",\"param\":", errors[e].type);
    if (r == 0 && param) r = buf_add_json_str(out, param, strlen(param));
    if (r == 0 && !param) r = buf_adds(out, "null");
    if (r == 0) r = buf_addf(out, ",\"code\":\"%s\"}}", errors[e].code);
    return r;
}

int gw_error_headers_after(enum gw_error e, uint64_t after_ms, struct buf *out)
{
    /* retry-after-ms is read first, Retry-After by all other clients. Both SDKs obey
     * x-should-retry above everything: nothing that is bound to fail again is tried again. */
    return buf_addf(out, "Retry-After: %llu\r\nretry-after-ms: %llu\r\nx-should-retry: %s\r\n",
                    (unsigned long long)(after_ms / 1000 + (after_ms % 1000 != 0)),
                    (unsigned long long)after_ms, after_ms > RETRY_MS_MAX ? "false" : "true");
}

int gw_error_headers(enum gw_error e, struct buf *out)
{
    int after = errors[e].retry_after_s;
    if (after >= 0) return gw_error_headers_after(e, (uint64_t)after * 1000, out);
    int r = buf_adds(out, "x-should-retry: false\r\n");
    if (r == 0 && e == GW_E_INVALID_KEY) r = buf_adds(out, "WWW-Authenticate: Bearer\r\n");
    return r;
}

int gw_error_frames(enum gw_error e, const char *message, struct buf *out)
{
    int r = buf_adds(out, "data: ");
    if (r == 0) r = gw_error_body(e, message, NULL, out);
    if (r == 0) r = buf_adds(out, "\n\ndata: [DONE]\n\n");
    return r;
}
