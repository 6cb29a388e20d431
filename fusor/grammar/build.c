/* Nodes of a grammar under construction. A node knows how many instructions it will take, so that a
 * repetition of a repetition of … is refused before anything of that size is made. */
#include "fusor/grammar/grammar_int.h"

#include "base/fnv.h"

#include <stdlib.h>
#include <string.h>

enum {
    OUTLINE_CODE = 8
}; /* chosen: what is larger and repeated becomes a rule, called each time */

int gram_builder_create(struct gram_builder **ret)
{
    struct gram_builder *b = mem_zalloc(sizeof *b);
    const struct node none = {0};

    if (!b) return -ENOMEM;
    arena_init(&b->labels);
    b->set_slot = mem_zalloc(2 * GRAM_SETS_MAX * sizeof *b->set_slot);
    if (!b->set_slot || buf_add(&b->node, &none, sizeof none) < 0) {
        gram_builder_destroy(b);
        return -ENOMEM;
    }
    *ret = b;
    return 0;
}

void gram_builder_destroy(struct gram_builder *b)
{
    if (!b) return;
    buf_fini(&b->node);
    buf_fini(&b->kid);
    buf_fini(&b->text);
    buf_fini(&b->set);
    buf_fini(&b->range);
    buf_fini(&b->rule);
    arena_fini(&b->labels);
    mem_free(b->set_slot);
    mem_free(b);
}

int gram_builder_status(const struct gram_builder *b)
{
    return b->status;
}

void gram_builder_fail(struct gram_builder *b, int code)
{
    if (b->status == 0) b->status = code;
}

int gram_spend(struct gram_builder *b, size_t work)
{
    b->spent += work;
    return b->spent > GRAM_WORK_MAX ? -ERANGE : 0;
}

int gram_builder_why(const struct gram_builder *b, struct err *err)
{
    if (b->status != -ERANGE) return b->status;
    return err_set(err, -ERANGE,
                   "it is over a limit of size: %d instructions, %d nested parts, %d sets of "
                   "characters",
                   GRAM_CODE_MAX, GRAM_NEST_MAX, GRAM_SETS_MAX);
}

struct gram_mark gram_mark(const struct gram_builder *b)
{
    return (struct gram_mark){b->node.len,  b->kid.len,  b->text.len, b->set.len,
                              b->range.len, b->rule.len, b->status};
}

void gram_rewind(struct gram_builder *b, const struct gram_mark *to)
{
    const uint32_t n_sets = (uint32_t)(to->set / sizeof(struct set));

    /* The newest sets are last on their ways through the table: without them it is as it was. */
    for (size_t i = 0; b->set.len > to->set && i < 2 * GRAM_SETS_MAX; i++)
        if (b->set_slot[i] > n_sets) b->set_slot[i] = 0;
    b->node.len = to->node;
    b->kid.len = to->kid;
    b->text.len = to->text;
    b->set.len = to->set;
    b->range.len = to->range;
    b->rule.len = to->rule;
    if (b->status != -ENOMEM) b->status = to->status;
}

static gram_node fail(struct gram_builder *b, int code)
{
    gram_builder_fail(b, code);
    return GRAM_NONE;
}

static gram_node add_node(struct gram_builder *b, struct node n)
{
    const size_t at = GRAM_COUNT(b->node, struct node);

    if (b->status < 0) return GRAM_NONE;
    if (at >= GRAM_NODES_MAX || n.code > GRAM_CODE_MAX || n.nest > GRAM_NEST_MAX)
        return fail(b, -ERANGE);
    if (buf_add(&b->node, &n, sizeof n) < 0) return fail(b, -ENOMEM);
    return (gram_node)at;
}

static const struct node *node_at(const struct gram_builder *b, gram_node n)
{
    return &GRAM_AT(b->node, struct node, n);
}

gram_node gram_lit(struct gram_builder *b, const void *bytes, size_t len)
{
    const size_t at = b->text.len;

    if (len > GRAM_CODE_MAX || at > GRAM_CODE_MAX) return fail(b, -ERANGE);
    if (buf_add(&b->text, bytes, len) < 0) return fail(b, -ENOMEM);
    return add_node(
        b, (struct node){
               .kind = NODE_LIT, .a = (uint32_t)at, .b = (uint32_t)len, .code = (uint32_t)len});
}

gram_node gram_str(struct gram_builder *b, const char *s)
{
    return gram_lit(b, s, strlen(s));
}

/* ---- sets ---- */

static int range_order(const void *a, const void *b)
{
    const struct gram_range *x = a, *y = b;

    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

int gram_other_ranges(struct gram_range *r, size_t n, struct buf *out)
{
    uint32_t from = 0;
    int rc = 0;

    if (n > 1) qsort(r, n, sizeof *r, range_order);
    for (size_t i = 0; i < n && rc == 0; i++) {
        const struct gram_range gap = {from, r[i].lo - 1};
        if (r[i].lo > from) rc = buf_add(out, &gap, sizeof gap);
        if (r[i].hi + 1 > from) from = r[i].hi + 1;
    }
    const struct gram_range rest = {from, GRAM_CHAR_MAX};
    return rc < 0 || from > GRAM_CHAR_MAX ? rc : buf_add(out, &rest, sizeof rest);
}

/* Ascending, with gaps between, without surrogates. There is room for one more. */
static size_t tidy_ranges(struct gram_range *r, size_t n)
{
    size_t out = 0;

    qsort(r, n, sizeof *r, range_order);
    for (size_t i = 0; i < n; i++) {
        struct gram_range x = r[i];
        if (x.hi > GRAM_CHAR_MAX) x.hi = GRAM_CHAR_MAX;
        if (x.lo >= 0xD800 && x.lo <= 0xDFFF) x.lo = 0xE000;
        if (x.hi >= 0xD800 && x.hi <= 0xDFFF) x.hi = 0xD7FF;
        if (x.lo > x.hi) continue;
        if (out > 0 && x.lo <= r[out - 1].hi + 1) {
            if (x.hi > r[out - 1].hi) r[out - 1].hi = x.hi;
        } else {
            r[out++] = x;
        }
    }
    for (size_t i = 0; i < out; i++) { /* one at most goes across them */
        if (r[i].lo >= 0xD800 || r[i].hi <= 0xDFFF) continue;
        memmove(r + i + 1, r + i, (out++ - i) * sizeof *r);
        r[i].hi = 0xD7FF;
        r[i + 1].lo = 0xE000;
        break;
    }
    return out;
}

static bool same_set(const struct gram_builder *b, uint32_t i, const struct set *s)
{
    const struct set *t = &GRAM_AT(b->set, struct set, i);
    const struct gram_range *r = GRAM_ALL(b->range, struct gram_range);

    return t->n == s->n && t->how == s->how &&
           memcmp(r + t->first, r + s->first, s->n * sizeof *r) == 0;
}

/* The index of the set of the ranges at the end of b->range, which are dropped if it is there. */
static int find_set(struct gram_builder *b, struct set s, uint32_t *ret)
{
    const struct gram_range *r = &GRAM_AT(b->range, struct gram_range, s.first);
    uint64_t at = fnv_add(FNV_START + s.how, r, s.n * sizeof *r);
    uint32_t *slot;

    for (;; at++) {
        slot = &b->set_slot[at % (2 * GRAM_SETS_MAX)];
        if (*slot == 0) break;
        if (!same_set(b, *slot - 1, &s)) continue;
        b->range.len = s.first * sizeof *r;
        *ret = *slot - 1;
        return 0;
    }
    const size_t n = GRAM_COUNT(b->set, struct set);
    if (n >= GRAM_SETS_MAX || s.first + s.n > GRAM_SET_RANGES_MAX) return -ERANGE;
    if (buf_add(&b->set, &s, sizeof s) < 0) return -ENOMEM;
    *slot = (uint32_t)n + 1;
    *ret = (uint32_t)n;
    return 0;
}

gram_node gram_chars(struct gram_builder *b, const struct gram_range *r, size_t n,
                     enum gram_spelling how)
{
    struct set s = {.first = (uint32_t)GRAM_COUNT(b->range, struct gram_range), .how = how};
    uint32_t index;

    if (b->status < 0) return GRAM_NONE;
    if (n > GRAM_SET_RANGES_MAX) return fail(b, -ERANGE);
    if (buf_reserve(&b->range, (n + 1) * sizeof *r) < 0) return fail(b, -ENOMEM);
    (void)buf_add(&b->range, r, n * sizeof *r);
    if (n > 0) s.n = (uint32_t)tidy_ranges(&GRAM_AT(b->range, struct gram_range, s.first), n);
    b->range.len = (s.first + s.n) * sizeof *r;
    if (s.n == 0) return gram_alt(b, NULL, 0);
    const int rc = find_set(b, s, &index);
    if (rc < 0) return fail(b, rc);
    return add_node(b, (struct node){.kind = NODE_SET, .a = index, .code = 1});
}

/* ---- nodes of nodes ---- */

static gram_node add_group(struct gram_builder *b, enum node_kind kind, const gram_node *part,
                           size_t n)
{
    struct node g = {.kind = kind, .a = (uint32_t)GRAM_COUNT(b->kid, gram_node), .b = (uint32_t)n};
    uint64_t code = kind == NODE_ALT ? 2 * n : 0;

    if (b->status < 0) return GRAM_NONE;
    if (n == 1) return part[0];
    if (n > GRAM_NODES_MAX || g.a > 4 * GRAM_NODES_MAX) return fail(b, -ERANGE);
    for (size_t i = 0; i < n; i++) {
        const struct node *k = node_at(b, part[i]);
        code += k->code;
        if (k->nest >= g.nest) g.nest = k->nest + 1;
    }
    g.code = code > UINT32_MAX ? UINT32_MAX : (uint32_t)code;
    if (buf_add(&b->kid, part, n * sizeof *part) < 0) return fail(b, -ENOMEM);
    return add_node(b, g);
}

gram_node gram_seq(struct gram_builder *b, const gram_node *part, size_t n)
{
    return add_group(b, NODE_SEQ, part, n);
}

gram_node gram_alt(struct gram_builder *b, const gram_node *part, size_t n)
{
    return add_group(b, NODE_ALT, part, n);
}

gram_node gram_repeat(struct gram_builder *b, gram_node what, uint32_t min, uint32_t max)
{
    const struct node *w = node_at(b, what);
    const uint32_t times = max == GRAM_NO_END ? min + 1 : max;

    if (b->status < 0) return GRAM_NONE;
    if (min > max || min == GRAM_NO_END) return gram_alt(b, NULL, 0);
    if (max == 0) return gram_lit(b, "", 0);
    if (max == 1 && min == 1) return what;
    if (w->code > OUTLINE_CODE && times > 1) {
        const gram_node rule = gram_rule(b, NULL);
        gram_define(b, rule, what);
        what = rule;
        w = node_at(b, what);
    }
    const uint64_t code = (uint64_t)(w->code + 1) * times + 1;
    return add_node(b, (struct node){.kind = NODE_REPEAT,
                                     .nest = w->nest + 1,
                                     .a = what,
                                     .b = min,
                                     .c = max,
                                     .code = code > UINT32_MAX ? UINT32_MAX : (uint32_t)code});
}

gram_node gram_rule(struct gram_builder *b, const char *label)
{
    const size_t at = GRAM_COUNT(b->rule, struct rule);
    struct rule r = {0};

    if (label) r.label = arena_strndup(&b->labels, label, strlen(label));
    if (label && !r.label) return fail(b, -ENOMEM);
    if (buf_add(&b->rule, &r, sizeof r) < 0) return fail(b, -ENOMEM);
    return add_node(b, (struct node){.kind = NODE_RULE, .a = (uint32_t)at, .code = 1});
}

void gram_define(struct gram_builder *b, gram_node rule, gram_node what)
{
    if (b->status < 0) return;
    GRAM_AT(b->rule, struct rule, node_at(b, rule)->a).what = what;
}

/* ---- texts ---- */

static int text_order(const void *a, const void *b)
{
    const struct gram_text *x = a, *y = b;
    const size_t n = x->len < y->len ? x->len : y->len;
    const int c = n ? memcmp(x->p, y->p, n) : 0;

    return c ? c : x->len < y->len ? -1 : x->len > y->len;
}

static size_t shared_head(const struct gram_text *a, const struct gram_text *b)
{
    size_t n = 0;

    while (n < a->len && n < b->len && a->p[n] == b->p[n])
        n++;
    return n;
}

/* Sorted texts that share their first `done` bytes; each level of the trie they form is one node.
 * Recursion: once a level. */
static gram_node texts_behind(struct gram_builder *b, const struct gram_text *t, size_t n,
                              size_t done, unsigned level)
{
    struct buf parts = BUF_INIT;
    gram_node whole = GRAM_NONE;

    if (level > GRAM_NEST_MAX / 2) return fail(b, -ERANGE);
    for (size_t i = 0, j; i < n && b->status == 0; i = j) {
        const bool ends = t[i].len == done;
        for (j = i + 1; j < n; j++)
            if (ends ? t[j].len > done : t[j].p[done] != t[i].p[done]) break;
        const size_t head = ends ? done : shared_head(&t[i], &t[j - 1]); /* they are in order */
        gram_node part = gram_lit(b, t[i].p + done, head - done);
        if (!ends && j > i + 1)
            part = GRAM_SEQ(b, part, texts_behind(b, t + i, j - i, head, level + 1));
        if (buf_add(&parts, &part, sizeof part) < 0) gram_builder_fail(b, -ENOMEM);
    }
    if (b->status == 0)
        whole = gram_alt(b, GRAM_ALL(parts, gram_node), GRAM_COUNT(parts, gram_node));
    buf_fini(&parts);
    return whole;
}

gram_node gram_texts(struct gram_builder *b, const struct gram_text *text, size_t n)
{
    struct gram_text *t;
    gram_node whole;

    if (b->status < 0 || n == 0) return gram_alt(b, NULL, 0);
    if (n > GRAM_NODES_MAX) return fail(b, -ERANGE);
    t = mem_alloc(n * sizeof *t);
    if (!t) return fail(b, -ENOMEM);
    memcpy(t, text, n * sizeof *t);
    qsort(t, n, sizeof *t, text_order);
    whole = texts_behind(b, t, n, 0, 0);
    mem_free(t);
    return whole;
}
