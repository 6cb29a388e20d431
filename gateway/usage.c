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

/* The object that is the value of "usage". */
static void read_usage(struct gw_usage *u, const char *p, size_t len)
{
    struct counts c = {0}, d = {0};
    uint64_t prompt, completion = 0;
    if (json_scan_object(p, len, on_count, &c, NULL) < 0 || !read_count(&c.prompt, &prompt)) return;
    (void)read_count(&c.completion, &completion);
    u->known = true;
    u->prompt = prompt;
    u->completion = completion;
    if (c.details.type == JSON_T_OBJECT)
        (void)json_scan_object(c.details.p, c.details.len, on_count, &d, NULL);
    u->has_cached = read_count(c.details.type == JSON_T_OBJECT ? &d.cached : &c.cached, &u->cached);
}

/* Where the object that starts at p ends, NULL when it does not. */
static const char *object_end(const char *p, const char *end)
{
    unsigned depth = 0;
    bool in_str = false;
    for (; p < end; p++) {
        if (in_str) {
            if (*p == '\\' && p + 1 < end)
                p++;
            else if (*p == '"')
                in_str = false;
        } else if (*p == '"') {
            in_str = true;
        } else if (*p == '{') {
            depth++;
        } else if (*p == '}' && --depth == 0) {
            return p + 1;
        }
    }
    return NULL;
}

/* The last object that stands behind the key: within strings its quotes are escaped, so it is not
 * met there. Looked for, not parsed for: an answer is long, its usage is not. */
void gw_usage_answer(struct gw_usage *u, const char *json, size_t len)
{
    static const char key[] = "\"usage\"";
    const char *p = json, *end = json + len, *object = NULL;
    while ((p = memmem(p, (size_t)(end - p), key, sizeof key - 1))) {
        for (p += sizeof key - 1; p < end && strchr(": \t\r\n", *p) && *p;)
            p++;
        if (p < end && *p == '{') object = p;
    }
    const char *stop = object ? object_end(object, end) : NULL;
    if (stop) read_usage(u, object, (size_t)(stop - object));
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
