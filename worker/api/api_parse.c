/* Design: the body is parsed once into a jansson tree that stays alive with the request, so texts
 * are borrowed, not copied. Scalars go through one table (name, kind, bounds, place); everything
 * with a shape of its own has a function. */
#include "worker/api/api.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- scalars ---- */
enum kind { F_FLOAT, F_INT, F_INT_OR_FALSE, F_BOOL };
enum { ON_CHAT = 1, ON_TEXT = 2, ON_BOTH = 3 };
struct field {
    const char *name;
    enum kind kind;
    unsigned on;
    double min, max;
    size_t off; /* in api_req: a float, an int32_t or uint32_t, a bool */
};
#define V(m) offsetof(struct api_req, m)
/* Bounds: OpenAI's reference where it has the field, vLLM's otherwise. Of two that are written to
 * one place the later wins. */
static const struct field fields[] = {
    {"temperature", F_FLOAT, ON_BOTH, 0, 2, V(sampling.temperature)},
    {"top_p", F_FLOAT, ON_BOTH, 0, 1, V(sampling.top_p)},
    {"min_p", F_FLOAT, ON_BOTH, 0, 1, V(sampling.min_p)},
    {"top_k", F_INT, ON_BOTH, -1, 1e9, V(sampling.top_k)},
    {"presence_penalty", F_FLOAT, ON_BOTH, -2, 2, V(sampling.presence)},
    {"frequency_penalty", F_FLOAT, ON_BOTH, -2, 2, V(sampling.frequency)},
    {"repetition_penalty", F_FLOAT, ON_BOTH, 0.01, 10, V(sampling.repetition)},
    {"n", F_INT, ON_BOTH, 1, 128, V(n)},
    {"max_tokens", F_INT, ON_CHAT, 1, 1e9, V(max_tokens)},
    {"max_tokens", F_INT, ON_TEXT, 0, 1e9, V(max_tokens)},
    {"max_completion_tokens", F_INT, ON_CHAT, 1, 1e9, V(max_tokens)},
    {"min_tokens", F_INT, ON_BOTH, 0, 1e9, V(min_tokens)},
    {"best_of", F_INT, ON_TEXT, 1, 128, V(best_of)},
    {"logprobs", F_BOOL, ON_CHAT, 0, 1, V(logprobs)},
    {"logprobs", F_INT_OR_FALSE, ON_TEXT, 0, FUS_LOGPROBS_MAX, V(sampling.n_logprobs)},
    {"top_logprobs", F_INT, ON_CHAT, 0, FUS_LOGPROBS_MAX, V(sampling.n_logprobs)},
    {"stream", F_BOOL, ON_BOTH, 0, 1, V(stream)},
    {"return_progress", F_BOOL, ON_BOTH, 0, 1, V(progress)},
    {"echo", F_BOOL, ON_TEXT, 0, 1, V(echo)},
    {"ignore_eos", F_BOOL, ON_BOTH, 0, 1, V(ignore_eos)},
    {"add_generation_prompt", F_BOOL, ON_CHAT, 0, 1, V(add_generation_prompt)},
    {"continue_final_message", F_BOOL, ON_CHAT, 0, 1, V(continue_final)},
};
#undef V

static int wrong_type(struct api_err *e, const char *name, const char *want, const json_t *v)
{
    static const char *const types[] = {
        [JSON_OBJECT] = "an object",   [JSON_ARRAY] = "an array", [JSON_STRING] = "a string",
        [JSON_INTEGER] = "an integer", [JSON_REAL] = "a decimal", [JSON_TRUE] = "a boolean",
        [JSON_FALSE] = "a boolean",    [JSON_NULL] = "null"};

    return api_err_set(e, API_INVALID_TYPE, name,
                       "Invalid type for '%s': expected %s, but got %s instead.", name, want,
                       types[json_typeof(v)]);
}

static int read_scalar(const struct field *f, const json_t *v, void *to, struct api_err *e)
{
    static const enum api_fault codes[2][2] = {{API_INTEGER_TOO_SMALL, API_INTEGER_TOO_LARGE},
                                               {API_DECIMAL_TOO_SMALL, API_DECIMAL_TOO_LARGE}};
    const double x = json_number_value(v);
    const bool is_float = f->kind == F_FLOAT, above = x > f->max;

    if (f->kind == F_BOOL) {
        if (!json_is_boolean(v)) return wrong_type(e, f->name, "a boolean", v);
        *(bool *)to = json_is_true(v);
        return 0;
    }
    if (!json_is_number(v) || (!is_float && x != floor(x)))
        return wrong_type(e, f->name, is_float ? "a number" : "an integer", v);
    if (x < f->min || above)
        return api_err_set(e, codes[is_float][above], f->name,
                           "Invalid '%s': %s %s. Expected a value %s %g, but got %g instead.",
                           f->name, is_float ? "decimal" : "integer",
                           above ? "above maximum value" : "below minimum value",
                           above ? "<=" : ">=", above ? f->max : f->min, x);
    if (is_float)
        *(float *)to = (float)x;
    else
        *(int32_t *)to = (int32_t)x;
    return 0;
}

static int read_scalars(struct api_req *r, struct api_err *e)
{
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const struct field *f = &fields[i];
        const json_t *x = api_field(r->root, f->name);
        if (!(f->on & (r->chat ? ON_CHAT : ON_TEXT)) || !x) continue;
        if (f->kind == F_INT_OR_FALSE && json_is_false(x)) continue;
        int rc = read_scalar(f, x, (char *)r + f->off, e);
        if (rc < 0) return rc;
    }
    return 0;
}

static int read_one(const json_t *o, const struct field *f, void *to, struct api_err *e)
{
    const json_t *x = api_field(o, f->name);

    return x ? read_scalar(f, x, to, e) : 0;
}

int api_read_int(const json_t *o, const char *name, int32_t min, int32_t *ret, struct api_err *e)
{
    return read_one(o, &(struct field){name, F_INT, ON_BOTH, min, 1e9, 0}, ret, e);
}

int api_read_bool(const json_t *o, const char *name, bool *ret, struct api_err *e)
{
    return read_one(o, &(struct field){name, F_BOOL, ON_BOTH, 0, 1, 0}, ret, e);
}

/* ---- what is not built, refused by name ---- */
static int unsupported(struct api_err *e, const char *name, const char *why)
{
    return api_err_set(e, API_UNSUPPORTED_PARAMETER, name, "Unsupported parameter: '%s' %s.", name,
                       why);
}

static bool is_set(const json_t *v)
{
    if (!v || json_is_false(v)) return false;
    if (json_is_array(v)) return json_array_size(v) > 0;
    if (json_is_object(v)) return json_object_size(v) > 0;
    if (json_is_string(v)) return json_string_length(v) > 0;
    return true;
}

static bool is_text(const json_t *v, const char *text)
{
    return json_is_string(v) && strcmp(json_string_value(v), text) == 0;
}

static int refuse_unsupported(const struct api_req *r, struct api_err *e)
{
    static const char *const names[] = {"functions",
                                        "function_call",
                                        "audio",
                                        "prediction",
                                        "web_search_options",
                                        "chat_template",
                                        "suffix",
                                        "prompt_embeds",
                                        "use_beam_search",
                                        "prompt_logprobs",
                                        "guided_whitespace_pattern",
                                        "truncate_prompt_tokens"};
    const json_t *v;

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (is_set(api_field(r->root, names[i])))
            return unsupported(e, names[i], "is not supported with this model");
    v = json_object_get(r->root, "modalities");
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!is_text(json_array_get(v, i), "text"))
            return unsupported(e, "modalities", "supports 'text' only");
    return 0;
}

/* ---- fields with a shape of their own ---- */
static int parse_stop(struct api_req *r, const json_t *v, struct api_err *e)
{
    size_t n = json_is_array(v) ? json_array_size(v) : 1;

    if (!v) return 0;
    if (!json_is_string(v) && !json_is_array(v))
        return wrong_type(e, "stop", "a string or an array of strings", v);
    if (n > API_STOPS_MAX)
        return api_err_set(e, API_ARRAY_TOO_LONG, "stop",
                           "Invalid 'stop': at most %d stop sequences are allowed, but got %zu.",
                           API_STOPS_MAX, n);
    r->stop = arena_alloc(&r->arena, (n + 1) * sizeof *r->stop);
    r->stop_len = arena_alloc(&r->arena, (n + 1) * sizeof *r->stop_len);
    if (!r->stop || !r->stop_len) return api_no_memory(e);
    for (size_t i = 0; i < n; i++) {
        const json_t *s = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_string(s)) return wrong_type(e, "stop", "a string or an array of strings", s);
        if (json_string_length(s) == 0) continue; /* an empty stop would match everywhere */
        if (json_string_length(s) > API_STOP_BYTES_MAX)
            return api_err_set(e, API_STRING_TOO_LONG, "stop",
                               "Invalid 'stop': a stop sequence has at most %d bytes.",
                               API_STOP_BYTES_MAX);
        r->stop[r->n_stop] = json_string_value(s);
        r->stop_len[r->n_stop++] = json_string_length(s);
    }
    return 0;
}

static int parse_bias(struct api_req *r, const json_t *v, const struct api_limits *lim,
                      struct api_err *e)
{
    struct fus_bias *b;
    size_t n = 0;
    const char *key;
    json_t *val;

    if (!v) return 0;
    if (!json_is_object(v)) return wrong_type(e, "logit_bias", "an object", v);
    if (json_object_size(v) == 0) return 0;
    if (json_object_size(v) > API_BIAS_MAX)
        return api_err_set(e, API_OBJECT_TOO_LARGE, "logit_bias",
                           "Invalid 'logit_bias': at most %d entries are allowed.", API_BIAS_MAX);
    b = arena_alloc(&r->arena, json_object_size(v) * sizeof *b);
    if (!b) return api_no_memory(e);
    json_object_foreach((json_t *)v, key, val) {
        char *end;
        errno = 0;
        long long id = strtoll(key, &end, 10);
        if (errno || end == key || *end || id < 0 || (size_t)id >= lim->n_vocab)
            return api_err_set(e, API_INVALID_VALUE, "logit_bias",
                               "Invalid key in 'logit_bias': %.40s is not a token id of this model "
                               "(0 to %zu).",
                               key, lim->n_vocab ? lim->n_vocab - 1 : 0);
        if (!json_is_number(val) || fabs(json_number_value(val)) > 100)
            return api_err_set(
                e, API_INVALID_VALUE, "logit_bias",
                "Invalid value in 'logit_bias': expected a number from -100 to 100.");
        b[n++] = (struct fus_bias){(int32_t)id, (float)json_number_value(val)};
    }
    r->sampling.bias = b;
    r->sampling.n_bias = n;
    return 0;
}

/* An array of token ids into the arena; 1 when every element is an integer within the vocabulary.
 */
static int parse_ids(struct api_req *r, const json_t *v, const char *name,
                     const struct api_limits *lim, struct api_ids *ret, struct api_err *e)
{
    size_t n = json_array_size(v);
    int32_t *ids = arena_alloc(&r->arena, (n + 1) * sizeof *ids);

    if (!ids) return api_no_memory(e);
    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_array_get(v, i);
        if (!json_is_integer(x)) return wrong_type(e, name, "an array of token ids", x);
        json_int_t id = json_integer_value(x);
        if (id < 0 || (size_t)id >= lim->n_vocab)
            return api_err_set(e, API_INVALID_VALUE, name,
                               "Invalid token id %lld in '%s': the vocabulary has %zu tokens.",
                               (long long)id, name, lim->n_vocab);
        ids[i] = (int32_t)id;
    }
    *ret = (struct api_ids){ids, n};
    return 0;
}

static int parse_stop_ids(struct api_req *r, const struct api_limits *lim, struct api_err *e)
{
    const json_t *v = api_field(r->root, "stop_token_ids");

    if (!v) return 0;
    if (!json_is_array(v)) return wrong_type(e, "stop_token_ids", "an array of token ids", v);
    if (json_array_size(v) > API_STOP_IDS_MAX)
        return api_err_set(e, API_ARRAY_TOO_LONG, "stop_token_ids",
                           "Invalid 'stop_token_ids': at most %d ids are allowed.",
                           API_STOP_IDS_MAX);
    return parse_ids(r, v, "stop_token_ids", lim, &r->stop_ids, e);
}

static int parse_one_prompt(struct api_req *r, const json_t *v, struct api_msg *p,
                            const struct api_limits *lim, struct api_err *e)
{
    int rc;

    p->role = "prompt";
    if (api_string(v, &p->text, &p->len)) return 0;
    if (!json_is_array(v))
        return wrong_type(e, "prompt", "a string, an array of strings or token ids", v);
    rc = parse_ids(r, v, "prompt", lim, &p->ids, e);
    if (rc < 0) return rc;
    if (p->ids.n == 0)
        return api_err_set(e, API_EMPTY_ARRAY, "prompt",
                           "Invalid 'prompt': a list of token ids must not be empty.");
    return 0;
}

static int parse_prompts(struct api_req *r, const struct api_limits *lim, struct api_err *e)
{
    const json_t *v = api_field(r->root, "prompt");
    const bool many = json_is_array(v) && !json_is_integer(json_array_get(v, 0));

    if (!v) return api_missing(e, "prompt", "");
    r->n_msg = many ? json_array_size(v) : 1;
    if (r->n_msg == 0)
        return api_err_set(e, API_EMPTY_ARRAY, "prompt",
                           "Invalid 'prompt': the array must not be empty.");
    if (r->n_msg > API_PROMPTS_MAX)
        return api_err_set(e, API_ARRAY_TOO_LONG, "prompt",
                           "Invalid 'prompt': at most %d prompts are allowed, but got %zu.",
                           API_PROMPTS_MAX, r->n_msg);
    r->msg = arena_alloc(&r->arena, r->n_msg * sizeof *r->msg);
    if (!r->msg) return api_no_memory(e);
    for (size_t i = 0; i < r->n_msg; i++) {
        int rc = parse_one_prompt(r, many ? json_array_get(v, i) : v, &r->msg[i], lim, e);
        if (rc < 0) return rc;
    }
    return 0;
}

static int parse_stream_options(struct api_req *r, struct api_err *e)
{
    const json_t *so = api_field(r->root, "stream_options");
    const json_t *u = api_field(so, "include_usage");

    if (!so) return 0;
    if (!json_is_object(so)) return wrong_type(e, "stream_options", "an object", so);
    if (!r->stream)
        return api_err_set(e, API_INVALID_VALUE, "stream_options",
                           "The 'stream_options' parameter is only allowed when 'stream' is "
                           "enabled.");
    if (u && !json_is_boolean(u))
        return wrong_type(e, "stream_options.include_usage", "a boolean", u);
    r->include_usage = json_is_true(u);
    return 0;
}

static int parse_seed(struct api_req *r, struct api_err *e)
{
    const json_t *v = api_field(r->root, "seed");

    if (!v) return 0;
    if (!json_is_integer(v)) return wrong_type(e, "seed", "an integer", v);
    r->has_seed = true;
    r->sampling.seed = (uint64_t)json_integer_value(v);
    return 0;
}

static int parse_numbers(struct api_req *r, const struct api_limits *lim, struct api_err *e)
{
    struct fus_sampling *s = &r->sampling;
    int rc;

    r->n = 1;
    r->max_tokens = -1;
    r->add_generation_prompt = true;
    *s = (struct fus_sampling){.temperature = 1, .top_p = 1, .repetition = 1, .n_logprobs = -1};
    if ((rc = read_scalars(r, e)) < 0) return rc;
    if (r->continue_final && json_is_true(api_field(r->root, "add_generation_prompt")))
        return api_err_set(e, API_INVALID_VALUE, "continue_final_message",
                           "'continue_final_message' and 'add_generation_prompt' exclude each "
                           "other.");
    if (r->n > lim->n_max)
        return api_err_set(e, API_INTEGER_TOO_LARGE, "n",
                           "Invalid 'n': integer above maximum value. Expected a value <= %u, but "
                           "got %u instead.",
                           lim->n_max, r->n);
    if (r->best_of > r->n) return unsupported(e, "best_of", "must not be larger than 'n'");
    if (s->top_p == 0) { /* nothing but the likeliest token, as OpenAI answers it */
        s->top_p = 1;
        s->top_k = 1;
    }
    if (!r->chat) {
        r->logprobs = s->n_logprobs >= 0;
    } else if (r->logprobs) {
        if (s->n_logprobs < 0) s->n_logprobs = 0;
    } else {
        if (s->n_logprobs > 0)
            return api_err_set(e, API_INVALID_VALUE, "top_logprobs",
                               "The 'top_logprobs' parameter is only allowed when 'logprobs' is "
                               "enabled.");
        s->n_logprobs = -1;
    }
    if (r->echo && r->logprobs) return unsupported(e, "echo", "cannot be combined with 'logprobs'");
    return 0;
}

static int parse_content(struct api_req *r, const struct api_limits *lim, struct api_err *e)
{
    int rc = r->chat ? api_parse_messages(r, e) : parse_prompts(r, lim, e);

    if (rc >= 0 && r->chat) rc = api_check_answers(r, e);
    if (rc >= 0) rc = api_parse_documents(r, e);
    if (rc >= 0) rc = api_parse_kvblend(r, e);
    if (rc >= 0 && r->kv.order != API_ORDER_OPEN)
        rc = api_err_set(e, API_UNKNOWN_PARAMETER, "kvblend.order",
                         "Unknown parameter: 'kvblend.order' is of /v1/rerank and /v1/score only.");
    return rc;
}

int api_parse(const char *body, size_t len, bool chat, const struct api_limits *lim,
              struct api_req *out, struct api_err *e)
{
    const json_t *m;
    int rc;

    memset(out, 0, sizeof *out);
    arena_init(&out->arena);
    out->chat = chat;
    rc = api_load_object(body, len, &out->root, e);
    if (rc < 0) return rc;
    m = api_field(out->root, "model");
    if (m && !json_is_string(m)) return wrong_type(e, "model", "a string", m);
    out->model = json_string_value(m);
    if ((rc = refuse_unsupported(out, e)) < 0) return rc;
    if ((rc = parse_numbers(out, lim, e)) < 0) return rc;
    if ((rc = parse_seed(out, e)) < 0) return rc;
    if ((rc = parse_stream_options(out, e)) < 0) return rc;
    if ((rc = parse_stop(out, api_field(out->root, "stop"), e)) < 0) return rc;
    if ((rc = parse_bias(out, api_field(out->root, "logit_bias"), lim, e)) < 0) return rc;
    if ((rc = parse_stop_ids(out, lim, e)) < 0) return rc;
    if ((rc = api_parse_format(out, e)) < 0) return rc;
    if (chat && (rc = api_parse_tools(out, e)) < 0) return rc;
    return parse_content(out, lim, e);
}

void api_req_fini(struct api_req *r)
{
    arena_fini(&r->arena);
    json_decref(r->root);
    json_decref(r->format.own);
    r->root = r->format.own = NULL;
}
