#include "gateway/usage.h"

#include "base/jsonscan.h"

#include <string.h>

enum { BYTES_PER_TOKEN = 4 };

static bool read_count(const struct json_val *object, const char *key, uint64_t *ret)
{
    struct json_val v;
    int64_t n;
    if (json_find(object->p, object->len, key, &v) != 1) return false;
    if (json_int_read(&v, &n) < 0 || n < 0) return false;
    *ret = n > GW_USAGE_MAX ? GW_USAGE_MAX : (uint64_t)n;
    return true;
}

static bool read_cached(const struct json_val *usage, uint64_t *ret)
{
    static const char *const details[] = {"prompt_tokens_details", "input_tokens_details"};
    struct json_val v;
    for (int i = 0; i < 2; i++)
        if (json_find(usage->p, usage->len, details[i], &v) == 1 && v.type == JSON_T_OBJECT)
            return read_count(&v, "cached_tokens", ret);
    return read_count(usage, "cache_read_input_tokens", ret);
}

void gw_usage_answer(struct gw_usage *u, const char *json, size_t len)
{
    struct json_val v;
    uint64_t prompt, completion = 0;
    if (json_find(json, len, "usage", &v) != 1 || v.type != JSON_T_OBJECT) return;
    if (!read_count(&v, "prompt_tokens", &prompt) && !read_count(&v, "input_tokens", &prompt))
        return;
    if (!read_count(&v, "completion_tokens", &completion))
        (void)read_count(&v, "output_tokens", &completion);
    u->known = true;
    u->prompt = prompt;
    u->completion = completion;
    u->has_cached = read_cached(&v, &u->cached);
}

/* "usage" as a key with an object; within strings its quotes are escaped, so it is not met there.
 * In most frames it is missing or null, which costs no parsing. */
static bool has_usage(const char *p, size_t len)
{
    static const char key[] = "\"usage\"";
    size_t n = sizeof key - 1;
    const char *end = p + len;
    while ((p = memmem(p, (size_t)(end - p), key, n))) {
        for (p += n; p < end && (*p == ':' || *p == ' ');)
            p++;
        if (p < end && *p == '{') return true;
    }
    return false;
}

void gw_usage_events(struct gw_usage *u, const char *data, size_t len)
{
    for (const char *p = data, *end = data + len, *next; p < end; p = next) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        next = nl ? nl + 1 : end;
        if ((size_t)(next - p) < 7 || memcmp(p, "data:", 5) != 0) continue;
        p += 5 + (p[5] == ' ');
        if (*p != '{') continue;
        u->n_events++;
        size_t n = (size_t)(next - p);
        if (has_usage(p, n)) gw_usage_answer(u, p, n);
    }
}

uint64_t gw_usage_estimate(uint64_t body_bytes)
{
    return body_bytes / BYTES_PER_TOKEN + 1;
}

uint64_t gw_usage_charge(const struct gw_usage *u, uint64_t prompt_estimate, bool stream,
                         uint64_t answer_bytes)
{
    if (u->known) return u->prompt + u->completion;
    return prompt_estimate + (stream ? u->n_events : answer_bytes / BYTES_PER_TOKEN);
}
