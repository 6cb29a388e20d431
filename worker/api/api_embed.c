#include "worker/api/api_embed.h"

#include "worker/api/api.h"

#include <string.h>

/* ---- in ---- */

/* What would change the vectors and is not built. */
static int refuse_fields(const json_t *root, struct api_err *e)
{
    static const char *const names[] = {"messages", "normalize", "prompt_name", "embed_dtype"};
    const json_t *cut = api_field(root, "truncate_prompt_tokens");

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (api_field(root, names[i]))
            return api_err_set(e, API_UNSUPPORTED_PARAMETER, names[i],
                               "Unsupported parameter: '%s' is not supported with embeddings.",
                               names[i]);
    if (cut && json_integer_value(cut) != -1)
        return api_err_set(e, API_UNSUPPORTED_PARAMETER, "truncate_prompt_tokens",
                           "Unsupported parameter: 'truncate_prompt_tokens' is supported as -1, "
                           "the model's own length, only.");
    return 0;
}

static int parse_options(struct api_embed *r, unsigned D, struct api_err *e)
{
    const json_t *format = api_field(r->root, "encoding_format"),
                 *dims = api_field(r->root, "dimensions"), *cut = api_field(r->root, "truncate"),
                 *model = api_field(r->root, "model"), *user = api_field(r->root, "user");
    const char *name = json_string_value(format);

    if (model && !json_is_string(model)) return api_wrong_type(e, "model", "a string");
    if (user && !json_is_string(user)) return api_wrong_type(e, "user", "a string");
    if (cut && !json_is_boolean(cut)) return api_wrong_type(e, "truncate", "a boolean");
    r->model = json_string_value(model);
    r->cut = json_is_true(cut) || api_field(r->root, "truncate_prompt_tokens");
    if (format && !name) return api_wrong_type(e, "encoding_format", "'float' or 'base64'");
    r->base64 = name && strcmp(name, "base64") == 0;
    if (name && !r->base64 && strcmp(name, "float") != 0)
        return api_err_set(e, API_INVALID_VALUE, "encoding_format",
                           "Invalid 'encoding_format': expected 'float' or 'base64', but got "
                           "'%.40s'.",
                           name);
    if (dims && !json_is_integer(dims)) return api_wrong_type(e, "dimensions", "an integer");
    if (dims && (json_integer_value(dims) < 1 || json_integer_value(dims) > D))
        return api_err_set(e, API_INVALID_VALUE, "dimensions",
                           "Invalid 'dimensions': this model's vectors have 1 to %u values.", D);
    r->dimensions = (unsigned)json_integer_value(dims);
    return 0;
}

/* i: the input's place in a list, -1: it is the only one. */
static int bad_input(struct api_err *e, enum api_fault f, long i, const char *why)
{
    char place[32] = "";

    if (i >= 0) (void)snprintf(place, sizeof place, "[%ld]", i);
    return api_err_set(e, f, "input", "Invalid 'input%s': %s.", place, why);
}

static int parse_ids(struct api_embed *r, const json_t *v, size_t n_vocab, long at,
                     struct api_input *in, struct api_err *e)
{
    const size_t n = json_array_size(v);
    int32_t *id = arena_alloc(&r->arena, (n + 1) * sizeof *id);

    if (!id) return api_no_memory(e);
    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_array_get(v, i);
        const json_int_t value = json_is_integer(x) ? json_integer_value(x) : -1;
        if (value < 0 || (size_t)value >= n_vocab)
            return bad_input(e, API_INVALID_VALUE, at,
                             "a list of token ids holds something that is no token of this model; "
                             "a client that has a tokenizer of its own must send texts");
        id[i] = (int32_t)value;
    }
    in->id = id;
    in->n_ids = n;
    return n ? 0 : bad_input(e, API_EMPTY_ARRAY, at, "a list of token ids must not be empty");
}

static int parse_one(struct api_embed *r, const json_t *v, size_t n_vocab, long at,
                     struct api_input *in, struct api_err *e)
{
    if (json_is_array(v)) return parse_ids(r, v, n_vocab, at, in, e);
    if (!api_string(v, &in->text, &in->len))
        return bad_input(e, API_INVALID_TYPE, at, "expected a string or a list of token ids");
    return in->len ? 0 : bad_input(e, API_INVALID_VALUE, at, "a text must not be empty");
}

static int parse_inputs(struct api_embed *r, size_t n_vocab, struct api_err *e)
{
    const json_t *v = api_field(r->root, "input");
    const bool many = json_is_array(v) && !json_is_integer(json_array_get(v, 0));

    if (!v) return api_missing(e, "input", "");
    r->n = many ? json_array_size(v) : 1;
    if (r->n == 0)
        return api_err_set(e, API_EMPTY_ARRAY, "input",
                           "Invalid 'input': the array must not be empty.");
    if (r->n > API_INPUTS_MAX)
        return api_err_set(e, API_ARRAY_TOO_LONG, "input",
                           "Invalid 'input': at most %d inputs are allowed, but got %zu.",
                           API_INPUTS_MAX, r->n);
    r->input = arena_alloc(&r->arena, r->n * sizeof *r->input);
    if (!r->input) return api_no_memory(e);
    for (size_t i = 0; i < r->n; i++) {
        int rc = parse_one(r, many ? json_array_get(v, i) : v, n_vocab, many ? (long)i : -1,
                           &r->input[i], e);
        if (rc < 0) return rc;
    }
    return 0;
}

int api_embed_parse(const char *body, size_t len, size_t n_vocab, unsigned D, struct api_embed *out,
                    struct api_err *e)
{
    memset(out, 0, sizeof *out);
    arena_init(&out->arena);
    int rc = api_load_object(body, len, &out->root, e);
    if (rc >= 0) rc = refuse_fields(out->root, e);
    if (rc >= 0) rc = parse_options(out, D, e);
    return rc < 0 ? rc : parse_inputs(out, n_vocab, e);
}

void api_embed_fini(struct api_embed *r)
{
    json_decref(r->root);
    arena_fini(&r->arena);
}

/* ---- out ---- */

/* Little-endian f32, as OpenAI's clients decode them. */
static void put_base64(struct buf *out, const float *v, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *s = (const unsigned char *)v;
    const size_t len = n * sizeof *v;

    buf_addc(out, '"');
    for (size_t i = 0; i < len; i += 3) {
        const size_t left = len - i;
        const unsigned w = (unsigned)s[i] << 16 | (left > 1 ? (unsigned)s[i + 1] << 8 : 0) |
                           (left > 2 ? s[i + 2] : 0u);
        const char four[] = {digits[w >> 18], digits[w >> 12 & 63],
                             left > 1 ? digits[w >> 6 & 63] : '=', left > 2 ? digits[w & 63] : '='};
        buf_add(out, four, sizeof four);
    }
    buf_addc(out, '"');
}

/* Nine digits give every f32 back. */
static void put_numbers(struct buf *out, const float *v, size_t n)
{
    buf_addc(out, '[');
    for (size_t i = 0; i < n; i++)
        buf_addf(out, "%s%.9g", i ? "," : "", (double)v[i]);
    buf_addc(out, ']');
}

void api_put_vectors(struct buf *out, const struct api_vectors *v)
{
    buf_adds(out, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < v->n; i++) {
        buf_addf(out, "%s{\"object\":\"embedding\",\"index\":%zu,\"embedding\":", i ? "," : "", i);
        (v->base64 ? put_base64 : put_numbers)(out, v->vec + i * v->stride, v->dimensions);
        buf_addc(out, '}');
    }
    buf_adds(out, "],\"model\":");
    buf_add_json_str(out, v->model, strlen(v->model));
    buf_addf(out, ",\"usage\":{\"prompt_tokens\":%llu,\"total_tokens\":%llu}}",
             (unsigned long long)v->n_tokens, (unsigned long long)v->n_tokens);
}
