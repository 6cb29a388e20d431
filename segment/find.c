/* Finding chunks: separator, then the preset with the most chunks, then blocks; text by text.
 *
 * Every preset is tried on every text and the best one kept; markers count before blocks inside a
 * lead-in, because a marker says where a chunk ends and a paragraph only suggests it. All scans run
 * left to right once, so the cost is (number of patterns) x (bytes). */
#include "segment/segment_int.h"

#include "base/assert.h"
#include "base/buf.h"
#include "base/jsonscan.h"

#include <string.h>

struct job {
    const struct seg_presets *presets;
    const struct seg_opts *opts;
    const struct seg_text *text;
    uint32_t msg;
    bool last_user; /* its last paragraph is the question */
    bool learn;     /* the preset is chosen: cut its regions by what was learned */
    bool tool;      /* a tool's answer: all of it was retrieved */
    unsigned depth; /* strings of JSON that this text came out of */
};

static bool is_user(const char *role)
{
    return strcmp(role, "user") == 0 || strcmp(role, "prompt") == 0;
}

/* Where the last paragraph (else the last line) of text[from, to) starts; `from` when there is one.
 */
static size_t last_part(const char *text, size_t from, size_t to)
{
    while (to > from && (text[to - 1] == '\n' || text[to - 1] == ' ' || text[to - 1] == '\r'))
        to--;
    size_t line = SIZE_MAX;
    for (size_t i = to; i > from; i--) {
        if (text[i - 1] != '\n') continue;
        if (line == SIZE_MAX) line = i;
        size_t j = i - 1;
        while (j > from && (text[j - 1] == ' ' || text[j - 1] == '\r' || text[j - 1] == '\t'))
            j--;
        if (j > from && text[j - 1] == '\n') return i;
    }
    return line == SIZE_MAX ? from : line;
}

/* Where the last sentence of a text without line breaks starts. */
static size_t last_sentence(const char *text, size_t from, size_t to)
{
    while (to > from && (text[to - 1] == '\n' || text[to - 1] == ' '))
        to--;
    for (size_t i = to; i > from + 2; i--)
        if (text[i - 1] == ' ' &&
            (text[i - 2] == '.' || text[i - 2] == '?' || text[i - 2] == '!') && i < to)
            return i;
    return to;
}

/* End of what may be chunk in text[from, to): the question behind it stays out. */
static size_t before_question(const struct job *j, size_t from, size_t to)
{
    size_t cut = to, near = to - from > QUESTION_BYTES_MAX ? to - QUESTION_BYTES_MAX : from;
    struct finder f;
    if (j->presets) {
        finder_init(&f, &j->presets->question, j->text->text, to);
        for (struct span s = finder_next(&f, near); s.begin != SIZE_MAX;
             s = finder_next(&f, s.begin + 1))
            cut = s.begin;
    }
    if (cut == to && j->last_user) {
        cut = last_part(j->text->text, from, to);
        if (to - cut > QUESTION_BYTES_MAX) cut = last_sentence(j->text->text, cut, to);
    }
    return cut;
}

/* The place behind the next blank line. */
static size_t after_blank(const char *text, size_t at, size_t len)
{
    const char *nl;
    for (; at < len && (nl = memchr(text + at, '\n', len - at)); at = (size_t)(nl - text) + 1) {
        const char *next = nl + 1 < text + len && nl[1] == '\r' ? nl + 2 : nl + 1;
        if (next < text + len && *next == '\n') return (size_t)(next - text) + 1;
    }
    return len;
}

/* Leading short paragraphs are instructions, not documents. */
static size_t after_preamble(const char *text, size_t at, size_t len)
{
    for (int i = 0; i < 3; i++) {
        size_t end = after_blank(text, at, len);
        if (end - at >= BLOCK_BYTES_OWN) return at;
        at = end;
    }
    return at;
}

/* ---- presets ---- */

struct region {
    size_t begin, end;
    bool closed; /* by an end pattern, not by the text's end */
};

static int add_trimmed(const struct job *j, struct span s, const char *detector,
                       struct seg_list *out)
{
    if (!chunk_trim(j->text->text, &s)) return 0;
    return seg_add(out, j->msg, s.begin, s.end, detector);
}

/* Chunks between markers. */
static int marked(const struct job *j, const struct preset *p, const struct region *g,
                  struct seg_list *out)
{
    struct finder open, close;
    finder_init(&open, &p->open, j->text->text, g->end);
    finder_init(&close, &p->close, j->text->text, g->end);
    struct span m = finder_next(&open, g->begin);
    while (m.begin != SIZE_MAX) {
        struct span next = finder_next(&open, m.end), stop = finder_next(&close, m.end);
        struct span s = {m.end, g->end};
        if (stop.begin != SIZE_MAX && (p->close_required || stop.begin <= next.begin)) {
            s.end = stop.begin;
            if (next.begin < stop.end) next = finder_next(&open, stop.end); /* inside the chunk */
        } else if (p->close_required) {
            break;
        } else if (next.begin != SIZE_MAX) {
            s.end = next.begin;
        } else if (!g->closed && !p->to_end) {
            s.end = before_question(j, s.begin, s.end);
        }
        int r = add_trimmed(j, s, p->name, out);
        if (r < 0) return r;
        m = next;
    }
    return 0;
}

/* The first piece of a text starts with instructions; at least its last paragraph is a document. */
static size_t first_piece(const struct job *j, size_t from, size_t to)
{
    const char *text = j->text->text;
    size_t known = j->learn ? learned_tail(j->opts, text, from, to) : SIZE_MAX;
    if (known != SIZE_MAX) return known;
    size_t at = after_preamble(text, from, to);
    return at < to ? at : last_part(text, from, to);
}

/* Chunks between separators. */
static int joined(const struct job *j, const struct preset *p, const struct region *g,
                  struct seg_list *out)
{
    struct finder join;
    size_t at = g->begin;
    bool first = p->begin.n == 0;
    finder_init(&join, &p->join, j->text->text, g->end);
    for (;;) {
        struct span m = finder_next(&join, at);
        struct span s = {at, m.begin == SIZE_MAX ? g->end : m.begin};
        if (m.begin == SIZE_MAX && (first || at >= g->end)) return 0;
        if (m.begin == SIZE_MAX && !g->closed && !p->to_end)
            s.end = before_question(j, s.begin, s.end);
        if (first) s.begin = first_piece(j, s.begin, s.end);
        int r = add_trimmed(j, s, p->name, out);
        if (r < 0 || m.begin == SIZE_MAX) return r;
        first = false;
        at = m.end;
    }
}

static int region_chunks(const struct job *j, const struct preset *p, struct region g,
                         struct seg_list *out)
{
    if (p->open.n) return marked(j, p, &g, out);
    if (p->split == SPLIT_JOIN) return joined(j, p, &g, out);
    struct span s = {g.begin, g.end};
    if (!g.closed && !p->to_end) s.end = before_question(j, s.begin, s.end);
    if (p->split == SPLIT_WHOLE) return add_trimmed(j, s, p->name, out);
    struct region_job u = {.opts = j->opts,
                           .text = j->text->text,
                           .begin = s.begin,
                           .end = s.end,
                           .question = SIZE_MAX,
                           .by_line = p->split == SPLIT_LINES,
                           .msg = j->msg,
                           .detector = p->name};
    if (j->learn) return learned_cut(&u, out);
    struct cutter c = cutter_of(&u, p->name, out);
    return blocks_cut(&c, s.begin, s.end);
}

static int run_preset(const struct job *j, const struct preset *p, struct seg_list *out,
                      bool *ret_closed)
{
    size_t len = j->text->len;
    struct finder begin, end;
    struct region g = {0, len, false};
    finder_init(&begin, &p->begin, j->text->text, len);
    finder_init(&end, &p->end, j->text->text, len);
    for (size_t at = 0; at < len;) {
        if (p->begin.n) {
            struct span b = finder_next(&begin, at);
            if (b.begin == SIZE_MAX) return 0;
            g.begin = b.end;
        }
        struct span e = p->begin.n ? finder_next(&end, g.begin) : SPAN_NONE;
        g.closed = e.begin != SIZE_MAX;
        g.end = g.closed ? e.begin : len;
        *ret_closed |= g.closed;
        int r = region_chunks(j, p, g, out);
        if (r < 0 || !g.closed) return r;
        at = e.end > at ? e.end : at + 1;
    }
    return 0;
}

/* Markers say most; a lead-in says more when its end was found, too. */
static int rank_of(const struct preset *p, bool closed)
{
    int base = p->open.n ? 3 : 0;
    return base + (!p->begin.n ? 0 : closed ? 2 : 1);
}

/* Explain chunks that explicit marks or markers gave: both edges, one entry each. */
static int explain_marks(const struct job *j, const struct seg_list *l, size_t from,
                         const char *reason)
{
    for (size_t i = from; i < l->n && j->opts->whys; i++) {
        const struct seg *s = &l->seg[i];
        struct seg_why y = {s->msg, s->begin, s->begin, true, reason, "marker", 0, 0, 1};
        int r = why_add(j->opts->whys, y);
        y.begin = y.end = s->end;
        if (r == 0) r = why_add(j->opts->whys, y);
        if (r < 0) return r;
    }
    return 0;
}

/* The preset with the most to say; markers before lead-ins before bare separators. */
static int best_preset(const struct job *j, const struct preset **ret)
{
    int best_rank = -1, r = 0;
    size_t best_n = 0;
    for (size_t i = 0; i < j->presets->n && r == 0; i++) {
        const struct preset *p = &j->presets->preset[i];
        struct seg_list l = {0};
        if (p->tool_only && !j->tool) continue;
        bool closed = false;
        r = run_preset(j, p, &l, &closed);
        int rank = rank_of(p, closed);
        bool better = rank > best_rank || (rank == best_rank && l.n > best_n);
        if (r == 0 && l.n >= p->min_matches && l.n > 0 && better) {
            *ret = p;
            best_rank = rank;
            best_n = l.n;
        }
        seg_list_fini(&l);
    }
    return r;
}

/* What stands in front of the first mark comes again and again, as a system text does. */
static int in_front(const struct job *j, size_t end, struct seg_list *out)
{
    struct region_job u = {.opts = j->opts,
                           .text = j->text->text,
                           .end = end,
                           .question = SIZE_MAX,
                           .still = true,
                           .msg = j->msg};
    return j->tool || end < TEXT_BYTES_BLOCKS ? 0 : learned_cut(&u, out);
}

/* Append the chunks of the best preset: 1 found, 0 none fits. */
static int by_preset(const struct job *j, struct seg_list *out)
{
    const struct preset *p = NULL;
    struct seg_list l = {0};
    int r = best_preset(j, &p);
    if (r < 0 || !p) return r;
    struct job final = *j;
    final.learn = true;
    bool closed = false;
    r = run_preset(&final, p, &l, &closed);
    if (r == 0 && l.n > 0) r = in_front(j, l.seg[0].begin, out);
    if (r == 0 && (p->open.n || p->split == SPLIT_JOIN || p->split == SPLIT_WHOLE)) {
        r = explain_marks(j, &l, 0, "marker");
        learned_keep(j->opts, j->text->text, &l, 0);
    }
    for (size_t i = 0; i < l.n && r == 0; i++)
        r = seg_add(out, l.seg[i].msg, l.seg[i].begin, l.seg[i].end, l.seg[i].detector);
    seg_list_fini(&l);
    return r < 0 ? r : 1;
}

/* ---- plain text, separators ---- */

static int plain(const struct job *j, struct seg_list *out)
{
    const struct seg_text *t = j->text;
    struct region_job u = {
        .opts = j->opts, .text = t->text, .end = t->len, .question = SIZE_MAX, .msg = j->msg};
    if (!j->tool) u.question = before_question(j, 0, t->len);
    if (t->len < (j->tool ? TOOL_BYTES_MIN : TEXT_BYTES_BLOCKS)) return learned_short(&u, out);
    if (!j->tool) {
        u.still = strcmp(t->role, "system") == 0 || strcmp(t->role, "developer") == 0;
        u.fixed_preamble = !u.still;
        if (!u.still) u.preamble_end = after_preamble(t->text, 0, t->len);
    }
    return learned_cut(&u, out);
}

static int separated(const struct job *j, struct seg_list *out)
{
    const struct seg_text *t = j->text;
    size_t n_sep = strlen(j->opts->separator), at = 0;
    for (bool first = true;; first = false) {
        const char *hit =
            at < t->len ? memmem(t->text + at, t->len - at, j->opts->separator, n_sep) : NULL;
        struct span s = {at, hit ? (size_t)(hit - t->text) : t->len};
        bool glue = first || (!hit && j->last_user); /* instructions before, the question after */
        int r = glue ? 0 : add_trimmed(j, s, "separator", out);
        if (r < 0 || !hit) return r;
        at = s.end + n_sep;
    }
}

/* ---- a tool's answer as JSON: its long strings are texts of their own ---- */

static int find_in(const struct job *j, bool by_separator, struct seg_list *out);

struct cursor { /* a place in a JSON string and how many bytes of its text lie before it */
    const struct json_val *v;
    size_t at, done;
};

static size_t body_place(struct cursor *c, size_t to)
{
    if (to < c->done) c->at = 1, c->done = 0;
    c->done += json_str_seek(c->v, &c->at, to - c->done);
    return c->at;
}

static int find_in_string(const struct job *j, const struct json_val *v, struct seg_list *out)
{
    struct buf plain = BUF_INIT;
    struct seg_list found = {0};
    struct seg_whys whys = {0};
    struct cursor c = {v, 1, 0};
    size_t base = (size_t)(v->p - j->text->text);
    int r = json_str_read(v, &plain);
    struct seg_text t = {j->text->role, plain.data, plain.len};
    struct seg_opts o = *j->opts;
    o.whys = o.whys ? &whys : NULL;
    struct job inner = {.presets = j->presets,
                        .opts = &o,
                        .text = &t,
                        .msg = j->msg,
                        .tool = true,
                        .depth = j->depth + 1};
    if (r == 0 && plain.len >= TOOL_BYTES_MIN) r = find_in(&inner, false, &found);
    for (size_t i = 0; i < found.n && r == 0; i++) {
        size_t begin = body_place(&c, found.seg[i].begin), end = body_place(&c, found.seg[i].end);
        r = seg_add(out, j->msg, base + begin, base + end, found.seg[i].detector);
    }
    for (size_t i = 0; i < whys.n && r == 0; i++) {
        whys.why[i].begin = (uint32_t)(base + body_place(&c, whys.why[i].begin));
        whys.why[i].end = (uint32_t)(base + body_place(&c, whys.why[i].end));
        r = why_add(j->opts->whys, whys.why[i]);
    }
    seg_list_fini(&found);
    seg_whys_fini(&whys);
    buf_fini(&plain);
    return r;
}

/* 1: looked into; 0: no JSON, or none with a long string. */
static int find_in_json(const struct job *j, struct seg_list *out)
{
    const char *p = j->text->text, *end = p + j->text->len;
    int n = 0, r = 0;
    while (p < end && strchr(" \n\r\t", *p) && *p)
        p++;
    if (p == end || (*p != '{' && *p != '[')) return 0;
    if (json_scan(j->text->text, j->text->len, NULL, NULL) < 0) return 0;
    while (r == 0 && (p = memchr(p, '"', (size_t)(end - p)))) {
        const char *q = p + 1;
        while (*q != '"') /* it is valid: there is one */
            q += *q == '\\' ? 2 : 1;
        struct json_val v = {p, (size_t)(q - p) + 1, JSON_T_STRING};
        for (p = q + 1; p < end && strchr(" \n\r\t", *p) && *p;)
            p++;
        bool key = p < end && *p == ':';
        if (key || v.len < TOOL_BYTES_MIN) continue;
        r = find_in_string(j, &v, out);
        n = 1;
    }
    return r < 0 ? r : n;
}

static int find_in(const struct job *j, bool by_separator, struct seg_list *out)
{
    const char *role = j->text->role;
    if (j->text->len > UINT32_MAX) return -ERANGE;
    if (strcmp(role, "assistant") == 0) return 0; /* an exact prefix of what follows, anyway */
    if (by_separator) {
        size_t n_before = out->n;
        int r = separated(j, out);
        if (r == 0) r = explain_marks(j, out, n_before, "separator");
        if (r == 0) learned_keep(j->opts, j->text->text, out, n_before);
        return r;
    }
    if (j->tool && j->depth < JSON_IN_JSON_MAX) {
        int r = find_in_json(j, out);
        if (r != 0) return r < 0 ? r : 0;
    }
    if (j->presets && !j->opts->no_presets) {
        int r = by_preset(j, out);
        if (r != 0) return r < 0 ? r : 0;
    }
    return j->opts->no_blocks ? 0 : plain(j, out);
}

int seg_find(const struct seg_presets *p, const struct seg_opts *o, const struct seg_text *texts,
             size_t n, struct seg_list *out)
{
    static const struct seg_opts none = {0};
    const struct seg_opts *opts = o ? o : &none;
    bool by_separator = false;
    size_t last_user = SIZE_MAX, n_before = out->n;
    if (n > UINT32_MAX) return -ERANGE;
    for (size_t i = 0; i < n; i++) {
        if (is_user(texts[i].role)) last_user = i;
        if (opts->separator && opts->separator[0] && !by_separator)
            by_separator = texts[i].len > 0 && memmem(texts[i].text, texts[i].len, opts->separator,
                                                      strlen(opts->separator)) != NULL;
    }
    for (size_t i = 0; i < n; i++) {
        const char *role = texts[i].role;
        struct job j = {.presets = p,
                        .opts = opts,
                        .text = &texts[i],
                        .msg = (uint32_t)i,
                        .last_user = i == last_user,
                        .tool = strcmp(role, "tool") == 0 || strcmp(role, "function") == 0};
        int r = texts[i].len ? find_in(&j, by_separator, out) : 0;
        if (r < 0) {
            out->n = n_before;
            return r;
        }
    }
    return 0;
}
