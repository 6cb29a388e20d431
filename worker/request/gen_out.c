/* What the client gets: frames as tokens come, or one reply at the end.
 *
 * Order of a stream: role frame of each choice, text frames, finish frame, the usage frame when
 * asked for, [DONE]. All that is new for all choices goes out in one write; a choice's new text is
 * one frame, so a slow reader gets fewer and larger frames and nothing is ever delayed on purpose.
 * Headers wait for the first token, or for the grace, so that an early failure has a real status.
 */
#include "base/clock.h"
#include "base/log.h"
#include "worker/request/gen.h"

#include <string.h>

enum {
    WK_GRACE_MS = 2000,    /* stream headers wait this long for a real status */
    WK_COMMENT_MS = 10000, /* keep-alive comment while a stream is silent */
};

static int bytes_of(void *ctx, int32_t id, const char **ret, size_t *ret_len)
{
    return tok_bytes(ctx, id, true, ret, ret_len);
}

static struct api_head head_of(const struct gen *g)
{
    return (struct api_head){.chat = g->chat,
                             .logprobs = g->req.logprobs,
                             .id = g->id,
                             .model = g->t.w->model_name,
                             .created = g->created,
                             .usage_null = g->req.stream && g->req.include_usage,
                             .bytes = bytes_of,
                             .bytes_ctx = g->t.w->tok};
}

static const char *finish_name(const struct gen_choice *c)
{
    if (!c->stopped && c->finish != FUS_STOP) return "length";
    const size_t n = c->said.n_call;
    return n > 0 && (!c->stopped || c->said.call[n - 1].whole) ? "tool_calls" : "stop";
}

/* ---- failure ---- */
void wk_engine_error(const struct worker *w, int status, const char *field, struct api_err *e)
{
    if (status == -ERANGE)
        (void)api_err_set(e, API_CONTEXT_EXCEEDED, NULL,
                          "The prompt does not fit this model's context of %u tokens.", w->ctx_max);
    else if (status == -E2BIG)
        (void)api_err_set(e, API_INVALID_VALUE, field,
                          "Invalid '%s': it is too ambiguous: there are too many ways to read what "
                          "was answered so far.",
                          field);
    else if (status == -ENOMEM)
        (void)api_err_set(e, API_OUT_OF_MEMORY, NULL,
                          "The request needs more KV memory than this worker has free; lower "
                          "max_tokens or raise --kv-pages.");
    else if (kn_dev_lost(fus_core_dev(w->core)))
        (void)api_err_set(e, API_DEVICE_LOST, NULL,
                          "The GPU has failed; this worker ends, to be started anew.");
    else
        (void)api_err_set(e, API_INTERNAL_ERROR, NULL, "The request failed inside the engine (%s).",
                          err_name(status));
    if (e->status == 500) e->retry = API_RETRY_NO;
}

void gen_fail(struct gen *g, const struct api_err *e)
{
    struct buf b = BUF_INIT;

    if (!g->t.call || g->ended) return;
    g->ended = true;
    if (!g->headers_sent) {
        wk_reply_error(g->t.call, e);
        return;
    }
    /* The status is gone: an error frame, which both SDKs raise on, then the end. */
    g->t.call->status = e->status;
    buf_adds(&b, "data: ");
    api_put_error(&b, e);
    buf_adds(&b, "\n\ndata: [DONE]\n\n");
    struct http_req *r = g->t.call->r;
    if (buf_status(&b) < 0 || http_reply_write(r, b.data, b.len) < 0)
        http_reply_abort(r);
    else
        (void)http_reply_end(r);
    buf_fini(&b);
}

/* ---- stream ---- */
static int start_stream(struct gen *g)
{
    struct buf h = BUF_INIT;
    int rc = wk_call_headers(g->t.call, NULL, &h);

    g->t.call->status = 200;
    g->headers_sent = true;
    if (rc >= 0) rc = http_sse_start(g->t.call->r, buf_cstr(&h));
    buf_fini(&h);
    g->last_write_ns = clock_ns();
    return rc;
}

static void put_role(struct gen *g, const struct gen_prompt *p, unsigned index,
                     const struct api_head *h, struct buf *out)
{
    if (g->chat) api_put_frame_role(out, h, index);
    if (!g->chat && p->p.text.len) { /* echo */
        struct api_head plain = *h;
        struct api_span s = {.index = index, .text = p->p.text.data, .end = p->p.text.len};
        plain.logprobs = false;
        api_put_frame_text(out, &plain, &s);
    }
}

/* It may still get the end of a character that it began, or go with a stop string that begins where
 * it stands. */
static bool is_open(const struct gen_choice *c, const struct api_token *t)
{
    return !c->finished && t->end == c->safe && (t->begin == t->end || c->stream.n_hold);
}

static struct api_span new_text(const struct gen_choice *c, unsigned index, size_t to,
                                size_t tok_to)
{
    return (struct api_span){.index = index,
                             .text = c->text.data ? c->text.data : "",
                             .begin = c->sent_bytes,
                             .end = to,
                             .tok = c->tok + c->sent_tok,
                             .n_tok = tok_to - c->sent_tok,
                             .chars = c->sent_chars};
}

/* One frame, or several where calls have begun or ended; the first has the tokens. */
static void put_said(const struct gen *g, struct gen_choice *c, struct api_span s,
                     const struct api_head *h, struct buf *out)
{
    struct api_call call;
    struct api_said said;

    while (gen_said_new(g, c, s.index, &call, &said) || (g->req.logprobs && s.n_tok > 0)) {
        s.said = &said;
        if (s.n_tok == 0) s.text = NULL;
        api_put_frame_said(out, h, &s);
        c->sent_tok += s.n_tok;
        s.n_tok = 0;
    }
    c->sent_bytes = s.end;
}

/* New text and the end of one choice; gen.m is held. */
static void put_choice(struct gen *g, const struct gen_prompt *p, struct gen_choice *c,
                       unsigned index, const struct api_head *h, struct buf *out)
{
    size_t to = c->safe, tok_to = c->n_tok;

    if (!c->role_sent && (c->n_generated > 0 || c->finished)) {
        c->role_sent = true;
        put_role(g, p, index, h, out);
    }
    if (g->req.logprobs) { /* whole tokens only */
        tok_to = c->sent_tok;
        to = c->sent_bytes;
        while (tok_to < c->n_tok && c->tok[tok_to].end <= c->safe && !is_open(c, &c->tok[tok_to]))
            to = c->tok[tok_to++].end;
        if (c->finished) to = c->safe;
    }
    const struct api_span s = new_text(c, index, to, tok_to);
    if (g->parsed) {
        put_said(g, c, s, h, out);
    } else if (to > c->sent_bytes || (g->req.logprobs && tok_to > c->sent_tok)) {
        api_put_frame_text(out, h, &s);
        c->sent_chars += api_chars(s.text + s.begin, s.end - s.begin);
        c->sent_bytes = to;
        c->sent_tok = tok_to;
    }
}

struct progress { /* of all choices; gen.m held while it is filled */
    bool all_done, all_finished;
    int status;
    unsigned n_left; /* finish frames to come */
};

static struct progress look(const struct gen *g)
{
    struct progress r = {.all_done = true, .all_finished = true};

    for (size_t i = 0; i < g->n_prompt; i++) {
        const struct gen_prompt *p = &g->prompt[i];
        r.all_done &= p->done;
        if (p->done && p->status < 0 && r.status == 0) r.status = p->status;
        for (unsigned k = 0; k < g->req.n; k++) {
            r.all_finished &= p->choice[k].finished;
            r.n_left += !p->choice[k].finish_sent;
        }
    }
    return r;
}

static void put_finish(struct gen *g, struct progress *at, struct gen_choice *c, unsigned index,
                       const struct api_head *h, struct buf *out)
{
    const struct api_span s = {.index = index, .finish = finish_name(c)};
    struct buf extra = BUF_INIT;

    if (!c->finished || c->finish_sent) return;
    c->finish_sent = true;
    if (--at->n_left == 0 && at->all_finished && g->req.kv.explain && !g->req.include_usage)
        gen_put_report(g, true, &extra);
    api_put_frame_finish(out, h, &s, &extra);
    buf_fini(&extra);
}

static void put_end(struct gen *g, const struct api_head *h, struct buf *out)
{
    struct buf extra = BUF_INIT;
    struct api_usage u;

    if (g->req.include_usage) {
        gen_usage(g, &u);
        if (g->req.kv.explain) gen_put_report(g, true, &extra);
        api_put_frame_usage(out, h, &u, &extra);
    }
    buf_fini(&extra);
    buf_adds(out, "data: [DONE]\n\n");
}

static void write_stream(struct gen *g, struct buf *out, bool end)
{
    struct http_req *r = g->t.call->r;

    if (!g->headers_sent && start_stream(g) < 0) return;
    g->last_write_ns = clock_ns();
    if (end) g->ended = true;
    (void)http_reply_write(r, out->data, out->len);
    if (end && g->t.call) (void)http_reply_end(r);
}

/* gen.m is held. */
static void put_progress(struct gen *g, const struct api_head *h, struct buf *out)
{
    for (size_t i = 0; i < g->n_prompt; i++) {
        struct gen_prompt *p = &g->prompt[i];
        if (p->advanced) api_put_frame_progress(out, h, (unsigned)i * g->req.n, &p->progress);
        p->advanced = false;
    }
}

static int flush_stream(struct gen *g)
{
    struct api_head h = head_of(g);
    struct buf out = BUF_INIT;

    pthread_mutex_lock(&g->m);
    struct progress at = look(g);
    const size_t n = at.status == 0 ? g->n_prompt * g->req.n : 0;
    if (n > 0) put_progress(g, &h, &out);
    for (size_t i = 0; i < n; i++) {
        struct gen_prompt *p = &g->prompt[i / g->req.n];
        put_choice(g, p, &p->choice[i % g->req.n], (unsigned)i, &h, &out);
    }
    for (size_t i = 0; i < n; i++)
        put_finish(g, &at, &g->prompt[i / g->req.n].choice[i % g->req.n], (unsigned)i, &h, &out);
    pthread_mutex_unlock(&g->m);
    if (at.status == 0 && at.all_done) {
        put_end(g, &h, &out);
        gen_count(g);
    }
    if (at.status == 0 && buf_status(&out) < 0) at.status = -EIO;
    if (at.status == 0 && out.len) write_stream(g, &out, at.all_done);
    buf_fini(&out);
    return at.status;
}

/* ---- one reply ---- */
static int put_whole(struct gen *g, const struct api_usage *u, struct buf *out)
{
    size_t n = g->n_prompt * g->req.n;
    struct api_head h = head_of(g);
    struct api_span *s = mem_zalloc(n * sizeof *s);
    struct buf extra = BUF_INIT, *texts = mem_zalloc(n * sizeof *texts);
    struct api_said *said = mem_zalloc(n * sizeof *said);
    int rc = s && texts && said ? 0 : -ENOMEM;

    for (size_t i = 0; rc == 0 && i < n; i++) {
        const struct gen_prompt *p = &g->prompt[i / g->req.n];
        const struct gen_choice *c = &p->choice[i % g->req.n];
        buf_add(&texts[i], p->p.text.data, p->p.text.len);
        buf_add(&texts[i], c->text.data, c->safe);
        rc = buf_status(&texts[i]);
        s[i] = (struct api_span){.index = (unsigned)i,
                                 .text = texts[i].data ? texts[i].data : "",
                                 .end = texts[i].len,
                                 .tok = c->tok,
                                 .n_tok = c->n_tok,
                                 .finish = finish_name(c)};
        if (rc == 0 && g->parsed) rc = gen_said_all(g, c, (unsigned)i, &said[i]);
        if (g->parsed) s[i].said = &said[i];
    }
    if (rc == 0) {
        gen_put_report(g, g->req.kv.explain, &extra);
        api_put_reply(out, &h, s, n, u, &extra);
    }
    for (size_t i = 0; texts && i < n; i++)
        buf_fini(&texts[i]);
    for (size_t i = 0; said && i < n; i++)
        mem_free((void *)said[i].call);
    mem_free(said);
    mem_free(texts);
    mem_free(s);
    buf_fini(&extra);
    return rc;
}

static void put_headers(const struct gen *g, const struct api_usage *u, struct buf *out)
{
    struct gen_hits h;

    buf_addf(out,
             "openai-processing-ms: %.0f\r\nx-kvblend-ttft-ms: %.2f\r\n"
             "x-kvblend-kv: prefix=%llu;reused=%llu;recomputed=%llu",
             clock_ms_since(g->start_ns), g->prompt[0].ttft_ms, (unsigned long long)u->prefix,
             (unsigned long long)u->reused, (unsigned long long)u->recomputed);
    gen_hits(g, &h);
    for (size_t i = 0; i < h.n; i++)
        buf_addf(out, ";%s=%u", h.tier[i].name, h.tier[i].hits);
    buf_adds(out, "\r\n");
}

static int flush_whole(struct gen *g)
{
    struct buf out = BUF_INIT, h = BUF_INIT;
    struct api_usage u;

    pthread_mutex_lock(&g->m);
    struct progress at = look(g);
    pthread_mutex_unlock(&g->m);
    if (at.status < 0 || !at.all_done) return at.status;
    gen_usage(g, &u);
    gen_count(g);
    put_headers(g, &u, &h);
    if (put_whole(g, &u, &out) < 0 || buf_status(&out) < 0 || buf_status(&h) < 0) {
        at.status = -EIO;
    } else {
        g->ended = true;
        wk_reply(g->t.call, 200, "application/json", buf_cstr(&h), &out);
    }
    buf_fini(&out);
    buf_fini(&h);
    return at.status;
}

void gen_flush(struct gen *g)
{
    struct api_err e;

    if (!g->t.call || g->ended || g->n_prompt == 0) return;
    int rc = g->req.stream ? flush_stream(g) : flush_whole(g);
    if (rc == 0) return;
    wk_engine_error(g->t.w, rc, g->req.format.field ? g->req.format.field : "tools", &e);
    gen_fail(g, &e);
}

void gen_silence(struct gen *g, uint64_t now_ns)
{
    if (!g->headers_sent) {
        if (now_ns - g->start_ns < (uint64_t)WK_GRACE_MS * 1000000) return;
        if (start_stream(g) < 0 || !g->t.call) return;
        (void)http_sse_comment(g->t.call->r, "working");
    } else if (now_ns - g->last_write_ns >= (uint64_t)WK_COMMENT_MS * 1000000) {
        g->last_write_ns = now_ns;
        (void)http_sse_comment(g->t.call->r, "working");
    }
}
