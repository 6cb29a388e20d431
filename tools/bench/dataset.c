#include "tools/bench/dataset.h"

#include "base/buf.h"
#include "base/mem.h"

#include <string.h>

/* ---- reading ---- */

/* Where a piece of about n bytes ends: behind white space, which stays with it. */
static size_t piece_end(const char *text, size_t at, size_t len, size_t n)
{
    if (len - at <= n) return len;
    size_t end = at + n;
    while (end < len && text[end] != ' ' && text[end] != '\n')
        end++;
    return end < len ? end + 1 : end;
}

int dataset_cut(const char *text, size_t len, size_t max, json_t *lines)
{
    enum { LINE_BYTES = CUT_CHUNKS * CUT_CHUNK_BYTES + CUT_SUFFIX_BYTES };
    size_t at = 0;
    for (size_t n = 0; n < max && len - at >= LINE_BYTES; n++) {
        json_t *chunks = json_array(), *line;
        size_t end = at;
        for (int i = 0; i < CUT_CHUNKS; i++) {
            end = piece_end(text, at, len, CUT_CHUNK_BYTES);
            json_array_append_new(chunks, json_stringn(text + at, end - at));
            at = end;
        }
        end = piece_end(text, at, len, CUT_SUFFIX_BYTES);
        /* jansson refuses what is no UTF-8, and with it the line */
        line = json_pack("{s:o, s:s#, s:s, s:s}", "chunks", chunks, "suffix", text + at,
                         (int)(end - at), "judge", "suffix", "kind", "continuation");
        at = end;
        if (!line || json_array_size(json_object_get(line, "chunks")) != CUT_CHUNKS) {
            json_decref(line);
            return -EBADMSG;
        }
        if (json_array_append_new(lines, line) < 0) return -ENOMEM;
    }
    return 0;
}

/* Objects of {"text"} are cut, others are lines as they are. */
static int read_lines(const char *text, const char *path, json_t *lines, struct err *err)
{
    json_error_t e;
    int r = 0;
    for (size_t n = 1; r == 0 && *(text += strspn(text, " \t\r\n")); n++) {
        json_t *j = json_loads(text, JSON_DISABLE_EOF_CHECK, &e);
        const json_t *whole = json_object_get(j, "text");
        if (!json_is_object(j))
            r = err_set(err, -EBADMSG, "%s: object %zu: %s", path, n, j ? "not an object" : e.text);
        else if (json_is_string(whole))
            r = dataset_cut(json_string_value(whole), json_string_length(whole), CUT_LINES_MAX,
                            lines);
        else
            json_array_append(lines, j);
        json_decref(j);
        text += e.position;
    }
    return r;
}

int dataset_open(const char *path, json_t **ret_lines, struct err *err)
{
    struct buf text = BUF_INIT;
    json_t *lines = json_array();
    int r = bench_read_text(path, &text, err);
    const char *begin = r == 0 && buf_cstr(&text) ? buf_cstr(&text) : "";
    begin += strspn(begin, " \t\r\n");
    if (r == 0 && *begin == '[')
        r = err_set(err, -EBADMSG, "%s: an array, where an object a line is expected", path);
    else if (r == 0 && *begin == '{')
        r = read_lines(begin, path, lines, err);
    else if (r == 0 && dataset_cut(text.data, text.len, SIZE_MAX, lines) < 0)
        r = err_set(err, -EBADMSG, "%s: it is not text in UTF-8", path);
    if (r == 0 && json_array_size(lines) == 0)
        r = err_set(err, -EINVAL, "%s: no lines, and too short a text to cut into some", path);
    buf_fini(&text);
    if (r < 0)
        json_decref(lines);
    else
        *ret_lines = lines;
    return r;
}

/* ---- making prompts ---- */

struct draft { /* text with the byte ranges of its chunks */
    struct buf text;
    size_t begin[BENCH_CHUNKS_MAX], end[BENCH_CHUNKS_MAX], n;
    bool exact; /* as the line has it: neither words between its members nor a template */
};

static void add_member(struct draft *d, const json_t *line, const char *name)
{
    const json_t *v = json_object_get(line, name);
    if (json_is_string(v)) (void)buf_add(&d->text, json_string_value(v), json_string_length(v));
}

static int add_chunks(struct draft *d, const json_t *line, const char *between, struct err *err)
{
    const json_t *chunks = json_object_get(line, "chunks"), *chunk;
    size_t i;
    if (!json_is_array(chunks)) return err_set(err, -EINVAL, "a line has no \"chunks\" array");
    if (json_array_size(chunks) > BENCH_CHUNKS_MAX)
        return err_set(err, -ERANGE, "a line has more than %d chunks", BENCH_CHUNKS_MAX);
    json_array_foreach(chunks, i, chunk) {
        if (!json_is_string(chunk)) return err_set(err, -EINVAL, "a chunk is not a string");
        if (i > 0) (void)buf_adds(&d->text, between);
        d->begin[i] = d->text.len;
        (void)buf_add(&d->text, json_string_value(chunk), json_string_length(chunk));
        d->end[i] = d->text.len;
    }
    d->n = json_array_size(chunks);
    return 0;
}

static int write_draft(struct draft *d, const json_t *line, const char *after, struct err *err)
{
    add_member(d, line, "preamble");
    const int r = add_chunks(d, line, d->exact ? "" : "\n\n", err);
    if (r < 0) return r;
    if (d->exact) {
        add_member(d, line, "suffix");
    } else if (json_object_get(line, "question")) {
        (void)buf_adds(&d->text, "\n\nQuestion: ");
        add_member(d, line, "question");
        (void)buf_adds(&d->text, "\nAnswer within 5 words.");
    }
    (void)buf_adds(&d->text, after);
    if (buf_status(&d->text) < 0) return err_set(err, -ENOMEM, "out of memory");
    return d->text.len > 0 ? 0 : err_set(err, -EINVAL, "a line gives an empty prompt");
}

/* Tokens that lie wholly inside each chunk's bytes; a token across an edge is glue. */
static void map_chunks(const struct draft *d, const struct tok_ids *ids, uint32_t head,
                       struct bench_prompt *p)
{
    size_t t = 0;
    for (size_t i = 0; i < d->n; i++) {
        while (t < ids->n && ids->begin[t] < d->begin[i])
            t++;
        size_t first = t;
        while (t < ids->n && ids->end[t] <= d->end[i])
            t++;
        if (t == first) continue;
        p->chunk[p->n_chunks].tok0 = head + (uint32_t)first;
        p->chunk[p->n_chunks++].n = (uint32_t)(t - first);
        p->suffix0 = head + (uint32_t)t;
    }
}

/* Its byte ranges move to where the template put them. */
static void move_chunks(struct draft *d, const struct chat_out *out)
{
    for (size_t i = 0; i < d->n; i++)
        for (size_t s = 0; s < out->n_spans; s++) {
            const struct chat_span *span = &out->spans[s];
            if (d->begin[i] < span->src || d->end[i] > span->src + span->len) continue;
            d->begin[i] += span->dst - span->src;
            d->end[i] += span->dst - span->src;
            break;
        }
}

/* Sink token and text as they are, or a user message in the model's template. */
static int to_prompt(const struct bench *b, struct draft *d, struct bench_prompt *ret,
                     struct err *err)
{
    const bool chat = !d->exact && b->chat;
    const uint32_t head = !chat && b->sink >= 0;
    const struct chat_msg msg = {"user", d->text.data, d->text.len};
    const struct chat_thread thread = {&msg, 1, true};
    const struct tok_piece plain = {d->text.data, d->text.len, false};
    struct chat_out out = {0};
    struct tok_ids ids = {0};
    struct bench_prompt p = {0};
    int r = chat ? chat_render(b->chat, b->tok, &thread, &out, err) : 0;
    if (r == 0) {
        move_chunks(d, &out);
        r = tok_encode(b->tok, chat ? out.pieces : &plain, chat ? out.n_pieces : 1, 0, &ids);
    }
    p.n_tok = head + (uint32_t)ids.n;
    if (r == 0 && !(p.tok = mem_alloc(p.n_tok * sizeof *p.tok))) r = -ENOMEM;
    if (r == 0) {
        if (head) p.tok[0] = b->sink;
        memcpy(p.tok + head, ids.id, ids.n * sizeof *p.tok);
        map_chunks(d, &ids, head, &p);
        *ret = p;
    }
    tok_ids_fini(&ids);
    chat_out_fini(&out);
    return r == -ENOMEM ? err_set(err, r, "out of memory") : r;
}

int dataset_prompt(const struct bench *b, const json_t *line, const char *after,
                   struct bench_prompt *ret, struct err *err)
{
    struct draft d = {.text = BUF_INIT, .exact = json_is_string(json_object_get(line, "suffix"))};
    int r = write_draft(&d, line, after, err);
    if (r == 0) r = to_prompt(b, &d, ret, err);
    buf_fini(&d.text);
    if (r == 0 && ret->n_tok <= ret->suffix0) {
        bench_prompt_fini(ret);
        r = err_set(err, -EINVAL, "a line has nothing after its chunks");
    }
    return r;
}
