#include "gateway/front/cors.h"

#include "base/buf.h"
#include "base/net/http.h"
#include "gateway/process/config.h"

#include <arpa/inet.h>
#include <string.h>

enum {
    ASKED_BYTES_MAX = 1024,
    MAX_AGE_S = 600, /* what is allowed may change with a reload */
};

/* Where the domain begins that a pattern means all subdomains of, with its dot; NULL: it does not.
 */
static const char *wildcard(const char *pattern)
{
    const char *p = strstr(pattern, "://*.");
    return p ? p + 4 : NULL;
}

static bool is_host(const char *s, const char *end)
{
    static const char ok[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.";
    return s < end && strspn(s, ok) >= (size_t)(end - s);
}

static bool matches(const char *pattern, const char *origin)
{
    if (strcmp(pattern, "*") == 0) return true;
    const char *tail = wildcard(pattern);
    if (!tail) return strcasecmp(pattern, origin) == 0;
    size_t head_len = (size_t)(tail - 1 - pattern), tail_len = strlen(tail), len = strlen(origin);
    if (len <= head_len + tail_len || strncasecmp(origin, pattern, head_len) != 0) return false;
    if (strcasecmp(origin + len - tail_len, tail) != 0) return false;
    return is_host(origin + head_len, origin + len - tail_len);
}

bool gw_cors_pattern_ok(const char *pattern)
{
    if (strcmp(pattern, "*") == 0) return true;
    const char *host = strstr(pattern, "://");
    if (!host || host == pattern || strpbrk(pattern, " \t\r\n,\"")) return false;
    host += 3;
    if (strncmp(host, "*.", 2) == 0) host += 2;
    return *host && !strchr(host, '/') && !strchr(host, '*');
}

bool gw_cors_allows(const struct gw_strs *origins, const char *origin)
{
    /* The value goes back into a header. Printable ASCII is all an origin is made of. */
    for (const char *p = origin; *p; p++)
        if (*p <= 0x20 || *p >= 0x7f) return false;
    for (size_t i = 0; i < origins->n; i++)
        if (matches(origins->v[i], origin)) return true;
    return false;
}

static bool any_origin(const struct gw_strs *origins)
{
    for (size_t i = 0; i < origins->n; i++)
        if (strcmp(origins->v[i], "*") == 0) return true;
    return false;
}

/* Allow-Origin, and Vary wherever the answer depends on the origin. 1 allowed, 0 not. */
static int allow_origin(const struct gw_strs *origins, const struct http_head *h, struct buf *out)
{
    const char *origin = http_header_find(h, "origin");
    int r = 0;
    if (any_origin(origins)) {
        r = origin ? buf_adds(out, "Access-Control-Allow-Origin: *\r\n") : 0;
        return r < 0 ? r : origin != NULL;
    }
    r = buf_adds(out, "Vary: Origin\r\n");
    if (r < 0 || !origin || !gw_cors_allows(origins, origin)) return r;
    r = buf_addf(out, "Access-Control-Allow-Origin: %s\r\n", origin);
    return r < 0 ? r : 1;
}

int gw_cors_headers(const struct gw_strs *origins, const struct http_head *h, struct buf *out)
{
    if (origins->n == 0) return 0;
    int r = allow_origin(origins, h, out);
    if (r <= 0) return r;
    return buf_adds(out,
                    "Access-Control-Expose-Headers: x-request-id, Retry-After, retry-after-ms, "
                    "x-should-retry, x-ratelimit-limit-requests, x-ratelimit-remaining-requests, "
                    "x-ratelimit-reset-requests, x-ratelimit-limit-tokens, "
                    "x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens, "
                    "openai-processing-ms, x-kvblend-overhead-us, x-kvblend-ttft-ms, "
                    "x-kvblend-kv\r\n");
}

bool gw_cors_is_preflight(const struct gw_strs *origins, const char *method,
                          const struct http_head *h)
{
    return origins->n > 0 && strcmp(method, "OPTIONS") == 0 && http_header_find(h, "origin") &&
           http_header_find(h, "access-control-request-method");
}

/* The SDKs send a dozen x-stainless headers and users add their own, so that all that a page asks
 * for is allowed, as long as it is a list of names; the key decides what a caller may do. */
static bool is_name_list(const char *s)
{
    size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_, ");
    return n > 0 && n <= ASKED_BYTES_MAX && s[n] == '\0';
}

int gw_cors_preflight(const struct gw_strs *origins, const struct http_head *h, const char *methods,
                      struct buf *out)
{
    const char *asked = http_header_find(h, "access-control-request-headers");
    int r = allow_origin(origins, h, out);
    if (r <= 0) return r;
    r = buf_addf(out,
                 "Vary: Access-Control-Request-Headers\r\nAccess-Control-Allow-Methods: %s\r\n"
                 "Access-Control-Max-Age: %d\r\n",
                 methods, MAX_AGE_S);
    if (r == 0 && asked && is_name_list(asked))
        r = buf_addf(out, "Access-Control-Allow-Headers: %s\r\n", asked);
    return r;
}

bool gw_cors_is_own(const char *origin, const char *host)
{
    const char *at = strstr(origin, "://");
    return host && at && strcasecmp(at + 3, host) == 0;
}

bool gw_cors_host_is_ours(const char *host, char *const *names, size_t n)
{
    char name[256];
    struct in6_addr address;
    bool v6 = host && *host == '[';
    size_t len = !host ? 0 : v6 ? strcspn(host, "]") : strcspn(host, ":");
    if (len == 0 || len >= sizeof name) return false;
    const char *port = host + len + v6;
    if (v6 && host[len] != ']') return false;
    if (*port && (*port != ':' || port[1 + strspn(port + 1, "0123456789")])) return false;
    memcpy(name, host + v6, len - v6);
    name[len - v6] = '\0';
    if (inet_pton(v6 ? AF_INET6 : AF_INET, name, &address) == 1) return true;
    bool ours = !v6 && strcasecmp(name, "localhost") == 0;
    for (size_t i = 0; i < n && !ours && !v6; i++)
        ours = strcasecmp(name, names[i]) == 0;
    return ours;
}
