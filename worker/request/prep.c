/* From a parsed request to tokens and chunks.
 *
 * The whole templated prompt is tokenised once; every wish for a cut is a byte range of a message's
 * text, carried through the template by its spans and then to whole tokens. A token that straddles
 * a cut is glue. Nothing here ever changes what the model reads: segmentation decides reuse only.
 * Documents are rendered in front of the last user message's own text (or of the prompt). */
#include "worker/reuse/control.h"

#include "base/assert.h"

#include <stdio.h>
#include <string.h>

/* ---- effective settings ---- */
int wk_mode_of(const struct worker *w, const struct api_req *r, const struct wk_hints *h,
               struct wk_mode *ret, struct api_err *e)
{
    const struct api_kvblend *k = &r->kv;

    memset(ret, 0, sizeof *ret);
    ret->mode = k->mode;
    if (k->mode == POL_AUTO && h->mode && !api_mode_parse(h->mode, &ret->mode))
        return api_err_set(e, API_INVALID_VALUE, "X-KVBlend-Mode",
                           "Invalid header 'X-KVBlend-Mode': expected auto, full, prefix, reuse or "
                           "blend.");
    const bool leaves = !pol_strategy_runs(ret->mode) && k->strategy != POL_AUTO;
    ret->wish = leaves ? k->strategy : ret->mode;
    ret->ratio = k->ratio;
    ret->min_ratio = k->min_ratio;
    ret->max_ttft_ms = k->max_ttft_ms;
    ret->store = k->store;
    ret->separator = k->separator ? k->separator : h->separator;
    if (wk_ns_join(ret->ns, sizeof ret->ns, h->ns, k->ns) < 0)
        return api_err_set(e, API_STRING_TOO_LONG, "kvblend.namespace",
                           "Invalid 'kvblend.namespace': at most %zu bytes.", sizeof ret->ns - 2);
    wk_names_note(w->names, ret->ns);
    return 0;
}

/* ---- token ranges ---- */
uint32_t wk_map_range(const struct tok_ids *ids, size_t begin, size_t end, uint32_t *ret_tok0)
{
    size_t lo = 0, hi = ids->n, first;

    while (lo < hi) { /* first token that begins at or after `begin` and is not empty before it */
        size_t mid = lo + (hi - lo) / 2;
        if (ids->begin[mid] < begin)
            lo = mid + 1;
        else
            hi = mid;
    }
    while (lo < ids->n && ids->begin[lo] == ids->end[lo])
        lo++; /* BOS has no bytes */
    first = lo;
    while (lo < ids->n && ids->end[lo] <= end)
        lo++;
    *ret_tok0 = (uint32_t)first;
    return (uint32_t)(lo - first);
}

/* ---- wishes: byte ranges of the texts as sent ---- */
struct wish {
    uint32_t msg;
    size_t begin, end;           /* bytes of the message with documents in front */
    size_t sent_begin, sent_end; /* as sent */
    const char *detector;
    uint32_t tokens_min;
    uint64_t text_id; /* of documents, whose text stands nowhere as sent; else 0 */
};
struct wishes {
    struct wish *w;
    size_t n, cap;
};

static int wish_add(struct wishes *l, struct wish x)
{
    if (x.end <= x.begin) return 0;
    for (size_t i = 0; i < l->n; i++) /* who came first wins */
        if (l->w[i].msg == x.msg && l->w[i].begin < x.end && x.begin < l->w[i].end) return 0;
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 32;
        struct wish *n = mem_realloc(l->w, cap * sizeof *n);
        if (!n) return -ENOMEM;
        l->w = n;
        l->cap = cap;
    }
    l->w[l->n++] = x;
    return 0;
}

static size_t last_user(const struct api_req *r)
{
    for (size_t i = r->n_msg; i-- > 0;)
        if (strcmp(r->msg[i].role, "user") == 0) return i;
    return r->n_msg - 1;
}

/* Default renderer: "title\ntext\n\n" each. */
static int render_documents(const struct api_req *r, uint32_t msg, const char *ns, struct buf *out,
                            struct wishes *l)
{
    for (size_t i = 0; i < r->n_doc; i++) {
        const struct api_doc *d = &r->doc[i];
        size_t begin = out->len;
        if (d->title) {
            buf_add(out, d->title, d->title_len);
            buf_addc(out, '\n');
        }
        buf_add(out, d->text, d->len);
        if (buf_status(out) < 0) return -ENOMEM;
        uint64_t id = seg_text_id(ns, out->data + begin, out->len - begin);
        struct wish whole = {
            msg, begin, out->len, begin, out->len, "documents", WK_CHUNK_TOKENS_MIN, id};
        if (wish_add(l, whole) < 0 || buf_adds(out, "\n\n") < 0) return -ENOMEM;
    }
    return 0;
}

static int wish_parts(const struct api_req *r, size_t msg, size_t shift, struct wishes *l)
{
    const struct api_msg *m = &r->msg[msg];

    for (size_t i = 0; i < m->n_part; i++) {
        const struct api_part *p = &m->part[i];
        bool forced = p->kind == API_PART_CHUNK;
        if (p->kind == API_PART_GLUE || (m->n_part < 2 && !forced)) continue;
        int rc = wish_add(l, (struct wish){(uint32_t)msg, p->begin + shift, p->end + shift,
                                           p->begin, p->end, "parts",
                                           forced ? WK_CHUNK_TOKENS_MIN : WK_PART_TOKENS_MIN});
        if (rc < 0) return rc;
    }
    return 0;
}

static int wish_list(const struct seg_list *s, const size_t *len, size_t n_text, size_t shift_msg,
                     size_t shift, struct wishes *l)
{
    for (size_t i = 0; i < s->n; i++) {
        const struct seg *g = &s->seg[i];
        size_t d = g->msg == shift_msg ? shift : 0;
        if (g->msg >= n_text || g->end > len[g->msg] || g->end <= g->begin) continue;
        int rc =
            wish_add(l, (struct wish){g->msg, g->begin + d, g->end + d, g->begin, g->end,
                                      g->detector ? g->detector : "gateway", WK_CHUNK_TOKENS_MIN});
        if (rc < 0) return rc;
    }
    return 0;
}

/* Detector names of a parsed list may belong to the list: keep them alive through this table. */
static const char *known_detector(const char *name)
{
    static const char *const names[] = {"parts",  "documents", "api",    "separator",
                                        "blocks", "preset",    "learned"};

    for (size_t i = 0; name && i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0) return names[i];
    return NULL;
}

struct sent { /* the texts as the segmenter sees them */
    struct seg_text *text;
    size_t *len;
    size_t n;
};

static int wish_found(const struct worker *w, const struct wk_hints *h, const struct wk_mode *m,
                      const struct sent *t, size_t shift_msg, size_t shift, struct arena *names,
                      struct wishes *l)
{
    struct seg_list s = {0};
    int rc = 0;

    if (h->segments) {
        rc = seg_parse(h->segments, strlen(h->segments), &s);
        if (rc == -EINVAL || rc == -EBADMSG) rc = 0, s.n = 0; /* a hint, never a reason to fail */
    } else if (l->n == 0) {
        struct seg_opts so = {.separator = m->separator,
                              .learner = w->learner,
                              .space = m->ns,
                              .dry = m->whys != NULL,
                              .whys = m->whys};
        rc = seg_find(w->presets, &so, t->text, t->n, &s);
    }
    for (size_t i = 0; rc >= 0 && i < s.n; i++) {
        const char *d = s.seg[i].detector;
        const char *k = known_detector(d);
        if (!k && d) k = arena_strndup(names, d, strlen(d));
        s.seg[i].detector = k ? k : "gateway";
    }
    if (rc >= 0) rc = wish_list(&s, t->len, t->n, shift_msg, shift, l);
    seg_list_fini(&s);
    return rc < 0 ? rc : 0;
}

static int wish_order(const void *a, const void *b)
{
    const struct wish *x = a, *y = b;

    if (x->msg != y->msg) return x->msg < y->msg ? -1 : 1;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* Bytes of the prompt where a wish landed; false when the template did not keep it in one piece. */
static bool through_template(const struct chat_out *c, const struct wish *x, size_t *ret_begin,
                             size_t *ret_end)
{
    for (size_t i = 0; i < c->n_spans; i++) {
        const struct chat_span *s = &c->spans[i];
        size_t b = x->begin > s->src ? x->begin : s->src;
        size_t e = x->end < s->src + s->len ? x->end : s->src + s->len;
        if (s->msg != x->msg || b >= e) continue;
        *ret_begin = s->dst + (b - s->src);
        *ret_end = s->dst + (e - s->src);
        return true; /* the part that lies in this span: trimmed ends are not in the prompt */
    }
    return false;
}

/* The bytes that the gateway sees, too. */
static uint64_t text_id_of(const struct api_req *r, size_t prompt, const struct wk_mode *m,
                           const struct wish *x)
{
    const char *text = r->chat ? r->msg[x->msg].text : r->prompt[prompt].text;
    size_t len = r->chat ? r->msg[x->msg].len : r->prompt[prompt].len;

    if (x->text_id || !text || x->sent_end > len) return x->text_id;
    return seg_text_id(m->ns, text + x->sent_begin, x->sent_end - x->sent_begin);
}

static int cuts_of(struct wk_prompt *p, struct wishes *l, const struct wk_mode *m,
                   const struct worker *w, const struct api_req *r, size_t prompt)

{
    uint32_t after = 0, chunk_max = w->ctx_max > 1 ? w->ctx_max - 1 : 1;

    if (l->n) qsort(l->w, l->n, sizeof *l->w, wish_order);
    p->cut = mem_zalloc((l->n + 1) * sizeof *p->cut);
    if (!p->cut) return -ENOMEM;
    for (size_t i = 0; i < l->n; i++) {
        const struct wish *x = &l->w[i];
        size_t b = x->begin, e = x->end;
        uint32_t tok0, n;
        if (p->chat.n_spans && !through_template(&p->chat, x, &b, &e)) continue;
        n = wk_map_range(&p->ids, b, e, &tok0);
        if (n < x->tokens_min || n < WK_CHUNK_TOKENS_MIN || n > chunk_max || tok0 < after) continue;
        after = tok0 + n;
        p->cut[p->n_cut++] =
            (struct wk_cut){.tok0 = tok0,
                            .n = n,
                            .msg = x->msg,
                            .begin = (uint32_t)x->sent_begin,
                            .end = (uint32_t)x->sent_end,
                            .detector = x->detector,
                            .text_id = text_id_of(r, prompt, m, x),
                            .key = tier_key_chunk(&w->ident, m->ns, p->tok + tok0, n)};
    }
    return 0;
}

/* Chained keys of whole blocks: of the preamble, or of everything but the last token when the
 * request reuses exact prefixes only. */
static int blocks_of(const struct worker *w, struct wk_prompt *p, const struct wk_mode *m)
{
    uint32_t until = p->n_tok - 1;

    if (p->n_cut > 0 && m->wish != POL_PREFIX && p->cut[0].tok0 < until) until = p->cut[0].tok0;
    p->n_block = until / WK_BLOCK_TOKENS;
    p->block = mem_alloc((p->n_block + 1) * sizeof *p->block);
    p->block_look = mem_zalloc((p->n_block + 1) * sizeof *p->block_look);
    if (!p->block || !p->block_look) return -ENOMEM;
    for (size_t i = 0; i < p->n_block; i++)
        p->block[i] = tier_key_prefix(&w->ident, m->ns, i ? &p->block[i - 1] : NULL,
                                      p->tok + i * WK_BLOCK_TOKENS, WK_BLOCK_TOKENS);
    return 0;
}

/* ---- chat ---- */
static int render_chat(const struct worker *w, const struct api_req *r, size_t user,
                       const struct buf *docs, struct wk_prompt *p, struct api_err *e)
{
    struct chat_msg *msgs = mem_zalloc(r->n_msg * sizeof *msgs);
    char *joined = NULL;
    struct err err = {0};
    int rc;

    if (!msgs) return api_no_memory(e);
    for (size_t i = 0; i < r->n_msg; i++)
        msgs[i] = (struct chat_msg){r->msg[i].role, r->msg[i].text, r->msg[i].len};
    if (docs->len) {
        joined = mem_alloc(docs->len + r->msg[user].len + 1);
        if (!joined) {
            mem_free(msgs);
            return api_no_memory(e);
        }
        memcpy(joined, docs->data, docs->len);
        memcpy(joined + docs->len, r->msg[user].text, r->msg[user].len);
        msgs[user].text = joined;
        msgs[user].len += docs->len;
    }
    const struct chat_thread thread = {msgs, r->n_msg, r->add_generation_prompt};
    rc = chat_render(w->chat, w->tok, &thread, &p->chat, &err);
    if (rc < 0 && rc != -ENOMEM)
        rc = api_err_set(e, API_INVALID_VALUE, "messages", "%s.",
                         err.msg[0] ? err.msg : "The chat template cannot render these messages");
    else if (rc < 0)
        rc = api_no_memory(e);
    /* The template is the whole truth: what it does not write is not in the prompt, BOS included.
     */
    if (rc >= 0 && tok_encode(w->tok, p->chat.pieces, p->chat.n_pieces, 0, &p->ids) < 0)
        rc = api_no_memory(e);
    mem_free(joined);
    mem_free(msgs);
    return rc < 0 ? rc : 0;
}

static int prepare_chat(const struct worker *w, const struct api_req *r, const struct wk_hints *h,
                        const struct wk_mode *m, struct wishes *l, struct arena *names,
                        struct wk_prompt *p, struct api_err *e)
{
    struct buf docs = BUF_INIT;
    size_t user = last_user(r);
    struct sent t = {.n = r->n_msg};
    int rc;

    if (!w->chat)
        return api_err_set(e, API_NO_CHAT_TEMPLATE, "messages", "This model cannot chat: %s.",
                           w->chat_error);
    t.text = arena_alloc(names, r->n_msg * sizeof *t.text);
    t.len = arena_alloc(names, r->n_msg * sizeof *t.len);
    if (!t.text || !t.len) return api_no_memory(e);
    rc = render_documents(r, (uint32_t)user, m->ns, &docs, l);
    for (size_t i = 0; rc >= 0 && i < r->n_msg; i++) {
        size_t shift = i == user ? docs.len : 0;
        t.text[i] = (struct seg_text){r->msg[i].role, r->msg[i].text, r->msg[i].len};
        t.len[i] = r->msg[i].len;
        rc = wish_parts(r, i, shift, l);
    }
    for (size_t i = 0; rc >= 0 && i < r->kv.n_range; i++) {
        const struct api_range *g = &r->kv.range[i];
        size_t shift = g->msg == user ? docs.len : 0;
        rc = wish_add(l, (struct wish){g->msg, g->begin + shift, g->end + shift, g->begin, g->end,
                                       "api", WK_CHUNK_TOKENS_MIN});
    }
    if (rc >= 0) rc = wish_found(w, h, m, &t, user, docs.len, names, l);
    rc = rc < 0 ? api_no_memory(e) : render_chat(w, r, user, &docs, p, e);
    buf_fini(&docs);
    return rc;
}

/* ---- legacy completions ---- */
static int prepare_text(const struct worker *w, const struct api_req *r, const struct wk_hints *h,
                        const struct wk_mode *m, size_t i, struct wishes *l, struct arena *names,
                        struct wk_prompt *p, struct api_err *e)
{
    const struct api_prompt *q = &r->prompt[i];
    struct buf all = BUF_INIT;
    struct seg_text st = {"prompt", q->text, q->len};
    size_t len = q->len, shift;
    int rc = render_documents(r, 0, m->ns, &all, l);

    shift = all.len;
    if (rc >= 0) rc = buf_add(&all, q->text, q->len);
    for (size_t k = 0; rc >= 0 && k < r->kv.n_range; k++) {
        const struct api_range *g = &r->kv.range[k];
        if (g->msg != i) continue;
        rc = wish_add(l, (struct wish){0, g->begin + shift, g->end + shift, g->begin, g->end, "api",
                                       WK_CHUNK_TOKENS_MIN});
    }
    struct sent t = {&st, &len, 1};
    if (rc >= 0 && r->n_prompt == 1) rc = wish_found(w, h, m, &t, 0, shift, names, l);
    if (rc >= 0 && r->n_prompt > 1) {
        struct wk_hints none = {0}; /* the gateway's list counts prompts; each is cut by itself */
        rc = wish_found(w, &none, m, &t, 0, shift, names, l);
    }
    const char *text = buf_cstr(&all);
    if (rc >= 0 && text) {
        struct tok_piece piece = {text, all.len, false};
        rc = tok_encode(w->tok, &piece, 1, TOK_BOS, &p->ids);
    }
    if (rc >= 0 && r->echo) rc = buf_add(&p->text, all.data, all.len);
    buf_fini(&all);
    return rc < 0 || !text ? api_no_memory(e) : 0;
}

static int prepare_ids(const struct worker *w, const struct api_req *r, size_t i,
                       struct wk_prompt *p, struct api_err *e)
{
    const struct api_prompt *q = &r->prompt[i];
    struct tok_stream ts = {0};
    int rc = 0;

    p->own_ids = mem_alloc((q->ids.n + 1) * sizeof *p->own_ids);
    if (!p->own_ids) return api_no_memory(e);
    memcpy(p->own_ids, q->ids.id, q->ids.n * sizeof *p->own_ids);
    for (size_t k = 0; r->echo && rc >= 0 && k < q->ids.n; k++)
        rc = tok_stream_push(w->tok, &ts, q->ids.id[k], &p->text);
    if (rc >= 0 && r->echo) rc = tok_stream_end(&ts, &p->text);
    return rc < 0 ? api_no_memory(e) : 0;
}

int wk_prepare(const struct worker *w, const struct api_req *r, const struct wk_hints *h,
               const struct wk_mode *m, size_t i, struct wk_prompt *out, struct api_err *e)
{
    struct wishes l = {0};
    struct arena names;
    int rc;

    memset(out, 0, sizeof *out);
    arena_init(&names);
    if (r->chat)
        rc = prepare_chat(w, r, h, m, &l, &names, out, e);
    else if (r->prompt[i].text)
        rc = prepare_text(w, r, h, m, i, &l, &names, out, e);
    else
        rc = prepare_ids(w, r, i, out, e);
    out->tok = out->own_ids ? out->own_ids : out->ids.id;
    out->n_tok = (uint32_t)(out->own_ids ? r->prompt[i].ids.n : out->ids.n);
    if (rc >= 0 && out->n_tok == 0)
        rc = api_err_set(e, API_INVALID_VALUE, r->chat ? "messages" : "prompt",
                         "The prompt is empty: it has no token at all.");
    if (rc >= 0 && out->n_tok < UINT32_MAX / 2) {
        if (cuts_of(out, &l, m, w, r, i) < 0 || blocks_of(w, out, m) < 0) rc = api_no_memory(e);
        for (size_t k = 0; rc >= 0 && k < out->n_cut; k++) /* names must outlive the arena */
            if (!known_detector(out->cut[k].detector)) {
                char *d = mem_strdup(out->cut[k].detector);
                out->cut[k].detector = d ? d : "preset";
                out->cut[k].own_detector = d != NULL;
            }
    }
    mem_free(l.w);
    arena_fini(&names);
    return rc < 0 ? rc : 0;
}

void wk_prompt_fini(struct wk_prompt *p)
{
    if (p->held_by) wk_drop_looks(p->held_by, p);
    ctl_decision_free(p->decision);
    for (size_t i = 0; i < p->n_cut; i++)
        if (p->cut[i].own_detector) mem_free((char *)p->cut[i].detector);
    mem_free(p->cut);
    mem_free(p->block);
    mem_free(p->block_look);
    mem_free(p->own_ids);
    tok_ids_fini(&p->ids);
    chat_out_fini(&p->chat);
    buf_fini(&p->text);
    memset(p, 0, sizeof *p);
}

int wk_encode_chunk(const struct worker *w, const char *text, size_t len, int32_t **ret,
                    uint32_t *ret_n)
{
    struct tok_ids ids = {0};
    const struct tok_piece piece[3] = {{"\n\n", 2, false}, {text, len, false}, {"\n\n", 2, false}};
    struct buf all = BUF_INIT;
    uint32_t tok0, n;
    int32_t *out = NULL;
    int rc = 0;

    /* One piece: a tokenizer may treat the seam of two pieces as a boundary of its own. */
    for (size_t i = 0; rc >= 0 && i < 3; i++)
        rc = buf_add(&all, piece[i].text, piece[i].len);
    if (rc >= 0) rc = tok_encode(w->tok, &(struct tok_piece){all.data, all.len, false}, 1, 0, &ids);
    n = rc >= 0 ? wk_map_range(&ids, 2, 2 + len, &tok0) : 0;
    if (rc >= 0) out = mem_alloc((n + 1) * sizeof *out);
    if (out) {
        memcpy(out, ids.id + tok0, n * sizeof *out);
        *ret = out;
        *ret_n = n;
    }
    buf_fini(&all);
    tok_ids_fini(&ids);
    return out ? 0 : rc < 0 ? rc : -ENOMEM;
}
