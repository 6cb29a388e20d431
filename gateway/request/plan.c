/* Where the chunks of a text stand, everything from the first to the last gives way: markers and
 * separators between chunks are of no use around a single one. The rest of the application's prompt
 * stays, so an answer from one chunk obeys the same instructions as an answer from all. */
#include "gateway/request/plan.h"

#include "base/jsonscan.h"
#include "base/mem.h"
#include "gateway/request/splice.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { SCORE_TOKENS = 16 }; /* room for the score behind an answer of the client's length */

static const char map_prompt[] =
    "Below are a question and one text of several that may help to answer it.\n\nQuestion:\n"
    "{question}\n\nText:\n{text}\n\nSummarise what the text says that helps to answer the "
    "question. "
    "Use only what the text says, and keep names, numbers and dates. If nothing in it helps, "
    "write: "
    "Nothing relevant.";
static const char reduce_prompt[] = "Summary of a text:\n{text}";
static const char rerank_prompt[] =
    "\n\nUse only the text given above. After your answer add one more line, \"Score: N\", where N "
    "is "
    "a whole number from 0 to 100: how completely and certainly the text above answers this. If it "
    "does not answer it, N is 0.";

struct gw_plan {
    const struct gw_scan *s;
    enum gw_strategy kind;
    struct gw_prompts prompts;
    json_t *root;
    size_t *chunk; /* of the scan */
    size_t n;
    size_t question_msg;
    bool wants_usage;
};

/* ---- the request's texts ---- */

/* The string value that part of a message's content is; NULL: no text. */
static json_t *part_text(json_t *part)
{
    json_t *t = json_is_object(part) ? json_object_get(part, "text") : part;
    const char *type = json_string_value(json_object_get(part, "type"));
    bool text = !type || strcmp(type, "text") == 0 || strcmp(type, "input_text") == 0;
    return text && json_is_string(t) ? t : NULL;
}

static json_t *content_of(const struct gw_plan *p, json_t *root, size_t msg)
{
    if (p->s->is_chat)
        return json_object_get(json_array_get(json_object_get(root, "messages"), msg), "content");
    return json_object_get(root, "prompt");
}

static size_t last_user(const struct gw_plan *p)
{
    json_t *messages = json_object_get(p->root, "messages");
    for (size_t i = json_array_size(messages); i-- > 0;) {
        const char *role = json_string_value(json_object_get(json_array_get(messages, i), "role"));
        if (role && strcmp(role, "user") == 0) return i;
    }
    return 0;
}

/* Which chunks of message msg lie within bytes [begin, end) of its text: [*from, *to). */
static void chunks_within(const struct gw_plan *p, size_t msg, size_t begin, size_t end,
                          size_t *from, size_t *to)
{
    *from = 0;
    while (*from < p->n) {
        const struct gw_scan_chunk *c = &p->s->chunk[p->chunk[*from]];
        if (c->msg == msg && c->begin >= begin && c->end <= end) break;
        ++*from;
    }
    for (*to = *from; *to < p->n; ++*to) {
        const struct gw_scan_chunk *c = &p->s->chunk[p->chunk[*to]];
        if (c->msg != msg || c->begin < begin || c->end > end) break;
    }
}

/* One string of a text, which starts at byte `at` of it, with chunk `keep` alone (or none). */
static int keep_one(const struct gw_plan *p, size_t msg, const json_t *v, size_t at, size_t keep,
                    struct buf *out)
{
    const char *text = json_string_value(v);
    size_t len = json_string_length(v), from, to;
    chunks_within(p, msg, at, at + len, &from, &to);
    if (from == to) return buf_add(out, text, len);
    const struct gw_scan_chunk *c = p->s->chunk;
    const struct gw_scan_chunk *first = &c[p->chunk[from]], *last = &c[p->chunk[to - 1]];
    int r = buf_add(out, text, first->begin - at);
    if (r == 0 && keep >= from && keep < to) {
        const struct gw_scan_chunk *k = &c[p->chunk[keep]];
        r = buf_add(out, text + (k->begin - at), k->end - k->begin);
    }
    return r < 0 ? r : buf_add(out, text + (last->end - at), len - (last->end - at));
}

static int set_string(json_t *v, const struct buf *b)
{
    return json_string_setn(v, b->data ? b->data : "", b->len) < 0 ? -ENOMEM : 0;
}

/* A message's content (or the prompt) with chunk `keep` alone; `more` behind its last text. */
static int cut_content(const struct gw_plan *p, size_t msg, json_t *content, size_t keep,
                       const char *more)
{
    struct buf b = BUF_INIT;
    json_t *last = NULL;
    size_t at = 0, n = json_is_array(content) ? json_array_size(content) : 1;
    int r = 0;
    for (size_t i = 0; i < n && r == 0; i++) {
        json_t *part = json_is_array(content) ? json_array_get(content, i) : content;
        json_t *t = json_is_array(content) ? part_text(part) : part;
        if (!json_is_string(t)) continue;
        size_t len = json_string_length(t);
        buf_clear(&b);
        r = keep_one(p, msg, t, at, keep, &b);
        at += len + 1; /* parts are joined by a line break */
        if (r == 0) r = set_string(t, &b);
        last = t;
    }
    if (r == 0 && more && last) {
        buf_clear(&b);
        r = buf_add(&b, json_string_value(last), json_string_length(last));
        if (r == 0) r = buf_adds(&b, more);
        if (r == 0) r = set_string(last, &b);
    }
    buf_fini(&b);
    return r;
}

/* The question: the last user message without its chunks. */
static int add_question(const struct gw_plan *p, struct buf *out)
{
    json_t *copy = json_deep_copy(content_of(p, p->root, p->question_msg));
    int r = copy ? cut_content(p, p->question_msg, copy, SIZE_MAX, NULL) : -ENOMEM;
    size_t n = json_is_array(copy) ? json_array_size(copy) : 1, before = out->len;
    for (size_t i = 0; i < n && r == 0; i++) {
        json_t *t = json_is_array(copy) ? part_text(json_array_get(copy, i)) : copy;
        if (!json_is_string(t)) continue;
        if (out->len > before) r = buf_addc(out, '\n');
        if (r == 0) r = buf_add(out, json_string_value(t), json_string_length(t));
    }
    json_decref(copy);
    return r;
}

/* ---- life ---- */

/* A part of its own at the end of the last user message is the question, however long. */
static bool is_question(const struct gw_plan *p, const struct gw_scan_chunk *c)
{
    json_t *content = content_of(p, p->root, p->question_msg);
    size_t n = json_array_size(content), end = 0;
    if (c->msg != p->question_msg || n < 2) return false;
    for (size_t i = 0; i < n; i++) {
        json_t *t = part_text(json_array_get(content, i));
        if (t) end += json_string_length(t) + (end > 0);
    }
    return c->end >= end;
}

static const char *refusal(const struct gw_plan *p)
{
    static const struct {
        const char *key, *why;
        bool rerank_only;
    } rules[] = {
        {"n", "n > 1 cannot be had with this strategy", false},
        {"best_of", "best_of > 1 cannot be had with this strategy", false},
        {"tools", "tools cannot be had with map_rerank", true},
        {"functions", "functions cannot be had with map_rerank", true},
        {"response_format", "response_format cannot be had with map_rerank", true},
        {"logprobs", "logprobs cannot be had with map_rerank", true},
        {"echo", "echo cannot be had with map_rerank", true},
    };
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        const json_t *v = json_object_get(p->root, rules[i].key);
        if (rules[i].rerank_only && p->kind != GW_STRATEGY_MAP_RERANK) continue;
        bool one = json_is_integer(v) && json_integer_value(v) <= (i < 2);
        const char *type = json_string_value(json_object_get(v, "type"));
        bool empty = json_is_array(v) && json_array_size(v) == 0;
        if (!v || json_is_null(v) || json_is_false(v) || one || empty) continue;
        if (type && strcmp(type, "text") == 0) continue;
        return rules[i].why;
    }
    return p->n > GW_PLAN_CHUNKS_MAX ? "more than 256 chunks: too many calls" : NULL;
}

int gw_plan_create(const struct gw_scan *s, enum gw_strategy kind, const struct gw_prompts *prompts,
                   struct gw_plan **ret, const char **ret_why)
{
    struct gw_plan *p = mem_zalloc(sizeof *p);
    *ret_why = "out of memory";
    if (!p) return -ENOMEM;
    *p = (struct gw_plan){.s = s, .kind = kind, .prompts = *prompts};
    if (!p->prompts.map) p->prompts.map = map_prompt;
    if (!p->prompts.reduce) p->prompts.reduce = reduce_prompt;
    if (!p->prompts.rerank) p->prompts.rerank = rerank_prompt;
    json_error_t fault;
    p->root = json_loadb(s->body, s->len, JSON_ALLOW_NUL, &fault);
    p->chunk = mem_alloc((s->n_chunks + 1) * sizeof *p->chunk);
    bool large = !p->root && json_error_code(&fault) == json_error_numeric_overflow;
    if (!p->chunk || (!p->root && !large)) goto fail;
    p->question_msg = s->is_chat ? last_user(p) : 0;
    for (size_t i = 0; i < s->n_chunks; i++)
        if (!is_question(p, &s->chunk[i])) p->chunk[p->n++] = i;
    p->wants_usage =
        json_is_true(json_object_get(json_object_get(p->root, "stream_options"), "include_usage"));
    const char *why = large ? "the body holds a number that is too large" : refusal(p);
    if (why) {
        *ret_why = why;
        gw_plan_free(p);
        return -EBADMSG;
    }
    *ret = p;
    return 0;
fail:
    gw_plan_free(p);
    return -ENOMEM;
}

void gw_plan_free(struct gw_plan *p)
{
    if (!p) return;
    json_decref(p->root);
    mem_free(p->chunk);
    mem_free(p);
}

size_t gw_plan_count(const struct gw_plan *p)
{
    return p->n;
}

bool gw_plan_wants_usage(const struct gw_plan *p)
{
    return p->wants_usage;
}

/* ---- sub-requests ---- */

static int fill(const char *prompt, const struct buf *question, const struct buf *text,
                struct buf *out)
{
    int r = 0;
    for (const char *p = prompt; *p && r == 0;) {
        size_t n = strcspn(p, "{");
        r = buf_add(out, p, n);
        p += n;
        bool q = strncmp(p, "{question}", 10) == 0, t = strncmp(p, "{text}", 6) == 0;
        if (r == 0 && q) r = buf_add(out, question->data, question->len);
        if (r == 0 && t) r = buf_add(out, text->data, text->len);
        if (r == 0 && *p && !q && !t) r = buf_addc(out, *p);
        p += q ? 10 : t ? 6 : *p != '\0';
    }
    return r;
}

int gw_plan_bytes(const struct gw_plan *p, size_t *ret_call, size_t *ret_chunks)
{
    struct buf question = BUF_INIT;
    size_t chunks = 0;
    bool map = p->kind == GW_STRATEGY_MAP_REDUCE;
    for (size_t i = 0; i < p->n; i++)
        chunks += p->s->chunk[p->chunk[i]].body_end - p->s->chunk[p->chunk[i]].body_begin;
    int r = map ? add_question(p, &question) : 0;
    if (r == 0) {
        *ret_chunks = chunks;
        *ret_call = map ? strlen(p->prompts.map) + question.len
                        : strlen(p->prompts.rerank) + p->s->len - chunks;
    }
    buf_fini(&question);
    return r;
}

/* The client's settings without what shapes its answer. */
static json_t *settings(const struct gw_plan *p, bool texts)
{
    static const char *const drop[] = {"stream",
                                       "stream_options",
                                       "n",
                                       "best_of",
                                       "tools",
                                       "tool_choice",
                                       "parallel_tool_calls",
                                       "functions",
                                       "function_call",
                                       "response_format",
                                       "logprobs",
                                       "top_logprobs",
                                       "echo",
                                       "suffix",
                                       "prediction",
                                       "modalities",
                                       "audio",
                                       "store",
                                       "metadata",
                                       "prompt_cache_key",
                                       "min_tokens",
                                       "guided_json",
                                       "guided_regex",
                                       "guided_choice",
                                       "guided_grammar",
                                       "structured_outputs"};
    json_t *o = texts ? json_deep_copy(p->root) : json_copy(p->root);
    for (size_t i = 0; o && i < sizeof drop / sizeof drop[0]; i++)
        (void)json_object_del(o, drop[i]);
    json_t *kv = json_copy(json_object_get(o, "kvblend"));
    if (json_is_object(kv)) { /* without what is ours, and what speaks of other texts */
        (void)json_object_del(kv, "strategy");
        (void)json_object_del(kv, "segments");
        (void)json_object_set_new(o, "kvblend", kv);
    } else {
        json_decref(kv);
    }
    const json_t *t = json_object_get(o, "temperature");
    if (!t || json_is_null(t)) (void)json_object_set_new(o, "temperature", json_integer(0));
    return o;
}

/* The limit under the name that the client used: some models know one of them only. */
static const char *limit_name(const json_t *o)
{
    return json_is_integer(json_object_get(o, "max_completion_tokens")) ? "max_completion_tokens"
                                                                        : "max_tokens";
}

static int map_call(const struct gw_plan *p, size_t i, struct buf *out)
{
    struct buf question = BUF_INIT, text = BUF_INIT, prompt = BUF_INIT;
    json_t *o = settings(p, false);
    int r = o ? add_question(p, &question) : -ENOMEM;
    if (r == 0) r = gw_scan_text(p->s, &p->s->chunk[p->chunk[i]], &text);
    if (r == 0) r = fill(p->prompts.map, &question, &text, &prompt);
    if (r == 0) {
        json_t *v = json_stringn(prompt.data ? prompt.data : "", prompt.len);
        (void)json_object_del(o, "documents");
        (void)json_object_del(o, "stop"); /* a summary has other ends than an answer */
        (void)json_object_set_new(o, limit_name(o), json_integer(p->prompts.map_tokens));
        if (p->s->is_chat)
            (void)json_object_set_new(o, "messages",
                                      json_pack("[{s:s,s:o}]", "role", "user", "content", v));
        else
            (void)json_object_set_new(o, "prompt", v);
        r = gw_plan_dump(o, out);
    }
    json_decref(o);
    buf_fini(&question);
    buf_fini(&text);
    buf_fini(&prompt);
    return r;
}

/* `documents` with the kept one alone, or none at all. */
static void cut_documents(const struct gw_plan *p, json_t *o, size_t keep)
{
    const struct gw_scan_chunk *c = &p->s->chunk[p->chunk[keep]];
    if (!json_object_get(o, "documents")) return;
    (void)json_object_del(o, "documents");
    if (c->msg != GW_SCAN_DOCUMENT) return;
    json_t *doc = json_loadb(p->s->body + c->body_begin, c->body_end - c->body_begin,
                             JSON_ALLOW_NUL | JSON_DECODE_ANY, NULL);
    (void)json_object_set_new(o, "documents", json_pack("[o]", doc));
}

static int rerank_call(const struct gw_plan *p, size_t i, struct buf *out)
{
    json_t *o = settings(p, true);
    size_t n = p->s->is_chat ? json_array_size(json_object_get(o, "messages")) : 1;
    int r = o ? 0 : -ENOMEM;
    if (r == 0) cut_documents(p, o, i);
    for (size_t m = 0; m < n && r == 0; m++) {
        json_t *content = content_of(p, o, m);
        if (content)
            r = cut_content(p, m, content, i, m == p->question_msg ? p->prompts.rerank : NULL);
    }
    const json_t *max = json_object_get(o, limit_name(o));
    if (r == 0 && json_is_integer(max))
        (void)json_object_set_new(o, limit_name(o),
                                  json_integer(json_integer_value(max) + SCORE_TOKENS));
    if (r == 0) r = gw_plan_dump(o, out);
    json_decref(o);
    return r;
}

int gw_plan_call(const struct gw_plan *p, size_t i, struct buf *out)
{
    return p->kind == GW_STRATEGY_MAP_REDUCE ? map_call(p, i, out) : rerank_call(p, i, out);
}

/* ---- the reduce request ---- */

static int by_place(const void *a, const void *b)
{
    const struct gw_edit *x = a, *y = b;
    return x->at < y->at ? -1 : x->at > y->at;
}

static int splice(const char *body, size_t len, struct gw_edit *edit, size_t n, struct buf *out)
{
    struct iovec *v = mem_alloc((2 * n + 1) * sizeof *v);
    size_t n_pieces, sum;
    if (n) qsort(edit, n, sizeof *edit, by_place);
    int r = v ? gw_splice(body, len, edit, n, v, &n_pieces, &sum) : -ENOMEM;
    for (size_t i = 0; r == 0 && i < n_pieces; i++)
        r = buf_add(out, v[i].iov_base, v[i].iov_len);
    mem_free(v);
    return r;
}

static void edit_value(struct gw_edit *edit, size_t *n, const char *body, const struct json_val *v,
                       const char *text)
{
    edit[(*n)++] = (struct gw_edit){(size_t)(v->p - body), v->len, text, strlen(text)};
}

/* The strategy, which no worker knows, and ranges of texts that are others now. */
static size_t edit_kvblend(const struct gw_scan *s, bool ranges, struct gw_edit *edit)
{
    struct json_val v;
    size_t n = 0;
    const char *kv = s->body + s->kvblend.at;
    if (s->strategy_value.len)
        edit[n++] = (struct gw_edit){s->strategy_value.at, s->strategy_value.len, "null", 4};
    if (ranges && s->kvblend.len && json_find(kv, s->kvblend.len, "segments", &v) == 1)
        edit_value(edit, &n, s->body, &v, "null");
    return n;
}

/* The bytes of a chunk's text in the body, inside a string. */
static struct gw_edit place_of(const struct gw_scan *s, const struct gw_scan_chunk *c)
{
    static const char *const keys[] = {"text", "contents", "content"};
    struct gw_edit e = {.at = c->body_begin, .cut = c->body_end - c->body_begin};
    if (c->msg != GW_SCAN_DOCUMENT) return e;
    struct json_val v = {s->body + e.at, e.cut, JSON_T_STRING};
    for (size_t i = 0, found = 0; *v.p == '{' && i < 3 && !found; i++)
        found = json_find(s->body + e.at, e.cut, keys[i], &v) == 1;
    return (struct gw_edit){.at = (size_t)(v.p - s->body) + 1, .cut = v.len - 2};
}

int gw_plan_reduce(const struct gw_plan *p, const struct buf *summary, struct buf *out)
{
    const struct gw_scan *s = p->s;
    struct gw_edit *edit = mem_zalloc((p->n + 2) * sizeof *edit);
    struct buf *text = mem_zalloc((p->n + 1) * sizeof *text), plain = BUF_INIT, none = BUF_INIT;
    size_t n = edit ? edit_kvblend(s, true, edit) : 0;
    int r = edit && text ? 0 : -ENOMEM;
    for (size_t i = 0; i < p->n && r == 0; i++) {
        struct gw_edit e = place_of(s, &s->chunk[p->chunk[i]]);
        buf_clear(&plain);
        if (summary[i].data) r = fill(p->prompts.reduce, &none, &summary[i], &plain);
        if (r == 0) r = buf_add_json_str(&text[i], plain.data ? plain.data : "", plain.len);
        if (r < 0) break;
        e.text = text[i].data + 1; /* without its quotes */
        e.len = text[i].len - 2;
        edit[n++] = e;
    }
    if (r == 0) r = splice(s->body, s->len, edit, n, out);
    for (size_t i = 0; text && i < p->n; i++)
        buf_fini(&text[i]);
    buf_fini(&plain);
    mem_free(text);
    mem_free(edit);
    return r;
}

int gw_plan_plain(const struct gw_scan *s, struct buf *out)
{
    struct gw_edit edit[2];
    return splice(s->body, s->len, edit, edit_kvblend(s, false, edit), out);
}
