/* Rerankers' clients agree on query, documents and top_n, and differ in all else: what changes the
 * scores is read or refused by name, the rest is ignored as by the other routes. */
#include "worker/api/api_rank.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- texts ---- */
static int is_empty(struct api_err *e, const char *field)
{
    return api_err_set(e, API_INVALID_VALUE, field, "Invalid '%s': it must not be empty.", field);
}

/* A string that is not empty; absent: NULL. */
static int read_text(const struct api_rank *q, const char *field, struct api_text *ret,
                     struct api_err *e)
{
    const json_t *v = api_field(q->r.root, field);

    if (!v) return 0;
    if (!api_string(v, &ret->text, &ret->len)) return api_wrong_type(e, field, "a string");
    return ret->len ? 0 : is_empty(e, field);
}

static int check_count(struct api_err *e, const char *field, size_t n)
{
    if (n == 0)
        return api_err_set(e, API_EMPTY_ARRAY, field,
                           "Invalid '%s': empty array. Expected an array with minimum length 1.",
                           field);
    if (n > API_PAIRS_MAX)
        return api_err_set(e, API_ARRAY_TOO_LONG, field,
                           "Invalid '%s': at most %d are allowed, but got %zu.", field,
                           API_PAIRS_MAX, n);
    return 0;
}

/* "title\ntext", as documents of a chat are rendered: it is the same text to the segmenter. */
static int take_document(struct api_rank *q, const struct api_doc *d, struct api_text *ret,
                         struct api_err *e)
{
    *ret = (struct api_text){d->text, d->len};
    if (!d->title) return 0;
    char *joined = arena_alloc(&q->r.arena, d->title_len + 1 + d->len + 1);
    if (!joined) return api_no_memory(e);
    memcpy(joined, d->title, d->title_len);
    joined[d->title_len] = '\n';
    memcpy(joined + d->title_len + 1, d->text, d->len);
    *ret = (struct api_text){joined, d->title_len + 1 + d->len};
    return 0;
}

static int make_pairs(struct api_rank *q, size_t n, struct api_err *e)
{
    q->n = n;
    q->query = arena_alloc(&q->r.arena, (n + 1) * sizeof *q->query);
    q->doc = arena_alloc(&q->r.arena, (n + 1) * sizeof *q->doc);
    return q->query && q->doc ? 0 : api_no_memory(e);
}

/* ---- /v1/rerank ---- */
/* Documents of several fields are ranked by all of what counts as their text, or not at all. */
static int refuse_unsupported(const struct api_rank *q, struct api_err *e)
{
    static const char *const names[] = {"rank_fields", "max_chunks_per_doc",
                                        "truncate_prompt_tokens", "mm_processor_kwargs"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (api_field(q->r.root, names[i]))
            return api_err_set(e, API_UNSUPPORTED_PARAMETER, names[i],
                               "Unsupported parameter: '%s' is not supported with this model.",
                               names[i]);
    return 0;
}

static int parse_documents(struct api_rank *q, struct api_err *e)
{
    struct api_text query = {0};
    int rc = read_text(q, "query", &query, e);

    q->query_field = "query";
    q->doc_field = "documents";
    if (rc >= 0 && !query.text) rc = api_missing(e, "query", "");
    if (rc >= 0) rc = api_parse_documents(&q->r, e);
    if (rc >= 0 && !q->r.doc) rc = api_missing(e, "documents", ", an array of texts");
    if (rc >= 0) rc = check_count(e, "documents", q->r.n_doc);
    if (rc >= 0) rc = make_pairs(q, q->r.n_doc, e);
    for (size_t i = 0; rc >= 0 && i < q->n; i++) {
        q->query[i] = query;
        rc = take_document(q, &q->r.doc[i], &q->doc[i], e);
    }
    return rc;
}

static int parse_rerank(struct api_rank *q, struct api_err *e)
{
    int32_t top_n = 0;
    int rc = parse_documents(q, e);

    if (rc >= 0) rc = api_read_int(q->r.root, "top_n", 1, &top_n, e);
    if (rc >= 0) rc = api_read_bool(q->r.root, "return_documents", &q->return_documents, e);
    q->top_n = top_n > 0 && (size_t)top_n < q->n ? (size_t)top_n : q->n;
    return rc;
}

/* ---- /v1/score ---- */
/* One side: a string, or several. *ret_n 0: the field is absent. */
static int read_side(struct api_rank *q, const char *field, struct api_text **ret, size_t *ret_n,
                     struct api_err *e)
{
    const json_t *v = api_field(q->r.root, field);
    const bool many = json_is_array(v);
    const size_t n = many ? json_array_size(v) : 1;

    if (!v) return 0;
    if (many && check_count(e, field, n) < 0) return -EINVAL;
    *ret = arena_alloc(&q->r.arena, n * sizeof **ret);
    if (!*ret) return api_no_memory(e);
    *ret_n = n;
    for (size_t i = 0; i < n; i++) {
        struct api_text *t = *ret + i;
        if (!api_string(many ? json_array_get(v, i) : v, &t->text, &t->len))
            return api_wrong_type(e, field, "a string or an array of strings");
    }
    return 0;
}

/* vLLM's names of the two sides, the older ones first. */
static int parse_score(struct api_rank *q, struct api_err *e)
{
    static const char *const fields[][2] = {{"text_1", "text_2"}, {"queries", "documents"}};
    struct api_text *side[2] = {NULL, NULL};
    size_t n[2] = {0, 0}, at = api_field(q->r.root, fields[0][0]) ? 0 : 1;
    const char *const *name = fields[at];
    int rc = 0;

    if (at == 1 && !api_field(q->r.root, name[0])) return api_missing(e, fields[0][0], "");
    for (int i = 0; rc >= 0 && i < 2; i++) {
        rc = read_side(q, name[i], &side[i], &n[i], e);
        if (rc >= 0 && n[i] == 0) rc = api_missing(e, name[i], "");
    }
    for (size_t i = 0; rc >= 0 && i < n[0]; i++)
        if (side[0][i].len == 0) rc = is_empty(e, name[0]);
    if (rc >= 0 && n[0] != 1 && n[0] != n[1])
        rc = api_err_set(e, API_INVALID_VALUE, name[1],
                         "Invalid '%s': %zu texts for %zu of '%s'; as many are expected, or one of "
                         "'%s' for all.",
                         name[1], n[1], n[0], name[0], name[0]);
    if (rc >= 0) rc = make_pairs(q, n[1], e);
    for (size_t i = 0; rc >= 0 && i < q->n; i++) {
        q->query[i] = side[0][n[0] == 1 ? 0 : i];
        q->doc[i] = side[1][i];
    }
    q->query_field = name[0];
    q->doc_field = name[1];
    q->top_n = q->n;
    return rc;
}

/* ---- both ---- */
int api_rank_parse(const char *body, size_t len, bool score, struct api_rank *out,
                   struct api_err *e)
{
    const json_t *model;
    int rc;

    memset(out, 0, sizeof *out);
    arena_init(&out->r.arena);
    out->score = score;
    rc = api_load_object(body, len, &out->r.root, e);
    if (rc < 0) return rc;
    model = api_field(out->r.root, "model");
    if (model && !json_is_string(model)) return api_wrong_type(e, "model", "a string");
    out->r.model = json_string_value(model);
    rc = refuse_unsupported(out, e);
    if (rc >= 0) rc = score ? parse_score(out, e) : parse_rerank(out, e);
    if (rc >= 0) rc = read_text(out, "instruction", &out->instruction, e);
    if (rc >= 0) rc = api_read_int(out->r.root, "max_tokens_per_doc", 1, &out->doc_tokens_max, e);
    if (rc >= 0) rc = api_read_bool(out->r.root, "truncation", &out->truncate, e);
    return rc < 0 ? rc : api_parse_kvblend(&out->r, e);
}

void api_rank_fini(struct api_rank *q)
{
    api_req_fini(&q->r);
}

/* ---- replies ---- */
struct ranked {
    size_t index;
    double score;
};

static int by_score(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;

    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return x->index < y->index ? -1 : 1;
}

static void put_result(struct buf *out, const struct api_rank *q, const struct ranked *r)
{
    if (q->score) {
        buf_addf(out, "{\"index\":%zu,\"object\":\"score\",\"score\":%.17g}", r->index, r->score);
        return;
    }
    buf_addf(out, "{\"index\":%zu,\"relevance_score\":%.17g", r->index, r->score);
    if (q->return_documents) {
        buf_adds(out, ",\"document\":{\"text\":");
        buf_add_json_str(out, q->doc[r->index].text, q->doc[r->index].len);
        buf_addc(out, '}');
    }
    buf_addc(out, '}');
}

int api_put_rank(struct buf *out, const struct api_rank *q, const struct api_rank_head *h,
                 const double *score, const struct api_usage *u, const struct buf *extra)
{
    struct ranked *r = mem_alloc((q->n + 1) * sizeof *r);

    if (!r) return -ENOMEM;
    for (size_t i = 0; i < q->n; i++)
        r[i] = (struct ranked){i, score[i]};
    if (!q->score) qsort(r, q->n, sizeof *r, by_score);
    buf_addf(out, "{\"id\":\"%s\"", h->id);
    if (q->score)
        buf_addf(out, ",\"object\":\"list\",\"created\":%lld", (long long)h->created);
    else /* Cohere's place for what usage says, too */
        buf_addf(out, ",\"meta\":{\"tokens\":{\"input_tokens\":%llu,\"output_tokens\":0}}",
                 (unsigned long long)u->prompt);
    buf_adds(out, ",\"model\":");
    buf_add_json_str(out, h->model, strlen(h->model));
    buf_addf(out, ",\"%s\":[", q->score ? "data" : "results");
    for (size_t i = 0; i < q->top_n; i++) {
        if (i) buf_addc(out, ',');
        put_result(out, q, &r[i]);
    }
    mem_free(r);
    api_put_end(out, u, extra);
    return buf_status(out);
}
