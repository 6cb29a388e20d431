/* Design: the body is parsed once into a jansson tree that stays alive with the request, so texts
 * are borrowed, not copied. Scalars go through one table (name, kind, bounds, place); everything
 * with a shape of its own has a function. Nesting is checked before jansson sees the body, because
 * its parser recurses. */
#include "base/jsonscan.h"
#include "worker/api/api.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

int api_load_object(const char *body, size_t len, json_t **ret, struct api_err *e)
{
    json_error_t je;
    json_t *root;

    if (len == 0)
        return api_err_set(e, API_INVALID_JSON, NULL,
                           "The request body is empty; a JSON object is expected.");
    if (json_depth(body, len) > API_DEPTH_MAX)
        return api_err_set(e, API_INVALID_JSON, NULL,
                           "The request body is nested deeper than %d levels.", API_DEPTH_MAX);
    root = json_loadb(body, len, JSON_DECODE_ANY, &je);
    if (!root)
        return api_err_set(e, API_INVALID_JSON, NULL,
                           "The request body is not valid JSON: %s (line %d, column %d).", je.text,
                           je.line, je.column);
    if (!json_is_object(root)) {
        json_decref(root);
        return api_err_set(e, API_INVALID_JSON, NULL, "The request body must be a JSON object.");
    }
    *ret = root;
    return 0;
}

/* ---- scalars ---- */
enum kind { F_FLOAT, F_INT, F_BOOL };
enum { ON_CHAT = 1, ON_TEXT = 2, ON_BOTH = 3 };
struct values { /* what the table writes to */
    double temperature, top_p, min_p, presence, frequency, repetition;
    double top_k, n, max_tokens, max_completion, min_tokens, seed, best_of, top_logprobs;
    double stream, echo, ignore_eos, add_gen;
};
struct field {
    const char *name;
    enum kind kind;
    unsigned on;
    double min, max;
    size_t off;
};
#define V(m) offsetof(struct values, m)
/* Bounds: OpenAI's reference where it has the field, vLLM's otherwise. */
static const struct field fields[] = {
    {"temperature", F_FLOAT, ON_BOTH, 0, 2, V(temperature)},
    {"top_p", F_FLOAT, ON_BOTH, 0, 1, V(top_p)},
    {"min_p", F_FLOAT, ON_BOTH, 0, 1, V(min_p)},
    {"top_k", F_INT, ON_BOTH, -1, 1e9, V(top_k)},
    {"presence_penalty", F_FLOAT, ON_BOTH, -2, 2, V(presence)},
    {"frequency_penalty", F_FLOAT, ON_BOTH, -2, 2, V(frequency)},
    {"repetition_penalty", F_FLOAT, ON_BOTH, 0.01, 10, V(repetition)},
    {"n", F_INT, ON_BOTH, 1, 128, V(n)},
    {"max_tokens", F_INT, ON_CHAT, 1, 1e9, V(max_tokens)},
    {"max_tokens", F_INT, ON_TEXT, 0, 1e9, V(max_tokens)},
    {"max_completion_tokens", F_INT, ON_CHAT, 1, 1e9, V(max_completion)},
    {"min_tokens", F_INT, ON_BOTH, 0, 1e9, V(min_tokens)},
    {"best_of", F_INT, ON_TEXT, 1, 128, V(best_of)},
    {"top_logprobs", F_INT, ON_CHAT, 0, FUS_LOGPROBS_MAX, V(top_logprobs)},
    {"stream", F_BOOL, ON_BOTH, 0, 1, V(stream)},
    {"echo", F_BOOL, ON_TEXT, 0, 1, V(echo)},
    {"ignore_eos", F_BOOL, ON_BOTH, 0, 1, V(ignore_eos)},
    {"add_generation_prompt", F_BOOL, ON_CHAT, 0, 1, V(add_gen)},
};
#undef V

static const char *type_name(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a decimal";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    default:
        return "null";
    }
}

static int wrong_type(struct api_err *e, const char *name, const char *want, const json_t *v)
{
    return api_err_set(e, API_INVALID_TYPE, name,
                       "Invalid type for '%s': expected %s, but got %s instead.", name, want,
                       type_name(v));
}

static int read_scalar(const struct field *f, const json_t *v, double *ret, struct api_err *e)
{
    const char *what = f->kind == F_INT ? "integer" : "decimal";
    double x;

    if (f->kind == F_BOOL) {
        if (!json_is_boolean(v)) return wrong_type(e, f->name, "a boolean", v);
        *ret = json_is_true(v);
        return 0;
    }
    if (!json_is_number(v))
        return wrong_type(e, f->name, f->kind == F_INT ? "an integer" : "a number", v);
    x = json_number_value(v);
    if (f->kind == F_INT && x != floor(x)) return wrong_type(e, f->name, "an integer", v);
    if (x < f->min || x > f->max) {
        char code[40];
        static const enum api_fault codes[2][2] = {{API_INTEGER_TOO_SMALL, API_INTEGER_TOO_LARGE},
                                                   {API_DECIMAL_TOO_SMALL, API_DECIMAL_TOO_LARGE}};
        bool above = x > f->max;
        (void)snprintf(code, sizeof code, "%s %s", what, above ? "above maximum" : "below minimum");
        return api_err_set(e, codes[f->kind == F_FLOAT][above], f->name,
                           "Invalid '%s': %s value. Expected a value %s %g, but got %g instead.",
                           f->name, code, above ? "<=" : ">=", above ? f->max : f->min, x);
    }
    *ret = x;
    return 0;
}

static int read_scalars(struct api_req *r, struct values *v, struct api_err *e)
{
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const struct field *f = &fields[i];
        const json_t *x = json_object_get(r->root, f->name);
        if (!(f->on & (r->chat ? ON_CHAT : ON_TEXT)) || !x || json_is_null(x)) continue;
        int rc = read_scalar(f, x, (double *)(void *)((char *)v + f->off), e);
        if (rc < 0) return rc;
    }
    return 0;
}

/* ---- what is not built, refused by name ---- */
static int unsupported(struct api_err *e, const char *name, const char *why)
{
    return api_err_set(e, API_UNSUPPORTED_PARAMETER, name, "Unsupported parameter: '%s' %s.", name,
                       why);
}

static bool is_set(const json_t *v)
{
    if (!v || json_is_null(v) || json_is_false(v)) return false;
    if (json_is_array(v)) return json_array_size(v) > 0;
    if (json_is_object(v)) return json_object_size(v) > 0;
    if (json_is_string(v)) return json_string_length(v) > 0;
    return true;
}

static int refuse_unsupported(const struct api_req *r, struct api_err *e)
{
    static const char *const names[] = {"functions",
                                        "audio",
                                        "prediction",
                                        "web_search_options",
                                        "guided_json",
                                        "guided_regex",
                                        "guided_choice",
                                        "guided_grammar",
                                        "structured_outputs",
                                        "chat_template",
                                        "continue_final_message",
                                        "use_beam_search",
                                        "prompt_logprobs",
                                        "truncate_prompt_tokens",
                                        "suffix",
                                        "prompt_embeds"};
    const json_t *v, *tc;

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (is_set(json_object_get(r->root, names[i])))
            return unsupported(e, names[i], "is not supported with this model");
    v = json_object_get(r->root, "tools");
    tc = json_object_get(r->root, "tool_choice");
    if (is_set(v) && !(json_is_string(tc) && strcmp(json_string_value(tc), "none") == 0))
        return unsupported(e, "tools", "is not supported with this model");
    v = json_object_get(r->root, "response_format");
    if (is_set(v)) {
        const char *t = json_string_value(json_object_get(v, "type"));
        if (!t || strcmp(t, "text") != 0)
            return unsupported(e, "response_format", "supports the type 'text' only");
    }
    v = json_object_get(r->root, "modalities");
    if (json_is_array(v)) {
        for (size_t i = 0; i < json_array_size(v); i++) {
            const char *t = json_string_value(json_array_get(v, i));
            if (!t || strcmp(t, "text") != 0)
                return unsupported(e, "modalities", "supports 'text' only");
        }
    }
    return 0;
}

/* ---- fields with a shape of their own ---- */
static int parse_stop(struct api_req *r, const json_t *v, struct api_err *e)
{
    size_t n = json_is_array(v) ? json_array_size(v) : 1;

    if (!v || json_is_null(v)) return 0;
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

    if (!v || json_is_null(v)) return 0;
    if (!json_is_object(v)) return wrong_type(e, "logit_bias", "an object", v);
    if (json_object_size(v) == 0) return 0;
    if (json_object_size(v) > API_BIAS_MAX)
        return api_err_set(e, API_OBJECT_TOO_LARGE, "logit_bias",
                           "Invalid 'logit_bias': at most %d entries are allowed.", API_BIAS_MAX);
    b = arena_alloc(&r->arena, json_object_size(v) * sizeof *b);
    if (!b) return api_no_memory(e);
    json_object_foreach((json_t *)v, key, val)
    {
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
    const json_t *v = json_object_get(r->root, "stop_token_ids");

    if (!v || json_is_null(v)) return 0;
    if (!json_is_array(v)) return wrong_type(e, "stop_token_ids", "an array of token ids", v);
    if (json_array_size(v) > API_STOP_IDS_MAX)
        return api_err_set(e, API_ARRAY_TOO_LONG, "stop_token_ids",
                           "Invalid 'stop_token_ids': at most %d ids are allowed.",
                           API_STOP_IDS_MAX);
    return parse_ids(r, v, "stop_token_ids", lim, &r->stop_ids, e);
}

static int parse_one_prompt(struct api_req *r, const json_t *v, struct api_prompt *p,
                            const struct api_limits *lim, struct api_err *e)
{
    int rc;

    if (json_is_string(v)) {
        p->text = json_string_value(v);
        p->len = json_string_length(v);
        return 0;
    }
    rc = parse_ids(r, v, "prompt", lim, &p->ids, e);
    if (rc < 0) return rc;
    if (p->ids.n == 0)
        return api_err_set(e, API_EMPTY_ARRAY, "prompt",
                           "Invalid 'prompt': a list of token ids must not be empty.");
    return 0;
}

static int parse_prompts(struct api_req *r, const struct api_limits *lim, struct api_err *e)
{
    const json_t *v = json_object_get(r->root, "prompt");
    bool many = false;

    if (!v || json_is_null(v))
        return api_err_set(e, API_MISSING_PARAMETER, "prompt",
                           "Missing required parameter: 'prompt'.");
    if (!json_is_string(v) && !json_is_array(v))
        return wrong_type(e, "prompt", "a string, an array of strings or token ids", v);
    if (json_is_array(v)) {
        if (json_array_size(v) == 0)
            return api_err_set(e, API_EMPTY_ARRAY, "prompt",
                               "Invalid 'prompt': the array must not be empty.");
        many = !json_is_integer(json_array_get(v, 0));
    }
    r->n_prompt = many ? json_array_size(v) : 1;
    if (r->n_prompt > API_PROMPTS_MAX)
        return api_err_set(e, API_ARRAY_TOO_LONG, "prompt",
                           "Invalid 'prompt': at most %d prompts are allowed, but got %zu.",
                           API_PROMPTS_MAX, r->n_prompt);
    r->prompt = arena_alloc(&r->arena, r->n_prompt * sizeof *r->prompt);
    if (!r->prompt) return api_no_memory(e);
    for (size_t i = 0; i < r->n_prompt; i++) {
        const json_t *x = many ? json_array_get(v, i) : v;
        if (!json_is_string(x) && !json_is_array(x))
            return wrong_type(e, "prompt", "a string, an array of strings or token ids", x);
        int rc = parse_one_prompt(r, x, &r->prompt[i], lim, e);
        if (rc < 0) return rc;
    }
    return 0;
}

static int parse_logprobs(struct api_req *r, const struct values *v, struct api_err *e)
{
    const json_t *lp = json_object_get(r->root, "logprobs");
    static const struct field legacy = {"logprobs", F_INT, ON_TEXT, 0, FUS_LOGPROBS_MAX, 0};

    r->sampling.n_logprobs = -1;
    if (lp && !json_is_null(lp)) {
        if (r->chat) {
            if (!json_is_boolean(lp)) return wrong_type(e, "logprobs", "a boolean", lp);
            r->logprobs = json_is_true(lp);
            if (r->logprobs) r->sampling.n_logprobs = 0;
        } else if (!json_is_false(lp)) {
            double n;
            int rc = read_scalar(&legacy, lp, &n, e);
            if (rc < 0) return rc;
            r->logprobs = true;
            r->sampling.n_logprobs = (int)n;
        }
    }
    if (r->chat && v->top_logprobs >= 0) {
        if (!r->logprobs && v->top_logprobs > 0)
            return api_err_set(e, API_INVALID_VALUE, "top_logprobs",
                               "The 'top_logprobs' parameter is only allowed when 'logprobs' is "
                               "enabled.");
        if (r->logprobs) r->sampling.n_logprobs = (int)v->top_logprobs;
    }
    return 0;
}

static int parse_stream_options(struct api_req *r, struct api_err *e)
{
    const json_t *so = json_object_get(r->root, "stream_options");
    const json_t *u;

    if (!so || json_is_null(so)) return 0;
    if (!json_is_object(so)) return wrong_type(e, "stream_options", "an object", so);
    if (!r->stream)
        return api_err_set(e, API_INVALID_VALUE, "stream_options",
                           "The 'stream_options' parameter is only allowed when 'stream' is "
                           "enabled.");
    u = json_object_get(so, "include_usage");
    if (u && !json_is_null(u) && !json_is_boolean(u))
        return wrong_type(e, "stream_options.include_usage", "a boolean", u);
    r->include_usage = json_is_true(u);
    return 0;
}

static int parse_seed(struct api_req *r, struct api_err *e)
{
    const json_t *v = json_object_get(r->root, "seed");

    if (!v || json_is_null(v)) return 0;
    if (!json_is_integer(v)) return wrong_type(e, "seed", "an integer", v);
    r->has_seed = true;
    r->sampling.seed = (uint64_t)json_integer_value(v);
    return 0;
}

static int parse_numbers(struct api_req *r, const struct api_limits *lim, struct api_err *e)
{
    struct values v = {.temperature = 1,
                       .top_p = 1,
                       .repetition = 1,
                       .n = 1,
                       .max_tokens = -1,
                       .max_completion = -1,
                       .best_of = -1,
                       .top_logprobs = -1,
                       .add_gen = 1};
    int rc = read_scalars(r, &v, e);

    if (rc < 0) return rc;
    if (v.n > lim->n_max)
        return api_err_set(e, API_INTEGER_TOO_LARGE, "n",
                           "Invalid 'n': integer above maximum value. Expected a value <= %u, but "
                           "got %g instead.",
                           lim->n_max, v.n);
    if (v.best_of > v.n) return unsupported(e, "best_of", "must not be larger than 'n'");
    r->sampling = (struct fus_sampling){.temperature = (float)v.temperature,
                                        .top_p = (float)v.top_p,
                                        .min_p = (float)v.min_p,
                                        .top_k = (int32_t)v.top_k,
                                        .presence = (float)v.presence,
                                        .frequency = (float)v.frequency,
                                        .repetition = (float)v.repetition,
                                        .n_logprobs = -1};
    if (v.top_p == 0) { /* nothing but the likeliest token, as OpenAI answers it */
        r->sampling.top_p = 1;
        r->sampling.top_k = 1;
    }
    r->n = (unsigned)v.n;
    r->max_tokens = (int64_t)(v.max_completion >= 0 ? v.max_completion : v.max_tokens);
    r->min_tokens = (uint32_t)v.min_tokens;
    r->stream = v.stream != 0;
    r->echo = v.echo != 0;
    r->ignore_eos = v.ignore_eos != 0;
    r->add_generation_prompt = v.add_gen != 0;
    rc = parse_logprobs(r, &v, e);
    if (rc < 0) return rc;
    if (r->echo && r->logprobs) return unsupported(e, "echo", "cannot be combined with 'logprobs'");
    return 0;
}

static int parse_content(struct api_req *r, const struct api_limits *lim, struct api_err *e)
{
    const json_t *v;
    int rc;

    if (r->chat) {
        v = json_object_get(r->root, "messages");
        if (!v || json_is_null(v))
            return api_err_set(e, API_MISSING_PARAMETER, "messages",
                               "Missing required parameter: 'messages'.");
        rc = api_parse_messages(r, v, e);
    } else {
        rc = parse_prompts(r, lim, e);
    }
    if (rc < 0) return rc;
    rc = api_parse_documents(r, json_object_get(r->root, "documents"), e);
    if (rc < 0) return rc;
    return api_parse_kvblend(r, json_object_get(r->root, "kvblend"), e);
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
    m = json_object_get(out->root, "model");
    if (m && !json_is_null(m) && !json_is_string(m)) return wrong_type(e, "model", "a string", m);
    out->model = json_string_value(m);
    if ((rc = refuse_unsupported(out, e)) < 0) return rc;
    if ((rc = parse_numbers(out, lim, e)) < 0) return rc;
    if ((rc = parse_seed(out, e)) < 0) return rc;
    if ((rc = parse_stream_options(out, e)) < 0) return rc;
    if ((rc = parse_stop(out, json_object_get(out->root, "stop"), e)) < 0) return rc;
    if ((rc = parse_bias(out, json_object_get(out->root, "logit_bias"), lim, e)) < 0) return rc;
    if ((rc = parse_stop_ids(out, lim, e)) < 0) return rc;
    return parse_content(out, lim, e);
}

void api_req_fini(struct api_req *r)
{
    arena_fini(&r->arena);
    if (r->root) json_decref(r->root);
    r->root = NULL;
}
