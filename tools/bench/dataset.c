#include "tools/bench/dataset.h"

#include "base/assert.h"
#include "base/buf.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>

const char dataset_default_format[] =
    "{preamble}{chunks}\\n\\nQuestion: {question}\\nAnswer within 5 words.";

enum { LINE_BYTES_MAX = 64 << 20 };

/* ---- reading ---- */

static json_t *from_musique(json_t *sample)
{
    json_t *chunks = json_array(), *line = json_object(), *passage;
    size_t i;
    json_array_foreach(json_object_get(sample, "ctxs"), i, passage)
    {
        const char *title = json_string_value(json_object_get(passage, "title"));
        const char *text = json_string_value(json_object_get(passage, "text"));
        json_array_append_new(chunks, json_sprintf("%s\n%s", title ? title : "", text ? text : ""));
    }
    json_object_set_new(line, "chunks", chunks);
    json_object_set(line, "question", json_object_get(sample, "question"));
    json_object_set(line, "answer", json_object_get(sample, "answers"));
    json_object_set_new(line, "kind", json_string("musique"));
    return line;
}

static int read_array(FILE *f, const char *path, json_t *lines, struct err *err)
{
    json_error_t e;
    json_t *all = json_loadf(f, 0, &e), *sample;
    if (!json_is_array(all)) {
        json_decref(all);
        return err_set(err, -EBADMSG, "%s: line %d: %s", path, e.line, e.text);
    }
    size_t i;
    json_array_foreach(all, i, sample) json_array_append_new(lines, from_musique(sample));
    json_decref(all);
    return 0;
}

static int read_lines(FILE *f, const char *path, json_t *lines, struct err *err)
{
    char *text = NULL; /* getline's own memory */
    size_t cap = 0;
    ssize_t len;
    int r = 0;
    for (int n = 1; r == 0 && (len = getline(&text, &cap, f)) >= 0; n++) {
        if (len > LINE_BYTES_MAX) r = err_set(err, -ERANGE, "%s: line %d is too long", path, n);
        if (r < 0 || strspn(text, " \t\r\n") == (size_t)len) continue;
        json_error_t e;
        json_t *line = json_loadb(text, (size_t)len, 0, &e);
        if (json_is_object(line)) {
            json_array_append(lines, line);
        } else {
            r = err_set(err, -EBADMSG, "%s: line %d: %s", path, n, line ? "not an object" : e.text);
        }
        json_decref(line);
    }
    mem_free(text);
    return r;
}

int dataset_open(const char *path, struct dataset *ret, struct err *err)
{
    FILE *f = fopen(path, "re");
    if (!f) return err_set(err, -errno, "%s: cannot be opened: %s", path, strerror(errno));
    int first = fgetc(f);
    (void)ungetc(first, f);
    json_t *lines = json_array();
    int r = first == '[' ? read_array(f, path, lines, err) : read_lines(f, path, lines, err);
    (void)fclose(f);
    if (r == 0 && json_array_size(lines) == 0) r = err_set(err, -EINVAL, "%s: no lines", path);
    if (r < 0)
        json_decref(lines);
    else
        ret->lines = lines;
    return r;
}

void dataset_close(struct dataset *d)
{
    json_decref(d->lines);
    d->lines = NULL;
}

bool dataset_judges_suffix(const json_t *line)
{
    const char *judge = json_string_value(json_object_get(line, "judge"));
    return judge && strcmp(judge, "suffix") == 0;
}

/* ---- making prompts ---- */

struct draft { /* text with the byte ranges of its chunks */
    struct buf text;
    size_t begin[BENCH_CHUNKS_MAX], end[BENCH_CHUNKS_MAX], n;
};

static int add_member(struct draft *d, const json_t *line, const char *name)
{
    const json_t *v = json_object_get(line, name);
    return json_is_string(v) ? buf_add(&d->text, json_string_value(v), json_string_length(v)) : 0;
}

static int add_chunks(struct draft *d, const json_t *line, const char *between, struct err *err)
{
    const json_t *chunks = json_object_get(line, "chunks"), *chunk;
    size_t i;
    int r = 0;
    if (!json_is_array(chunks)) return err_set(err, -EINVAL, "a line has no \"chunks\" array");
    if (json_array_size(chunks) > BENCH_CHUNKS_MAX)
        return err_set(err, -ERANGE, "a line has more than %d chunks", BENCH_CHUNKS_MAX);
    json_array_foreach(chunks, i, chunk)
    {
        if (!json_is_string(chunk)) return err_set(err, -EINVAL, "a chunk is not a string");
        if (i > 0) r = buf_adds(&d->text, between);
        d->begin[d->n] = d->text.len;
        if (r == 0) r = buf_add(&d->text, json_string_value(chunk), json_string_length(chunk));
        if (r < 0) return r;
        d->end[d->n++] = d->text.len;
    }
    return 0;
}

static int fill_format(struct draft *d, const json_t *line, const char *format, struct err *err)
{
    int r = 0;
    for (const char *p = format; r == 0 && *p;) {
        if (strncmp(p, "{preamble}", 10) == 0) {
            r = add_member(d, line, "preamble");
            p += 10;
        } else if (strncmp(p, "{chunks}", 8) == 0) {
            r = add_chunks(d, line, "\n\n", err);
            p += 8;
        } else if (strncmp(p, "{question}", 10) == 0) {
            r = add_member(d, line, "question");
            p += 10;
        } else if (strncmp(p, "\\n", 2) == 0) {
            r = buf_addc(&d->text, '\n');
            p += 2;
        } else {
            r = buf_addc(&d->text, *p++);
        }
    }
    return r;
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

static int to_prompt(const struct bench *b, struct draft *d, const struct tok_piece *pieces,
                     size_t n_pieces, bool sink_first, struct bench_prompt *ret)
{
    struct tok_ids ids = {0};
    uint32_t head = sink_first && b->sink >= 0;
    struct bench_prompt p = {0};
    int r = tok_encode(b->tok, pieces, n_pieces, 0, &ids);
    if (r == 0) {
        p.n_tok = head + (uint32_t)ids.n;
        p.tok = mem_alloc(p.n_tok * sizeof *p.tok);
        if (!p.tok) r = -ENOMEM;
    }
    if (r == 0) {
        if (head) p.tok[0] = b->sink;
        memcpy(p.tok + head, ids.id, ids.n * sizeof *p.tok);
        map_chunks(d, &ids, head, &p);
        *ret = p;
    }
    tok_ids_fini(&ids);
    return r;
}

/* The draft becomes a user message: shift its byte ranges to where the template put them. */
static int to_chat_prompt(const struct bench *b, struct draft *d, struct bench_prompt *ret,
                          struct err *err)
{
    const struct chat_msg msg = {"user", d->text.data, d->text.len};
    const struct chat_thread thread = {&msg, 1, true};
    struct chat_out out = {0};
    int r = chat_render(b->chat, b->tok, &thread, &out, err);
    for (size_t i = 0; r == 0 && i < d->n; i++) {
        for (size_t s = 0; s < out.n_spans; s++) {
            const struct chat_span *span = &out.spans[s];
            if (d->begin[i] < span->src || d->end[i] > span->src + span->len) continue;
            d->begin[i] = d->begin[i] - span->src + span->dst;
            d->end[i] = d->end[i] - span->src + span->dst;
            break;
        }
    }
    if (r == 0) r = to_prompt(b, d, out.pieces, out.n_pieces, false, ret);
    chat_out_fini(&out);
    return r;
}

int dataset_prompt(const struct bench *b, const json_t *line, const struct prompt_style *style,
                   struct bench_prompt *ret, struct err *err)
{
    struct draft d = {.text = BUF_INIT};
    bool exact = json_is_string(json_object_get(line, "suffix"));
    int r;
    if (exact) {
        r = add_member(&d, line, "preamble");
        if (r == 0) r = add_chunks(&d, line, "", err);
        if (r == 0) r = add_member(&d, line, "suffix");
    } else {
        r = fill_format(&d, line, style->format, err);
    }
    if (r == 0 && d.text.len == 0) r = err_set(err, -EINVAL, "a line gives an empty prompt");
    struct tok_piece piece = {d.text.data, d.text.len, false};
    if (r == 0 && !exact && style->chat && b->chat)
        r = to_chat_prompt(b, &d, ret, err);
    else if (r == 0)
        r = to_prompt(b, &d, &piece, 1, true, ret);
    if (r == -ENOMEM) (void)err_set(err, r, "out of memory");
    buf_fini(&d.text);
    if (r == 0 && ret->n_tok <= ret->suffix0) {
        bench_prompt_fini(ret);
        r = err_set(err, -EINVAL, "a line has nothing after its chunks");
    }
    return r;
}
