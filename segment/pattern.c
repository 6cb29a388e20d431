/* Patterns: compile, match at a place, search. See segment_int.h for the language. */
#include "segment/segment_int.h"

#include "base/mem.h"

#include <string.h>

void pat_fini(struct pat *p)
{
    mem_free(p->text);
    *p = (struct pat){0};
}

static int add_op(struct pat *p, enum pat_kind kind, const char *lit, size_t len)
{
    if (kind == PAT_LITERAL && len == 0) return 0;
    if (p->n_ops == PAT_OPS_MAX) return -EINVAL;
    p->op[p->n_ops++] = (struct pat_op){kind, lit, len};
    return 0;
}

static int kind_of(char c, enum pat_kind *ret)
{
    if (c != 'd' && c != 'w' && c != '*') return -EINVAL;
    *ret = c == 'd' ? PAT_DIGITS : c == 'w' ? PAT_WORD : PAT_REST;
    return 0;
}

/* A run is ended by a literal; it must not be the first thing of a pattern without an anchor. */
static int check_ops(const struct pat *p)
{
    if (p->n_ops == 0) return -EINVAL;
    if (p->op[0].kind != PAT_LITERAL && !p->line_start) return -EINVAL;
    for (unsigned i = 0; i + 1 < p->n_ops; i++)
        if (p->op[i].kind > PAT_DIGITS && p->op[i + 1].kind != PAT_LITERAL) return -EINVAL;
    return 0;
}

int pat_compile(const char *s, struct pat *ret)
{
    struct pat p = {.line_start = s[0] == '^'};
    p.text = mem_strdup(s + p.line_start);
    if (!p.text) return -ENOMEM;
    char *to = p.text, *lit = to;
    int r = 0;
    for (const char *c = s + p.line_start; *c && r == 0; c++) {
        enum pat_kind kind;
        if (*c != '%' || c[1] == '%') {
            c += *c == '%';
            *to++ = *c;
            continue;
        }
        r = kind_of(c[1], &kind); /* a lone % at the end is refused here, before it is passed */
        if (r < 0) break;
        c++;
        r = add_op(&p, PAT_LITERAL, lit, (size_t)(to - lit));
        if (r == 0) r = add_op(&p, kind, NULL, 0);
        lit = to;
    }
    if (r == 0) r = add_op(&p, PAT_LITERAL, lit, (size_t)(to - lit));
    if (r == 0) r = check_ops(&p);
    if (r < 0) {
        pat_fini(&p);
        return r;
    }
    *ret = p;
    return 0;
}

/* End of the literal at `at`, or SIZE_MAX; CR LF stands for a newline. */
static size_t lit_end(const struct pat_op *op, const char *text, size_t at, size_t to)
{
    if (to - at >= op->len && memcmp(text + at, op->lit, op->len) == 0) return at + op->len;
    for (size_t k = 0; k < op->len; k++, at++) {
        if (op->lit[k] == '\n' && to - at >= 2 && text[at] == '\r') at++;
        if (at >= to || text[at] != op->lit[k]) return SIZE_MAX;
    }
    return at;
}

/* End of a run that starts at `at`: where the next literal starts, or the end of the line. */
static size_t run_end(const struct pat_op *op, bool last, const char *text, size_t at, size_t to)
{
    size_t limit = to - at > PAT_RUN_MAX ? at + PAT_RUN_MAX : to;
    if (op->kind == PAT_DIGITS) {
        size_t i = at;
        while (i < limit && text[i] >= '0' && text[i] <= '9')
            i++;
        return i > at ? i : SIZE_MAX;
    }
    for (size_t i = at; i <= limit; i++) {
        if (!last && lit_end(&op[1], text, i, to) != SIZE_MAX)
            return op->kind == PAT_WORD && i == at ? SIZE_MAX : i;
        if (i == to || text[i] == '\n') return last ? i : SIZE_MAX;
        if (op->kind == PAT_WORD && (text[i] == ' ' || text[i] == '\t')) return last ? i : SIZE_MAX;
    }
    return SIZE_MAX;
}

static size_t match_at(const struct pat *p, const char *text, size_t at, size_t to)
{
    for (unsigned i = 0; i < p->n_ops; i++) {
        const struct pat_op *op = &p->op[i];
        if (op->kind == PAT_LITERAL) {
            at = lit_end(op, text, at, to);
        } else {
            at = run_end(op, i + 1 == p->n_ops, text, at, to);
        }
        if (at == SIZE_MAX) return SIZE_MAX;
    }
    return at;
}

enum { SEARCH_WINDOW = 4096 }; /* chosen: long enough for the search to run at full speed */

/* What of a literal is there in any case: up to its first newline that a CR may precede. (A leading
 * one needs none: white space before a match belongs to no piece.) */
static size_t sure_bytes(const struct pat_op *op)
{
    const char *nl = op->len > 1 ? memchr(op->lit + 1, '\n', op->len - 1) : NULL;
    return nl ? (size_t)(nl - op->lit) : op->len;
}

/* The next place at or after `at` where the pattern may start. */
static size_t candidate(const struct pat *p, const char *text, size_t at, size_t to)
{
    if (p->op[0].kind == PAT_LITERAL) {
        /* By windows: a call's cost must not grow with the text when candidates are dense. */
        for (size_t n_lit = sure_bytes(&p->op[0]); at < to; at += SEARCH_WINDOW) {
            size_t n = to - at > SEARCH_WINDOW + n_lit ? SEARCH_WINDOW + n_lit : to - at;
            const char *hit = memmem(text + at, n, p->op[0].lit, n_lit);
            if (hit) return (size_t)(hit - text);
        }
        return SIZE_MAX;
    }
    if (at == 0 || text[at - 1] == '\n') return at;
    const char *nl = memchr(text + at, '\n', to - at);
    return nl && nl + 1 < text + to ? (size_t)(nl + 1 - text) : SIZE_MAX;
}

struct span pat_search(const struct pat *p, const char *text, size_t from, size_t to)
{
    for (size_t at = from; at < to; at++) {
        at = candidate(p, text, at, to);
        if (at == SIZE_MAX) break;
        if (p->line_start && at > 0 && text[at - 1] != '\n') {
            const char *nl = memchr(text + at, '\n', to - at); /* nothing starts before it */
            if (!nl) break;
            at = (size_t)(nl - text);
            continue;
        }
        size_t end = match_at(p, text, at, to);
        if (end != SIZE_MAX) return (struct span){at, end};
    }
    return SPAN_NONE;
}

void finder_init(struct finder *f, const struct pat_list *list, const char *text, size_t to)
{
    *f = (struct finder){.list = list, .text = text, .to = to};
}

struct span finder_next(struct finder *f, size_t from)
{
    struct span best = SPAN_NONE;
    for (unsigned i = 0; i < f->list->n; i++) {
        if (!f->known[i] || (f->next[i].begin != SIZE_MAX && f->next[i].begin < from)) {
            f->next[i] = pat_search(&f->list->p[i], f->text, from, f->to);
            f->known[i] = true;
        }
        if (f->next[i].begin < best.begin ||
            (f->next[i].begin == best.begin && best.begin != SIZE_MAX && f->next[i].end > best.end))
            best = f->next[i];
    }
    return best;
}
