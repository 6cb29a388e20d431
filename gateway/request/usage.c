#include "gateway/request/usage.h"

#include "gateway/request/fields.h"

#include <errno.h>
#include <string.h>

enum { BYTES_PER_TOKEN = 4 };

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
    struct json_val prompt = {0}, completion = {0}, cached = {0}, details = {0}, of_details = {0};
    struct gw_field counts[] = {{"prompt_tokens", &prompt},
                                {"input_tokens", &prompt},
                                {"completion_tokens", &completion},
                                {"output_tokens", &completion},
                                {"cached_tokens", &cached},
                                {"cache_read_input_tokens", &cached},
                                {"prompt_tokens_details", &details},
                                {"input_tokens_details", &details},
                                {0}};
    struct gw_field detail[] = {
        {"cached_tokens", &of_details}, {"cache_read_input_tokens", &of_details}, {0}};
    uint64_t n_prompt, n_completion = 0;
    if (json_scan_object_at(p, len, gw_on_field, counts) < 0 || !read_count(&prompt, &n_prompt))
        return;
    (void)read_count(&completion, &n_completion);
    u->known = true;
    u->prompt = n_prompt;
    u->completion = n_completion;
    (void)gw_fields(&details, detail);
    u->has_cached = read_count(details.type == JSON_T_OBJECT ? &of_details : &cached, &u->cached);
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

/* The next line of data, *p moved behind it; NULL: there is none. */
static const char *next_data(const char **p, const char *end, size_t *ret_len)
{
    while (*p < end) {
        const char *line = *p, *nl = memchr(line, '\n', (size_t)(end - line));
        *p = nl ? nl + 1 : end;
        if ((size_t)(*p - line) < 7 || memcmp(line, "data:", 5) != 0) continue;
        line += 5 + (line[5] == ' ');
        *ret_len = (size_t)(*p - line);
        return line;
    }
    return NULL;
}

void gw_usage_events(struct gw_usage *u, const char *data, size_t len)
{
    size_t n;
    for (const char *p = data, *json; (json = next_data(&p, data + len, &n));) {
        if (*json != '{') continue;
        u->n_events++;
        gw_usage_answer(u, json, n);
    }
}

/* ---- what events bring ---- */

static bool is_empty(const struct json_val *v)
{
    return v->type == JSON_T_NULL || (v->len == 2 && v->type != JSON_T_NUMBER); /* "", [], {} */
}

static int in_delta(void *ctx, const struct json_field *f)
{
    return is_empty(&f->val) || json_str_is(&f->key, "role") ? 0 : -ENOENT;
}

static int in_choice(void *ctx, const struct json_field *f)
{
    if (json_str_is(&f->key, "delta") && f->val.type == JSON_T_OBJECT)
        return json_scan_object(f->val.p, f->val.len, in_delta, NULL, NULL);
    return is_empty(&f->val) || json_str_is(&f->key, "index") ? 0 : -ENOENT;
}

static int on_choice(void *ctx, const struct json_val *v)
{
    return v->type == JSON_T_OBJECT ? json_scan_object(v->p, v->len, in_choice, NULL, NULL)
                                    : -ENOENT;
}

enum gw_bring gw_usage_bring(const char *data, size_t len)
{
    enum gw_bring r = GW_BRING_NOTHING;
    struct json_val choices, progress;
    size_t n;
    for (const char *p = data, *json; (json = next_data(&p, data + len, &n));) {
        if (json_find(json, n, "choices", &choices) != 1 || choices.type != JSON_T_ARRAY ||
            json_each(&choices, on_choice, NULL) < 0)
            return GW_BRING_TOKEN;
        if (json_find(json, n, "prompt_progress", &progress) == 1)
            r = GW_BRING_PROGRESS;
        else if (r == GW_BRING_NOTHING)
            r = GW_BRING_OPENING;
    }
    return r;
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
