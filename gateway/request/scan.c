/* The first step: base/jsonscan.h checks the whole body once and shows where the top-level values
 * are; nothing is copied but the model's name.
 *
 * The second step: the texts are unescaped once into one buffer, cut there, and the cuts carried
 * back to the body's bytes. A message of several content parts is their texts joined by "\n", as an
 * own worker joins them; each long part is a chunk by its sender's word. */
#include "gateway/request/scan.h"

#include "base/mem.h"
#include "gateway/request/fields.h"
#include "gateway/translate/translate.h"
#include "policy/fair.h"
#include "segment/segment.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    AFFINITY_BYTES_MAX = 1024, /* chosen: a system prompt and the beginning of a question */
    MESSAGES_MAX = 4096,
    PIECES_MAX = 1 << 16,
    PART_BYTES_MIN = 128, /* 32 tokens or so: the worker's least for a part, which it counts */
    CHUNK_BYTES_MIN = 64, /* 16 tokens or so: its least for what is called a chunk */
};

struct head {
    struct gw_scan *s;
    struct json_val model, stream, max_tokens, max_completion, cache_key, messages, prompt;
    struct json_val query, text_1, queries, documents, text_2, kvblend, salt;
    struct gw_field *fields; /* these */
    unsigned n_models;
};

/* Empty where the value is not there. */
static struct gw_scan_range range_of(const struct head *h, const struct json_val *v)
{
    return (struct gw_scan_range){v->p ? (size_t)(v->p - h->s->body) : 0, v->len};
}

static int on_head_field(void *ctx, const struct json_field *f)
{
    struct head *h = ctx;
    h->n_models += json_str_is(&f->key, "model");
    return gw_on_field(h->fields, f);
}

static int count_item(void *ctx, const struct json_val *v)
{
    ++*(uint64_t *)ctx;
    return 0;
}

/* Of a text for many: what it takes more than once. */
static uint64_t read_again(const struct json_val *text, const struct json_val *many)
{
    uint64_t n = 0;
    if (text->type == JSON_T_STRING && many->p) (void)json_each(many, count_item, &n);
    return n > 1 ? (n - 1) * text->len : 0;
}

/* A ranking's prompts are its documents, each with the query: a body of kilobytes may be a thousand
 * of them. Which of its names count the route says: the most never promises too little. */
static uint64_t prompt_bytes(const struct head *h)
{
    const uint64_t more[] = {read_again(&h->query, &h->documents),
                             read_again(&h->queries, &h->documents),
                             read_again(&h->text_1, &h->text_2)};
    uint64_t most = 0;
    for (size_t i = 0; i < sizeof more / sizeof *more; i++)
        if (more[i] > most) most = more[i];
    return h->s->len + most;
}

/* Which of the two counts is the route's to say: the larger never promises too little. */
static uint32_t token_limit(const struct head *h)
{
    int64_t n = 0, other = 0;
    (void)json_int_read(&h->max_completion, &n);
    (void)json_int_read(&h->max_tokens, &other);
    if (other > n) n = other;
    return n < 0 ? 0 : n > UINT32_MAX / 2 ? UINT32_MAX / 2 : (uint32_t)n;
}

static void refuse_body(struct gw_scan *s, enum gw_error e, const char *message)
{
    s->failed = true;
    s->error = e;
    (void)snprintf(s->message, sizeof s->message, "%s", message);
}

static void read_model(struct head *h)
{
    struct gw_scan *s = h->s;
    struct buf name = BUF_INIT;
    if (h->n_models > 1) { /* readers differ in which one counts: what is allowed must be sent */
        refuse_body(s, GW_E_INVALID_JSON, "The request body names its model more than once.");
    } else if (h->n_models == 0 || h->model.type != JSON_T_STRING) {
        if (h->n_models > 0 && h->model.type == JSON_T_NULL)
            s->model_value = range_of(h, &h->model);
        return; /* the backend will say what is wrong */
    } else if (json_str_plain(&h->model) && h->model.len - 2 < sizeof s->model) {
        memcpy(s->model, h->model.p + 1, h->model.len - 2);
        s->model[h->model.len - 2] = '\0';
        s->has_model = true;
        s->model_value = range_of(h, &h->model);
    } else if (json_scan(h->model.p, h->model.len, NULL, NULL) < 0) {
        refuse_body(s, GW_E_INVALID_JSON, "The model's name is no valid text.");
    } else if (json_str_read(&h->model, &name) == 0 && name.len < sizeof s->model &&
               !memchr(name.data ? name.data : "", '\0', name.len)) {
        memcpy(s->model, name.data ? name.data : "", name.len);
        s->model[name.len] = '\0';
        s->has_model = true;
        s->model_value = range_of(h, &h->model);
    } else {
        refuse_body(s, GW_E_UNKNOWN_MODEL, "The model name is too long.");
    }
    buf_fini(&name);
}

/* Behind the first message of role user, as far as the bytes reach: later turns of a conversation
 * begin with the same ones. A guess by the bytes alone; any answer is a good one. */
static size_t beginning(const char *p, size_t len)
{
    size_t n = len < AFFINITY_BYTES_MAX ? len : AFFINITY_BYTES_MAX, from = 0;
    unsigned depth = 0;
    bool in_text = false;
    for (size_t i = 0; i < n; i++) {
        if (in_text) { /* to its quote, which no odd number of backslashes precedes */
            const char *quote = memchr(p + i, '"', n - i);
            if (!quote) break;
            i = (size_t)(quote - p);
            size_t slashes = 0;
            while (p[i - 1 - slashes] == '\\')
                slashes++;
            in_text = slashes % 2 == 1;
            continue;
        }
        in_text = p[i] == '"';
        if (p[i] == '{' && depth++ == 0) from = i;
        if (p[i] == '}' && depth > 0 && --depth == 0 && memmem(p + from, i - from, "\"user\"", 6))
            return i + 1;
    }
    return n;
}

static uint64_t affinity_of(const struct head *h)
{
    if (h->cache_key.type == JSON_T_STRING && h->cache_key.len > 2)
        return seg_text_id("key", h->cache_key.p, h->cache_key.len);
    const struct json_val *v = h->messages.p ? &h->messages : h->prompt.p ? &h->prompt : NULL;
    if (!v || v->len <= 2) return 0;
    if (v->type == JSON_T_ARRAY && v == &h->messages)
        return seg_text_id("chat", v->p, beginning(v->p, v->len));
    size_t n = v->len - 1; /* a longer prompt goes on where the quote stands */
    return seg_text_id("text", v->p, n < AFFINITY_BYTES_MAX ? n : AFFINITY_BYTES_MAX);
}

/* The kvblend object: what the queue goes by, what it says of chunks, and what is refused here (a
 * worker would take no notice of a wrong priority). */
static void read_wishes(struct head *h)
{
    struct json_val strategy = {0}, ms = {0}, priority = {0}, segments = {0}, separator = {0};
    struct json_val space = {0}, mode = {0};
    struct gw_field fields[] = {{"strategy", &strategy},   {"max_ttft_ms", &ms},
                                {"priority", &priority},   {"segments", &segments},
                                {"separator", &separator}, {"namespace", &space},
                                {"mode", &mode},           {0}};
    struct gw_scan *s = h->s;
    int64_t n;
    double v;
    if (h->kvblend.type != JSON_T_OBJECT || gw_fields(&h->kvblend, fields) < 0) return;
    s->asks_map = json_str_is(&strategy, "map_reduce") || json_str_is(&strategy, "map_rerank");
    s->full = json_str_is(&mode, "full");
    s->said_segments = range_of(h, &segments);
    s->said_separator = range_of(h, &separator);
    s->said_space = range_of(h, &space);
    if (ms.p && json_double_read(&ms, &v) == 0 && v > 0) s->max_ttft_ms = v;
    if (!priority.p || priority.type == JSON_T_NULL) return;
    if (json_int_read(&priority, &n) < 0 || n < 0 || n >= POL_FAIR_CLASSES)
        refuse_body(s, GW_E_BAD_REQUEST,
                    "Invalid 'kvblend.priority': expected a whole number from 0 (first) to 9.");
    else
        s->priority = (unsigned)n;
}

void gw_scan_init(struct gw_scan *s, const char *body, size_t len, bool skim)
{
    memset(s, 0, offsetof(struct gw_scan, message));
    s->message[0] = s->model[0] = s->detector[0] = s->space[0] = '\0';
    s->body = body;
    s->len = s->prompt_bytes = len;
    s->skim = skim;
}

void gw_scan_head(struct gw_scan *s)
{
    struct head h = {.s = s};
    struct gw_field fields[] = {{"model", &h.model},
                                {"messages", &h.messages},
                                {"prompt", &h.prompt},
                                {"max_tokens", &h.max_tokens},
                                {"max_completion_tokens", &h.max_completion},
                                {"stream", &h.stream},
                                {"prompt_cache_key", &h.cache_key},
                                {"query", &h.query},
                                {"text_1", &h.text_1},
                                {"queries", &h.queries},
                                {"documents", &h.documents},
                                {"text_2", &h.text_2},
                                {"kvblend", &h.kvblend},
                                {"cache_salt", &h.salt},
                                {0}};
    h.fields = fields;
    struct json_fault fault = {0};
    int r = s->skim ? json_skim_object(s->body, s->len, on_head_field, &h, &fault)
                    : json_scan_object(s->body, s->len, on_head_field, &h, &fault);
    if (r < 0) {
        const char *why = fault.why ? fault.why : "malformed";
        s->failed = true;
        s->overflow = r == -EDOM;
        s->error = strstr(why, "UTF-8") ? GW_E_INVALID_UTF8 : GW_E_INVALID_JSON;
        (void)snprintf(s->message, sizeof s->message,
                       "The request body must be a JSON object: %s at byte %zu.", why, fault.at);
        return;
    }
    s->max_tokens = token_limit(&h);
    if (s->ranks) s->prompt_bytes = prompt_bytes(&h);
    if (h.stream.p && json_bool_read(&h.stream, &s->stream) < 0) s->stream = false;
    read_model(&h);
    if (!s->failed) read_wishes(&h);
    s->is_chat = h.messages.p != NULL;
    s->texts = range_of(&h, s->is_chat ? &h.messages : &h.prompt);
    s->documents = range_of(&h, s->ranks && !h.documents.p ? &h.text_2 : &h.documents);
    s->salt = range_of(&h, &h.salt);
    if (!s->lone) s->affinity = affinity_of(&h);
}

/* ---- the second step: texts ---- */

void gw_scan_fini(struct gw_scan *s)
{
    buf_fini(&s->segments);
    gw_asked_free(s->asked);
    s->asked = NULL;
    mem_free(s->chunk);
    s->chunk = NULL;
    s->n_chunks = 0;
}

struct piece { /* one JSON string of a text */
    uint32_t msg;
    struct json_val raw;
    size_t begin, end; /* in the message's text */
};
struct where { /* a text in `bytes`, with all its parts */
    size_t offset, len;
};
struct texts {
    struct buf bytes;      /* all texts, one after the other; borrowed by `text` once complete */
    struct seg_text *text; /* for the segmenter; len 0 where it has nothing to look for */
    struct where *where;
    size_t n, cap;
    struct piece *piece;
    size_t n_pieces, cap_pieces;
    struct seg_list marked; /* by the sender */
};

static int text_room(struct texts *t)
{
    if (t->n < t->cap) return 0;
    if (t->n >= MESSAGES_MAX) return -ERANGE;
    size_t cap = t->cap ? t->cap * 2 : 16;
    void *a = mem_realloc(t->text, cap * sizeof *t->text);
    if (a) t->text = a;
    void *b = a ? mem_realloc(t->where, cap * sizeof *t->where) : NULL;
    if (b) t->where = b;
    if (!b) return -ENOMEM;
    t->cap = cap;
    return 0;
}

static void texts_fini(struct texts *t)
{
    buf_fini(&t->bytes);
    seg_list_fini(&t->marked);
    mem_free(t->text);
    mem_free(t->where);
    mem_free(t->piece);
}

/* Append a string to the last text. */
static int add_piece(struct texts *t, const struct json_val *raw)
{
    if (t->n_pieces == t->cap_pieces) {
        size_t cap = t->cap_pieces ? 2 * t->cap_pieces : 16;
        struct piece *grown = cap > PIECES_MAX ? NULL : mem_realloc(t->piece, cap * sizeof *grown);
        if (!grown) return -ENOMEM;
        t->piece = grown;
        t->cap_pieces = cap;
    }
    struct where *w = &t->where[t->n - 1];
    size_t begin = t->bytes.len - w->offset;
    int r = json_str_read(raw, &t->bytes);
    w->len = t->bytes.len - w->offset;
    t->piece[t->n_pieces++] = (struct piece){(uint32_t)(t->n - 1), *raw, begin, w->len};
    return r;
}

static const char *role_of(const struct json_val *v)
{
    static const char *const roles[] = {"system",    "developer", "user",
                                        "assistant", "tool",      "function"};
    for (size_t i = 0; v->type == JSON_T_STRING && i < sizeof roles / sizeof roles[0]; i++)
        if (json_str_is(v, roles[i])) return roles[i];
    return "user";
}

/* ---- content parts ---- */

struct parts {
    struct texts *t;
    size_t n, n_texts;
    bool forced;
};

static int on_part(void *ctx, const struct json_val *v)
{
    struct parts *p = ctx;
    struct json_val type = {0}, text = *v, mark = {0};
    p->n++;
    (void)gw_fields(v,
                    (struct gw_field[]){{"type", &type}, {"text", &text}, {"segment", &mark}, {0}});
    bool other = !json_str_is(&type, "text") && !json_str_is(&type, "input_text");
    if (type.type == JSON_T_STRING && other) return 0;
    if (text.type != JSON_T_STRING) return 0; /* an object without a text among them */
    int r = p->n_texts++ > 0 ? buf_addc(&p->t->bytes, '\n') : 0;
    if (r == 0) r = add_piece(p->t, &text);
    if (r < 0) return r;
    const struct piece *x = &p->t->piece[p->t->n_pieces - 1];
    p->forced = json_str_is(&mark, "chunk");
    size_t least = p->forced ? CHUNK_BYTES_MIN : PART_BYTES_MIN;
    if (json_str_is(&mark, "glue") || x->end - x->begin < least) return 0;
    return seg_add(&p->t->marked, x->msg, x->begin, x->end, "parts");
}

/* A lone part that says nothing is a text like any other. */
static int read_parts(struct texts *t, const struct json_val *list, bool *ret_plain)
{
    struct parts p = {.t = t};
    size_t n_marked = t->marked.n;
    int r = json_each(list, on_part, &p);
    if (r < 0) return r;
    *ret_plain = p.n == 1 && p.n_texts == 1 && !p.forced;
    if (*ret_plain) t->marked.n = n_marked;
    return 0;
}

/* ---- messages, prompts, documents ---- */

static int text_begin(struct texts *t, const char *role)
{
    int r = text_room(t);
    if (r < 0) return r;
    t->text[t->n] = (struct seg_text){.role = role};
    t->where[t->n++] = (struct where){t->bytes.len, 0};
    return 0;
}

static int on_message(void *ctx, const struct json_val *v)
{
    struct texts *t = ctx;
    struct json_val role = {0}, content = {0};    /* type null: not there */
    if (v->type != JSON_T_OBJECT) return -EINVAL; /* the worker will say what is wrong */
    int r = gw_fields(v, (struct gw_field[]){{"role", &role}, {"content", &content}, {0}});
    if (r == 0) r = text_begin(t, role_of(&role));
    bool plain = content.type == JSON_T_STRING;
    if (r == 0 && plain) r = add_piece(t, &content);
    if (r == 0 && content.type == JSON_T_ARRAY) r = read_parts(t, &content, &plain);
    if (r == 0 && plain) t->text[t->n - 1].len = t->where[t->n - 1].len;
    return r;
}

static int on_prompt(void *ctx, const struct json_val *v)
{
    struct texts *t = ctx;
    if (v->type != JSON_T_STRING || t->n > 0) return -EINVAL; /* ids, or several prompts */
    int r = text_begin(t, "prompt");
    if (r == 0) r = add_piece(t, v);
    if (r == 0) t->text[0].len = t->where[0].len;
    return r;
}

static struct json_val value_at(const struct gw_scan *s, struct gw_scan_range at)
{
    struct json_val v = {s->body + at.at, at.len, JSON_T_NULL};
    if (at.len == 0) return v;
    v.type = *v.p == '"'   ? JSON_T_STRING
             : *v.p == '[' ? JSON_T_ARRAY
             : *v.p == '{' ? JSON_T_OBJECT
                           : JSON_T_NULL;
    return v;
}

static int read_texts(const struct gw_scan *s, struct texts *t)
{
    struct json_val v = value_at(s, s->texts);
    int r = v.type == JSON_T_STRING && !s->is_chat ? on_prompt(t, &v)
            : v.type == JSON_T_ARRAY ? json_each(&v, s->is_chat ? on_message : on_prompt, t)
                                     : -EINVAL;
    for (size_t i = 0; i < t->n; i++)
        t->text[i].text = t->bytes.data ? t->bytes.data + t->where[i].offset : "";
    return r;
}

/* "title\ntext", as an own worker renders it. */
static int document_text(const struct json_val *v, struct buf *out)
{
    static const char *const keys[] = {"text", "contents", "content"};
    struct json_val title = {0}, text = *v;
    if (v->type == JSON_T_OBJECT) {
        int found = 0;
        for (size_t i = 0; i < 3 && found != 1; i++)
            found = json_find(v->p, v->len, keys[i], &text);
        if (found != 1) return -EINVAL;
        (void)json_find(v->p, v->len, "title", &title);
    }
    size_t before = out->len;
    int r = title.type == JSON_T_STRING ? json_str_read(&title, out) : 0;
    if (r == 0 && out->len > before) r = buf_addc(out, '\n');
    return r < 0 ? r : json_str_read(&text, out); /* -EINVAL when it is no string */
}

/* ---- chunks ---- */

struct list {
    struct gw_scan *s;
    const char *ns; /* as the worker names it */
    struct buf text;
    size_t cap;
    int error;
};

static int add_chunk(struct list *l, struct gw_scan_chunk c)
{
    struct gw_scan *s = l->s;
    if (s->n_chunks == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 16;
        struct gw_scan_chunk *grown = mem_realloc(s->chunk, cap * sizeof *grown);
        if (!grown) return -ENOMEM;
        s->chunk = grown;
        l->cap = cap;
    }
    s->chunk[s->n_chunks++] = c;
    return 0;
}

static int on_document(void *ctx, const struct json_val *v)
{
    struct list *l = ctx;
    buf_clear(&l->text);
    int r = document_text(v, &l->text);
    if (r < 0 || l->text.len < CHUNK_BYTES_MIN) return r == -ENOMEM ? r : 0;
    size_t at = (size_t)(v->p - l->s->body);
    uint64_t (*id)(const char *, const char *, size_t) = l->s->ranks ? seg_ranked_id : seg_text_id;
    return add_chunk(l, (struct gw_scan_chunk){.msg = GW_SCAN_DOCUMENT,
                                               .end = (uint32_t)l->text.len,
                                               .body_begin = at,
                                               .body_end = at + v->len,
                                               .text_id = id(l->ns, l->text.data, l->text.len)});
}

/* Carry cuts to the body; in the order of the texts, so that every string is walked once. A cut
 * that spans parts, or splits a character, has no place there and is left to the worker. */
static int place_cuts(struct list *l, const struct texts *t, const struct seg_list *found)
{
    size_t p = 0, done = 0, at = 1; /* of the piece: unescaped bytes passed, place in it */
    for (size_t i = 0; i < found->n; i++) {
        const struct seg *g = &found->seg[i];
        for (; p < t->n_pieces; p++, done = 0, at = 1)
            if (t->piece[p].msg > g->msg ||
                (t->piece[p].msg == g->msg && t->piece[p].end > g->begin))
                break;
        if (p == t->n_pieces) return 0;
        const struct piece *x = &t->piece[p];
        if (x->msg != g->msg || g->begin < x->begin || g->end > x->end) continue;
        size_t begin = g->begin - x->begin, end = g->end - x->begin;
        if (begin < done) continue;
        size_t here = done += json_str_seek(&x->raw, &at, begin - done), raw = at;
        done += json_str_seek(&x->raw, &at, end > done ? end - done : 0);
        if (here != begin || done != end) continue;
        size_t base = (size_t)(x->raw.p - l->s->body);
        struct gw_scan_chunk c = {.msg = g->msg,
                                  .begin = g->begin,
                                  .end = g->end,
                                  .body_begin = base + raw,
                                  .body_end = base + at,
                                  .string_begin = base + 1,
                                  .string_end = base + x->raw.len - 1};
        c.text_id = seg_text_id(l->ns, t->bytes.data + t->where[g->msg].offset + g->begin,
                                g->end - g->begin);
        int r = add_chunk(l, c);
        if (r < 0) return r;
    }
    return 0;
}

static int by_place(const void *a, const void *b)
{
    const struct seg *x = a, *y = b;
    if (x->msg != y->msg) return x->msg < y->msg ? -1 : 1;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* ---- what the sender says ---- */

static int on_range(void *ctx, const struct json_val *v)
{
    struct texts *t = ctx;
    struct json_val x[3] = {{0}};
    int64_t n[3] = {0};
    if (v->type != JSON_T_OBJECT) return -EINVAL;
    if (gw_fields(
            v, (struct gw_field[]){{"message", &x[0]}, {"begin", &x[1]}, {"end", &x[2]}, {0}}) < 0)
        return -EINVAL;
    for (size_t i = 0; i < 3; i++)
        if (x[i].p ? json_int_read(&x[i], &n[i]) < 0 || n[i] < 0 : i > 0) return -EINVAL;
    if ((size_t)n[0] >= t->n || n[2] <= n[1] || (size_t)n[2] > t->where[n[0]].len) return -EINVAL;
    return seg_add(&t->marked, (uint32_t)n[0], (size_t)n[1], (size_t)n[2], "api");
}

/* As the worker names it. The caller's part holds no SEG_SPACE_INNER, so that no body reaches into
 * another's. False: no name to learn under. */
static bool space_of(const struct gw_scan *s, struct buf *ret)
{
    struct json_val own = value_at(s, s->said_space);
    if (own.type != JSON_T_STRING) own = value_at(s, s->salt);
    int r = buf_adds(ret, s->space);
    if (r == 0 && own.type == JSON_T_STRING && own.len > 2) {
        r = buf_addc(ret, SEG_SPACE_INNER);
        if (r == 0) r = json_str_read(&own, ret);
    }
    const char *name = r == 0 ? buf_cstr(ret) : NULL;
    return name && ret->len < GW_SCAN_SPACE_MAX && strlen(name) == ret->len;
}

/* Cuts of the gateway's own making into ret; *ret_ours: a worker does not know them. */
static int look_for_cuts(struct gw_scan *s, const struct texts *t, const char *space,
                         struct seg_list *ret, bool *ret_ours)
{
    struct seg_whys whys = {0};
    struct buf separator = BUF_INIT;
    struct json_val said = value_at(s, s->said_separator);
    struct seg_opts o = {
        .dry = s->dry, .whys = s->explain ? &whys : NULL, .separator = s->separator};
    int r = 0;
    if (space) {
        o.learner = s->learner;
        o.space = space;
    }
    if (s->given) {
        r = seg_parse(s->given, strlen(s->given), ret);
        return r == -ENOMEM ? r : 0; /* a hint, never a reason to fail */
    }
    if (said.type == JSON_T_STRING && said.len > 2) {
        r = json_str_read(&said, &separator);
        o.separator = buf_cstr(&separator);
    }
    if (r == 0 && (s->presets || o.separator)) r = seg_find(s->presets, &o, t->text, t->n, ret);
    if (r == 0 && s->explain && seg_whys_format(&whys, s->explain) < 0) buf_clear(s->explain);
    *ret_ours = !o.separator;
    seg_whys_fini(&whys);
    buf_fini(&separator);
    return r;
}

static int join_cuts(struct seg_list *all, const struct seg_list *more, const struct texts *t)
{
    int r = 0;
    for (size_t i = 0; i < more->n && r == 0; i++) {
        const struct seg *g = &more->seg[i];
        if (g->msg < t->n && g->end <= t->where[g->msg].len)
            r = seg_add(all, g->msg, g->begin, g->end, g->detector);
    }
    if (all->n) qsort(all->seg, all->n, sizeof *all->seg, by_place);
    return r;
}

static bool has_items(const struct json_val *v)
{
    return v->type == JSON_T_ARRAY && v->len > 2;
}

static int find_chunks(struct gw_scan *s, struct texts *t, struct list *l, const char *space)
{
    struct seg_list found = {0};
    struct json_val docs = value_at(s, s->documents);
    struct json_val said = value_at(s, s->said_segments);
    bool ours = false, marked = has_items(&said) || has_items(&docs);
    int r = s->ranks ? 0 : read_texts(s, t);
    if (r == 0 && has_items(&docs)) r = json_each(&docs, on_document, l);
    if (r == 0 && has_items(&said)) r = json_each(&said, on_range, t);
    if (r == 0 && !marked) r = look_for_cuts(s, t, space, &found, &ours);
    if (r == 0 && ours && found.n > 0) r = seg_format(&found, &s->segments);
    if (r == 0 && s->segments.len > GW_SCAN_HEADER_MAX) buf_clear(&s->segments);
    if (r == 0) r = join_cuts(&t->marked, &found, t);
    if (r == 0) r = place_cuts(l, t, &t->marked);
    if (r == 0 && s->n_chunks > 0)
        (void)snprintf(s->detector, sizeof s->detector, "%s",
                       t->marked.n > 0 ? t->marked.seg[0].detector : "documents");
    s->n_segments = (unsigned)s->n_chunks;
    seg_list_fini(&found);
    return r;
}

void gw_scan_chunks(struct gw_scan *s)
{
    struct texts t = {.bytes = BUF_INIT};
    struct buf space = BUF_INIT;
    if (s->full) return;
    bool learns = space_of(s, &space) && s->learner;
    struct list l = {.s = s, .ns = buf_cstr(&space), .text = BUF_INIT};
    if (find_chunks(s, &t, &l, learns ? buf_cstr(&space) : NULL) < 0) {
        gw_scan_fini(s);
        s->n_segments = 0;
    }
    buf_fini(&l.text);
    buf_fini(&space);
    texts_fini(&t);
}

void gw_scan_run(struct gw_scan *s)
{
    gw_scan_head(s);
    if (!s->failed && s->presets) gw_scan_chunks(s);
}
