/* From a parsed request to tokens and chunks.
 *
 * The whole templated prompt is tokenised once; every span that may become a chunk is a byte range
 * of a message's text, carried through the template and then to whole tokens. A token that
 * straddles the end of a span is glue. Nothing here ever changes what the model reads: segmentation
 * decides reuse only. Documents are rendered in front of the last user message's own text (or of
 * the prompt). */
#include "base/assert.h"
#include "worker/request/request.h"
#include "worker/reuse/decision.h"
#include "worker/reuse/lookup.h"
#include "worker/reuse/namespaces.h"
#include "worker/worker.h"

#include <string.h>

/* ---- effective settings ---- */
int wk_settings(const struct worker *w, struct api_req *r, const struct wk_hints *h,
                struct api_err *e)
{
    struct api_settings *k = &r->kv;

    if (k->mode == POL_AUTO && h->mode && !api_mode_parse(h->mode, &k->mode))
        return api_err_set(e, API_INVALID_VALUE, "X-KVBlend-Mode",
                           "Invalid header 'X-KVBlend-Mode': expected auto, full, prefix, reuse or "
                           "blend.");
    if (pol_strategy_runs(k->mode) || k->strategy == POL_AUTO) k->strategy = k->mode;
    if (!k->separator) k->separator = h->separator;
    char *ns = arena_alloc(&r->arena, WK_NS_BYTES);
    if (!ns) return api_no_memory(e);
    if (wk_ns_join(ns, WK_NS_BYTES, h->ns, k->ns) < 0)
        return api_err_set(e, API_STRING_TOO_LONG, "kvblend.namespace",
                           "Invalid 'kvblend.namespace': at most %d bytes.", WK_NS_BYTES - 2);
    k->ns = ns;
    wk_namespaces_note(w->namespaces, ns);
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

/* ---- spans ---- */
struct span {
    uint32_t msg;
    size_t begin, end; /* bytes of the text as sent; of documents, as they are rendered */
    size_t shift;      /* what is rendered in front of that text */
    const char *detector;
    uint32_t tokens_min;
};
struct preparing {
    const struct wk_prepare *q;
    const struct api_settings *m;
    size_t i; /* of the request's prompts */
    struct span *span;
    size_t n, cap;
    struct buf docs; /* rendered in front of the text of docs_msg */
    size_t docs_msg;
    struct wk_prompt *p;
};

/* The first to claim a byte has it. */
static int add_span(struct preparing *x, struct span s)
{
    if (s.end <= s.begin) return 0;
    for (size_t i = 0; i < x->n; i++) {
        const struct span *o = &x->span[i];
        if (o->msg == s.msg && o->begin + o->shift < s.end + s.shift &&
            s.begin + s.shift < o->end + o->shift)
            return 0;
    }
    if (x->n == x->cap) {
        size_t cap = x->cap ? 2 * x->cap : 32;
        struct span *n = mem_realloc(x->span, cap * sizeof *n);
        if (!n) return -ENOMEM;
        x->span = n;
        x->cap = cap;
    }
    x->span[x->n++] = s;
    return 0;
}

/* Of the text that the application sent as message `msg`. */
static int add_sent(struct preparing *x, size_t msg, size_t begin, size_t end, const char *detector,
                    uint32_t tokens_min)
{
    return add_span(x, (struct span){.msg = (uint32_t)msg,
                                     .begin = begin,
                                     .end = end,
                                     .shift = msg == x->docs_msg ? x->docs.len : 0,
                                     .detector = detector,
                                     .tokens_min = tokens_min});
}

/* Default renderer: "title\ntext\n\n" each. */
static int add_documents(struct preparing *x, size_t msg)
{
    const struct api_req *r = x->q->r;
    struct buf *out = &x->docs;

    x->docs_msg = msg;
    for (size_t i = 0; i < r->n_doc; i++) {
        const struct api_doc *d = &r->doc[i];
        size_t begin = out->len;
        if (d->title) {
            buf_add(out, d->title, d->title_len);
            buf_addc(out, '\n');
        }
        buf_add(out, d->text, d->len);
        if (buf_status(out) < 0) return -ENOMEM;
        const struct span whole = {.msg = (uint32_t)msg,
                                   .begin = begin,
                                   .end = out->len,
                                   .detector = "documents",
                                   .tokens_min = WK_CHUNK_TOKENS_MIN};
        if (add_span(x, whole) < 0 || buf_adds(out, "\n\n") < 0) return -ENOMEM;
    }
    return 0;
}

static int add_parts(struct preparing *x, const struct api_msg *m, size_t msg)
{
    int rc = 0;

    for (size_t i = 0; rc >= 0 && i < m->n_part; i++) {
        const struct api_part *p = &m->part[i];
        bool forced = p->kind == API_PART_CHUNK;
        if (p->kind == API_PART_GLUE || (m->n_part < 2 && !forced)) continue;
        rc = add_sent(x, msg, p->begin, p->end, "parts",
                      forced ? WK_CHUNK_TOKENS_MIN : WK_PART_TOKENS_MIN);
    }
    return rc;
}

static int add_ranges(struct preparing *x)
{
    const struct api_req *r = x->q->r;
    int rc = 0;

    for (size_t i = 0; rc >= 0 && i < r->kv.n_range; i++) {
        const struct api_range *g = &r->kv.range[i];
        if (!r->chat && g->msg != x->i) continue;
        rc = add_sent(x, r->chat ? g->msg : 0, g->begin, g->end, "api", WK_CHUNK_TOKENS_MIN);
    }
    return rc;
}

/* What the gateway has found, else what the segmenter finds: where the chunks were said, behind the
 * volatile parts of system texts only. */
static int add_found(struct preparing *x, struct seg_text *text, size_t n)
{
    const struct wk_prepare *q = x->q;
    const struct worker *w = q->w;
    /* The gateway's list counts prompts; each of several is cut by itself. */
    const char *list = q->r->chat || q->r->n_msg == 1 ? q->h->segments : NULL;
    struct seg_list s = {0};
    int rc = 0;

    if (list) {
        rc = seg_parse(list, strlen(list), &s);
        if (rc == -EINVAL || rc == -EBADMSG) rc = 0, s.n = 0; /* a hint, never a reason to fail */
    } else {
        struct seg_opts so = {.separator = x->m->separator,
                              .learner = w->segmenter.learner,
                              .space = x->m->ns,
                              .dry = q->whys != NULL,
                              .whys = q->whys};
        for (size_t i = 0; x->n > 0 && i < n; i++)
            if (strcmp(text[i].role, "system") != 0 && strcmp(text[i].role, "developer") != 0)
                text[i].len = 0;
        rc = seg_find(w->segmenter.presets, &so, text, n, &s);
    }
    for (size_t i = 0; rc >= 0 && i < s.n; i++) {
        const struct seg *g = &s.seg[i];
        const char *d = g->detector ? g->detector : "gateway";
        if (g->msg >= n || g->end > text[g->msg].len) continue;
        d = arena_strndup(&x->p->names, d, strlen(d)); /* it may be the list's own */
        rc = d ? add_sent(x, g->msg, g->begin, g->end, d, WK_CHUNK_TOKENS_MIN) : -ENOMEM;
    }
    seg_list_fini(&s);
    return rc < 0 ? rc : 0;
}

static size_t last_user(const struct api_req *r)
{
    for (size_t i = r->n_msg; i-- > 0;)
        if (strcmp(r->msg[i].role, "user") == 0) return i;
    return r->n_msg - 1;
}

static int find_spans(struct preparing *x)
{
    const struct api_req *r = x->q->r;
    const struct api_msg *m = r->chat ? r->msg : &r->msg[x->i];
    const size_t n = r->chat ? r->n_msg : 1;
    struct seg_text *text = mem_zalloc(n * sizeof *text);
    int rc = text ? add_documents(x, r->chat ? last_user(r) : 0) : -ENOMEM;

    for (size_t i = 0; rc >= 0 && i < n; i++) {
        text[i] = (struct seg_text){m[i].role, m[i].text, m[i].len};
        rc = add_parts(x, &m[i], i);
    }
    if (rc >= 0) rc = add_ranges(x);
    if (rc >= 0) rc = add_found(x, text, n);
    mem_free(text);
    return rc;
}

static int compare_spans(const void *a, const void *b)
{
    const struct span *x = a, *y = b;

    if (x->msg != y->msg) return x->msg < y->msg ? -1 : 1;
    return x->begin + x->shift < y->begin + y->shift ? -1
                                                     : x->begin + x->shift > y->begin + y->shift;
}

/* Bytes of the prompt where a span landed; false when the template did not keep it in one piece. */
static bool through_template(const struct chat_out *c, const struct span *x, size_t *ret_begin,
                             size_t *ret_end)
{
    const size_t begin = x->begin + x->shift, end = x->end + x->shift;

    for (size_t i = 0; i < c->n_spans; i++) {
        const struct chat_span *s = &c->spans[i];
        size_t b = begin > s->src ? begin : s->src;
        size_t e = end < s->src + s->len ? end : s->src + s->len;
        if (s->msg != x->msg || b >= e) continue;
        *ret_begin = s->dst + (b - s->src);
        *ret_end = s->dst + (e - s->src);
        return true; /* the part that lies in this span: trimmed ends are not in the prompt */
    }
    return false;
}

/* Of the bytes that the gateway sees, too; a document's are where it is rendered. */
static uint64_t text_id_of(const struct preparing *x, const struct span *s)
{
    const bool rendered = s->msg == x->docs_msg && s->end + s->shift <= x->docs.len;
    const char *text = rendered ? x->docs.data + s->shift : x->q->r->msg[s->msg].text;

    return seg_text_id(x->m->ns, text + s->begin, s->end - s->begin);
}

static int make_cuts(struct preparing *x)
{
    const struct worker *w = x->q->w;
    struct wk_prompt *p = x->p;
    uint32_t after = 0, chunk_max = w->ctx_max > 1 ? w->ctx_max - 1 : 1;

    if (x->n) qsort(x->span, x->n, sizeof *x->span, compare_spans);
    p->cut = mem_zalloc((x->n + 1) * sizeof *p->cut);
    if (!p->cut) return -ENOMEM;
    for (size_t i = 0; i < x->n; i++) {
        const struct span *s = &x->span[i];
        size_t b = s->begin + s->shift, e = s->end + s->shift;
        uint32_t tok0, n;
        if (p->chat.n_spans && !through_template(&p->chat, s, &b, &e)) continue;
        n = wk_map_range(&p->ids, b, e, &tok0);
        if (n < s->tokens_min || n < WK_CHUNK_TOKENS_MIN || n > chunk_max || tok0 < after) continue;
        after = tok0 + n;
        p->cut[p->n_cut++] =
            (struct wk_cut){.tok0 = tok0,
                            .n = n,
                            .msg = s->msg,
                            .begin = (uint32_t)s->begin,
                            .end = (uint32_t)s->end,
                            .detector = s->detector,
                            .text_id = text_id_of(x, s),
                            .key = tier_key_chunk(&w->ident, x->m->ns, p->tok + tok0, n)};
    }
    return 0;
}

void wk_block_add(struct wk_prompt *p, const struct tier_ident *id, const char *ns, uint32_t end)
{
    const struct wk_block *before = p->n_block ? &p->block[p->n_block - 1] : NULL;
    const uint32_t tok0 = before ? before->tok0 + before->n : 0, n = end - tok0;

    p->block[p->n_block++] = (struct wk_block){
        .tok0 = tok0,
        .n = n,
        .key = tier_key_prefix(id, ns, before ? &before->key : NULL, p->tok + tok0, n)};
}

/* Whole blocks: of the preamble, or of everything but the last token when the
 * request reuses exact prefixes only. */
static int make_blocks(struct preparing *x)
{
    struct wk_prompt *p = x->p;
    uint32_t until = p->n_tok - 1;

    if (p->n_cut > 0 && x->m->strategy != POL_PREFIX && p->cut[0].tok0 < until)
        until = p->cut[0].tok0;
    p->block = mem_zalloc((until / WK_BLOCK_TOKENS + 1) * sizeof *p->block);
    if (!p->block) return -ENOMEM;
    for (uint32_t end = WK_BLOCK_TOKENS; end <= until; end += WK_BLOCK_TOKENS)
        wk_block_add(p, &x->q->w->ident, x->m->ns, end);
    return 0;
}

/* ---- chat ---- */
/* Spans count messages as they were sent. */
static void drop_first_message(struct chat_out *out)
{
    size_t n = 0;

    for (size_t i = 0; i < out->n_spans; i++) {
        if (out->spans[i].msg == 0) continue;
        out->spans[n] = out->spans[i];
        out->spans[n++].msg--;
    }
    out->n_spans = n;
}

static int put_documents(const struct wk_documents *d, struct arena *a, struct chat_msg *m)
{
    char *joined = arena_alloc(a, d->len + m->len + 1);

    if (!joined) return -ENOMEM;
    memcpy(joined, d->text, d->len);
    memcpy(joined + d->len, m->text, m->len);
    m->text = joined;
    m->len += d->len;
    return 0;
}

int wk_render_chat(const struct worker *w, const struct api_req *r, const struct wk_documents *d,
                   const char *lead, struct chat_out *out, struct api_err *e)
{
    const bool tools = r->tools.json && r->tools.choice != API_TOOLS_NONE;
    struct arena a;
    struct chat_msg *msgs;
    struct err err = {0};
    size_t n = r->n_msg;
    bool added = false;
    int rc = 0;

    if (!w->chat)
        return api_err_set(e, API_NO_CHAT_TEMPLATE, "messages", "This model cannot chat: %s.",
                           w->chat_error);
    arena_init(&a);
    msgs = arena_alloc(&a, (n + 1) * sizeof *msgs);
    if (!msgs) rc = -ENOMEM;
    for (size_t i = 0; rc == 0 && i < n; i++)
        msgs[i] = (struct chat_msg){r->msg[i].role, r->msg[i].text, r->msg[i].len, r->msg[i].json};
    if (rc == 0 && d && d->len) rc = put_documents(d, &a, &msgs[d->msg]);
    if (rc == 0 && tools && w->speech.explained) rc = wk_tools_explain(w, r, &a, msgs, &n, &added);
    const struct chat_thread thread = {
        .msgs = msgs,
        .n = n,
        .add_generation_prompt = r->add_generation_prompt && !r->continue_final,
        .continue_final = r->continue_final,
        .lead = lead,
        .tools = tools && !w->speech.explained ? r->tools.json : NULL,
        .vars = r->template_vars};
    if (rc == 0) rc = chat_render(w->chat, w->tok, &thread, out, &err);
    if (rc == 0 && added) drop_first_message(out);
    if (rc < 0 && rc != -ENOMEM)
        rc = api_err_set(e, API_INVALID_VALUE, "messages", "%s.",
                         err.msg[0] ? err.msg : "The chat template cannot render these messages");
    else if (rc < 0)
        rc = api_no_memory(e);
    arena_fini(&a);
    return rc < 0 ? rc : 0;
}

static bool ends_with(const struct buf *text, const char *end)
{
    size_t n = text->len, m = end ? strlen(end) : 0;

    while (n > 0 && (text->data[n - 1] == '\n' || text->data[n - 1] == ' '))
        n--;
    return m > 0 && n >= m && memcmp(text->data + n - m, end, m) == 0;
}

/* An answer that must be a call begins with what opens one, and one of a form with no thought, or
 * as a message of content; for that the prompt's end must be known. What the prompt ends with of a
 * message's own is the sender's. */
static int render(struct preparing *x)
{
    const struct wk_prepare *q = x->q;
    const struct wk_speech *s = &q->w->speech;
    struct wk_prompt *p = x->p;
    const struct wk_documents d = {x->docs_msg, x->docs.data, x->docs.len};
    struct buf lead = BUF_INIT;
    int rc = wk_render_chat(q->w, q->r, &d, NULL, &p->chat, q->e);

    if (rc < 0 || q->r->continue_final) return rc;
    p->thinking = s->thoughts && ends_with(&p->chat.text, s->thoughts->open);
    p->calling = s->calls && ends_with(&p->chat.text, s->calls->open);
    const bool must = q->r->tools.choice == API_TOOLS_MUST && !p->calling;
    const bool form = q->r->format.kind != API_FORMAT_NONE, thought = p->thinking && (must || form);
    const struct ans_messages *m = s->calls ? s->calls->messages : NULL;
    const bool answer = m && form && !must;
    if (!must && !thought && !answer) return 0;
    if (thought) buf_addf(&lead, "\n%s\n\n", s->thoughts->close);
    if (must && s->calls->around[0]) buf_adds(&lead, s->calls->around[0]);
    if (must && !s->calls->bare) buf_adds(&lead, s->calls->open);
    if (answer) buf_adds(&lead, m->answer);
    p->calling = p->calling || must;
    p->thinking = false;
    const char *text = buf_cstr(&lead);
    rc = text ? wk_render_chat(q->w, q->r, &d, text, &p->chat, q->e) : api_no_memory(q->e);
    buf_fini(&lead);
    return rc;
}

static int prepare_chat(struct preparing *x)
{
    const struct wk_prepare *q = x->q;
    struct wk_prompt *p = x->p;
    int rc = render(x);

    /* The template is the whole truth: what it does not write is not in the prompt, BOS included.
     */
    if (rc >= 0 && tok_encode(q->w->tok, p->chat.pieces, p->chat.n_pieces, 0, &p->ids) < 0)
        rc = api_no_memory(q->e);
    return rc;
}

/* ---- legacy completions ---- */
static int prepare_text(struct preparing *x)
{
    const struct wk_prepare *q = x->q;
    const struct api_msg *t = &q->r->msg[x->i];
    struct wk_prompt *p = x->p;
    int rc = buf_add(&x->docs, t->text, t->len); /* from here on it is the whole */

    const char *text = rc >= 0 ? buf_cstr(&x->docs) : NULL;
    if (!text) return api_no_memory(q->e);
    struct tok_piece piece = {text, x->docs.len, false};
    rc = tok_encode(q->w->tok, &piece, 1, TOK_BOS, &p->ids);
    if (rc >= 0 && q->r->echo) rc = buf_add(&p->text, x->docs.data, x->docs.len);
    return rc < 0 ? api_no_memory(q->e) : 0;
}

static int prepare_ids(struct preparing *x)
{
    const struct wk_prepare *q = x->q;
    const struct api_ids *t = &q->r->msg[x->i].ids;
    struct wk_prompt *p = x->p;
    struct tok_stream ts = {0};
    int rc = 0;

    p->own_ids = mem_alloc((t->n + 1) * sizeof *p->own_ids);
    if (!p->own_ids) return api_no_memory(q->e);
    memcpy(p->own_ids, t->id, t->n * sizeof *p->own_ids);
    for (size_t k = 0; q->r->echo && rc >= 0 && k < t->n; k++)
        rc = tok_stream_push(q->w->tok, &ts, t->id[k], &p->text);
    if (rc >= 0 && q->r->echo) rc = tok_stream_end(&ts, &p->text);
    return rc < 0 ? api_no_memory(q->e) : 0;
}

int wk_prepare(const struct wk_prepare *q, size_t i, struct wk_prompt *out)
{
    const struct api_req *r = q->r;
    struct preparing x = {.q = q, .m = &r->kv, .i = i, .p = out};
    int rc;

    memset(out, 0, sizeof *out);
    arena_init(&out->names);
    if (!r->msg[i].text)
        rc = prepare_ids(&x);
    else if (find_spans(&x) < 0)
        rc = api_no_memory(q->e);
    else
        rc = r->chat ? prepare_chat(&x) : prepare_text(&x);
    out->tok = out->own_ids ? out->own_ids : out->ids.id;
    out->n_tok = (uint32_t)(out->own_ids ? r->msg[i].ids.n : out->ids.n);
    if (rc >= 0 && out->n_tok == 0)
        rc = api_err_set(q->e, API_INVALID_VALUE, r->chat ? "messages" : "prompt",
                         "The prompt is empty: it has no token at all.");
    if (rc >= 0 && out->n_tok < UINT32_MAX / 2 && (make_cuts(&x) < 0 || make_blocks(&x) < 0))
        rc = api_no_memory(q->e);
    mem_free(x.span);
    buf_fini(&x.docs);
    return rc < 0 ? rc : 0;
}

void wk_prompt_fini(struct wk_prompt *p)
{
    if (p->held_by) wk_lookups_drop(p->held_by, p);
    ctl_decision_free(p->decision);
    arena_fini(&p->names);
    mem_free(p->cut);
    mem_free(p->block);
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
    struct buf all = BUF_INIT;
    uint32_t tok0, n;
    int32_t *out = NULL;
    int rc;

    /* One piece: a tokenizer may treat the seam of two pieces as a boundary of its own. */
    buf_adds(&all, "\n\n");
    buf_add(&all, text, len);
    buf_adds(&all, "\n\n");
    rc = buf_status(&all);
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
