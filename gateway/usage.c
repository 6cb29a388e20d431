#include "gateway/usage.h"

#include "base/jsonscan.h"

#include <stddef.h>
#include <string.h>

enum { BYTES_PER_TOKEN = 4 };

struct counts {
    struct json_val prompt, completion, cached, details;
};

static int on_count(void *ctx, const struct json_field *f)
{
    static const struct {
        const char *name;
        size_t offset;
    } names[] = {{"prompt_tokens", offsetof(struct counts, prompt)},
                 {"input_tokens", offsetof(struct counts, prompt)},
                 {"completion_tokens", offsetof(struct counts, completion)},
                 {"output_tokens", offsetof(struct counts, completion)},
                 {"cached_tokens", offsetof(struct counts, cached)},
                 {"cache_read_input_tokens", offsetof(struct counts, cached)},
                 {"prompt_tokens_details", offsetof(struct counts, details)},
                 {"input_tokens_details", offsetof(struct counts, details)}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (json_str_is(&f->key, names[i].name))
            *(struct json_val *)(void *)((char *)ctx + names[i].offset) = f->val;
    return 0;
}

static bool read_count(const struct json_val *v, uint64_t *ret)
{
    int64_t n;
    if (v->type != JSON_T_NUMBER || json_int_read(v, &n) < 0 || n < 0) return false;
    *ret = n > GW_USAGE_MAX ? GW_USAGE_MAX : (uint64_t)n;
    return true;
}

/* The text begins with the object that is the value of "usage". */
static void read_usage(struct gw_usage *u, const char *p, size_t len)
{
    struct counts c = {0}, d = {0};
    uint64_t prompt, completion = 0;
    if (json_scan_object_at(p, len, on_count, &c) < 0 || !read_count(&c.prompt, &prompt)) return;
    (void)read_count(&c.completion, &completion);
    u->known = true;
    u->prompt = prompt;
    u->completion = completion;
    if (c.details.type == JSON_T_OBJECT)
        (void)json_scan_object(c.details.p, c.details.len, on_count, &d, NULL);
    u->has_cached = read_count(c.details.type == JSON_T_OBJECT ? &d.cached : &c.cached, &u->cached);
}

/* The last object that stands behind the key: within strings its quotes are escaped, so it is not
 * met there. Looked for from the end, where it stands as a rule, by the key's rarest letter. */
static const char *last_usage(const char *json, const char *end)
{
    static const char key[] = "\"usage\"";
    enum { BEFORE = 4, BEHIND = sizeof key - 1 - BEFORE }; /* of its g */
    for (const char *g = end; (g = memrchr(json, 'g', (size_t)(g - json)));) {
        if (g - json < BEFORE || end - g < BEHIND || memcmp(g - BEFORE, key, sizeof key - 1) != 0)
            continue;
        const char *p = g + BEHIND;
        while (p < end && (*p == ':' || *p == ' ' || *p == '\t' || *p == '\r' || *p == '\n'))
            p++;
        if (p < end && *p == '{') return p;
    }
    return NULL;
}

void gw_usage_answer(struct gw_usage *u, const char *json, size_t len)
{
    const char *end = json + len, *object = last_usage(json, end);
    if (object) read_usage(u, object, (size_t)(end - object));
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
        gw_usage_answer(u, p, (size_t)(next - p));
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
