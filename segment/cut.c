/* Cutting a region that no marker divides: evidence first, blocks where there is none.
 *
 * 1. Gaps and their fingerprints (gaps.c), what is remembered of them (learn.c), kept texts.
 * 2. A verdict per gap. Either side seen with two different neighbours: cut. Both sides seen
 *    moving together: join. Neither known: what gaps of this form usually are in this namespace;
 *    else the blocks' rules, which are those of a first sight.
 * 3. Runs between cuts become chunks; a run with unsure gaps goes through the blocks.
 * 4. The text joins the history, unless it was seen before, byte for byte.
 *
 * A word gap needs more: it is cut only next to nothing better, as the same words often stand in
 * two documents. Rejected: matching by suffix automaton over stored text (exact, but keeps what
 * people wrote in the gateway's memory). */
#include "segment/learn.h"

#include "base/assert.h"

#include <string.h>
#include <xxhash.h>

enum {
    TURNS_RARE = 8, /* chosen: fewer turns than one sighting in 8 are edits, not boundaries */
    NEWS_LEAST = 3, /* chosen: what stands here was never seen, so often in a row */
    MOVED_SURE = 2, /* chosen: a pair that moved together this often is no coincidence */
    QUESTION_BYTES_LINE = 512, /* chosen: a question in a text without line breaks */
    WORD_CUT_APART = 128       /* chosen: word cuts are at least this far apart */
};
#define PRIOR_CUT 0.7
#define PRIOR_JOIN 0.3
#define PRIOR_CHANCE 0.4 /* chosen by tests/unit/segment: frameworks */

struct region {
    const struct region_job *job;
    struct seg_learner *learner;
    struct space *space;    /* NULL: no history */
    struct gaps gaps, more; /* more: edges of kept texts where no gap is */
    struct seg_list *out;
    size_t question;
    uint64_t print;
    unsigned seen; /* this very text, before: learn_text() */
};

static bool open_space(const struct seg_opts *o, struct space **ret)
{
    return o->learner && learn_open(o->learner, o->space ? o->space : "", ret);
}

/* ---- verdicts ---- */

static bool splits(const struct gap_side *s)
{
    return s->turns > 0 && s->turns * TURNS_RARE > s->seen;
}

static void set_verdict(struct gap *x, int verdict, const char *reason, double confidence)
{
    x->verdict = (uint8_t)verdict;
    x->reason = reason;
    x->confidence = (float)confidence;
}

static double turn_share(const struct gap *x)
{
    double l = x->l.seen ? (double)x->l.turns / x->l.seen : 0;
    double r = x->r.seen ? (double)x->r.turns / x->r.seen : 0;
    double best = l > r ? l : r, n = (double)x->l.seen + x->r.seen;
    return best * (n + 1) / (n + 2);
}

static bool held(const struct gap *x)
{
    return (x->l.seen && !x->l.turns) || (x->r.seen && !x->r.turns);
}

/* One side varies, the other never did: a paragraph that two documents share, or a rare pair. */
static void judge_conflict(struct gap *x, double prior, bool splits_here)
{
    unsigned n_held = x->l.turns ? x->r.seen : x->l.seen;
    bool chance = n_held == 1 && x->form != FORM_WORD; /* the same neighbour twice is no habit */
    bool cut = prior >= 0 ? prior >= (chance ? PRIOR_CHANCE : PRIOR_CUT) : splits_here;
    bool left = x->l.turns > 0;
    set_verdict(x, cut ? GAP_CUT : GAP_JOIN,
                !cut   ? "one_side_constant"
                : left ? "next_varies"
                       : "previous_varies",
                0.5);
}

/* Is the piece behind this gap, as a whole, in no other text? */
static bool is_new(const struct region *r, const struct gap *x)
{
    return x->r.known < 2 || (!x->r.blur && x->r.seen < (r->seen ? 2 : 1));
}

static void judge_gap(const struct region *r, struct gap *x)
{
    const bool still = r->job->still;
    double prior = r->space && !still ? (double)x->prior : -1;
    bool left = splits(&x->l), right = splits(&x->r);
    bool splits_here = x->form >= FORM_BLANK || r->job->by_line;
    bool moved = x->moved > 0 || (x->together && (x->form != FORM_WORD || still));
    if (x->form == FORM_EDGE) {
        set_verdict(x, GAP_CUT, "edge", 1);
    } else if ((left || right) && held(x) && !(still && (is_new(r, x) || is_new(r, x - 1)))) {
        judge_conflict(x, prior, splits_here);
    } else if (left || right) {
        set_verdict(x, GAP_CUT,
                    left && right ? "both_sides_vary"
                    : left        ? "next_varies"
                                  : "previous_varies",
                    turn_share(x));
    } else if (x->moved >= MOVED_SURE || (moved && (still || (prior < PRIOR_CUT && prior >= 0)))) {
        set_verdict(x, GAP_JOIN, "moves_together", 1 - 1.0 / (1 + x->moved + x->together));
    } else if (x->form == FORM_WORD) {
        set_verdict(x, GAP_UNSURE_JOIN, "unknown", 0.5);
    } else if (prior >= PRIOR_CUT) {
        set_verdict(x, GAP_CUT, "usual_boundary", prior);
    } else if (prior >= 0 && prior <= PRIOR_JOIN) {
        set_verdict(x, GAP_JOIN, "usual_inside", 1 - prior);
    } else {
        set_verdict(x, splits_here ? GAP_UNSURE_SPLIT : GAP_UNSURE_JOIN, "first_sight", 0.5);
    }
}

/* Of word cuts close together the best stays: both sides before one, then the earlier. */
static void thin_words(struct gaps *g)
{
    struct gap *last = NULL;
    for (size_t i = 0; i < g->n; i++) {
        struct gap *x = &g->gap[i];
        if (x->verdict != GAP_CUT) continue;
        if (last && x->form == FORM_WORD && x->begin - last->begin < WORD_CUT_APART) {
            bool better = last->form == FORM_WORD && x->l.turns && x->r.turns &&
                          !(last->l.turns && last->r.turns);
            if (!better) {
                set_verdict(x, GAP_JOIN, "near_a_better_cut", 0.5);
                continue;
            }
            set_verdict(last, GAP_JOIN, "near_a_better_cut", 0.5);
        } else if (last && last->form == FORM_WORD && i + 1 < g->n &&
                   x->end - last->begin < WORD_CUT_APART) {
            set_verdict(last, GAP_JOIN, "near_a_better_cut", 0.5);
        }
        last = x;
    }
}

/* The question starts at the last cut behind its presumed start, else there. Without line breaks
 * the presumed start is that of its last sentence, so a cut shortly before is believed, too. */
static void cut_question(struct region *r)
{
    struct gaps *g = &r->gaps;
    struct gap *first = NULL;
    size_t i = g->n - 1;
    while (i-- > 0 && g->gap[i].begin >= r->question) {
        first = &g->gap[i];
        if (first->verdict == GAP_CUT) return;
    }
    if (!first) return;
    set_verdict(first, GAP_CUT, "question", 1);
    if (first->form != FORM_WORD) return;
    for (i = i + 1; i-- > 0 && r->job->end - g->gap[i].begin <= QUESTION_BYTES_LINE;)
        if (g->gap[i].verdict == GAP_CUT) {
            r->question = g->gap[i].begin;
            return;
        }
}

static void judge_all(struct region *r)
{
    for (size_t i = 0; i < r->gaps.n; i++)
        judge_gap(r, &r->gaps.gap[i]);
    if (!r->job->still) thin_words(&r->gaps);
    if (r->question < r->job->end) cut_question(r);
}

/* ---- kept texts ---- */

static bool starts_word(const char *t, size_t begin, size_t at)
{
    char before = at > begin ? t[at - 1] : ' ';
    bool blank = before == ' ' || before == '\n' || before == '\t' || before == '\r' ||
                 before == '(' || before == '"' || before == '>' || before == ':';
    return blank && t[at] != ' ' && t[at] != '\n' && t[at] != '\t' && t[at] != '\r';
}

enum edge_kind { AT_LINE, AT_WORD, IN_PIECE, HELD };

/* The first gap that begins at or behind `at`. */
static size_t gap_from(const struct gaps *g, size_t at)
{
    size_t lo = 0, hi = g->n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (g->gap[mid].begin < at)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* May a kept text start (end) here? Not inside a piece that is itself known to be whole. */
static enum edge_kind edge_kind(const struct gaps *g, size_t at, bool is_begin, size_t *ret)
{
    size_t i = gap_from(g, at);
    if (i == g->n) return HELD;
    const struct gap *x = &g->gap[i];
    *ret = i;
    if (is_begin ? x->begin == at : x->end <= at && x->begin >= at) {
        if (x->form != FORM_WORD) return AT_LINE;
        return held(x) ? HELD : AT_WORD;
    }
    if (i == 0) return HELD;
    const struct gap *before = &g->gap[i - 1];
    if (before->form == FORM_WORD || x->form == FORM_WORD) return IN_PIECE;
    return before->r.seen && x->l.seen ? HELD : IN_PIECE;
}

/* Cut a kept text out of what stands around it; edges without a gap go to `more`. */
static int place_kept(struct region *r, size_t begin, size_t end)
{
    struct gaps *g = &r->gaps;
    size_t at[2] = {begin, end}, i[2] = {0, 0};
    enum edge_kind kind[2];
    for (int k = 0; k < 2; k++)
        kind[k] = edge_kind(g, at[k], k == 0, &i[k]);
    bool lines = kind[0] == AT_LINE && kind[1] == AT_LINE;
    bool cut_off = kind[0] == AT_LINE && kind[1] == IN_PIECE; /* a document that goes on here */
    if (kind[0] == HELD || kind[1] == HELD || lines || cut_off) return 0;
    for (size_t x = i[0] + (kind[0] == AT_WORD); x < i[1]; x++)
        if (g->gap[x].form == FORM_WORD) set_verdict(&g->gap[x], GAP_JOIN, "inside_kept_text", 1);
    for (int k = 0; k < 2; k++) {
        struct gap edge = {.end = (uint32_t)at[k], .begin = (uint32_t)at[k], .form = FORM_KNOWN};
        set_verdict(&edge, GAP_CUT, "kept_text", 1);
        int rc = kind[k] == IN_PIECE ? gaps_add(&r->more, edge) : 0;
        if (rc < 0) return rc;
        if (kind[k] == AT_WORD) set_verdict(&g->gap[i[k]], GAP_CUT, "kept_text", 1);
    }
    return 0;
}

static int merge(struct gaps *g, const struct gaps *more)
{
    struct gaps all = {0};
    size_t i = 0, k = 0;
    int rc = 0;
    while ((i < g->n || k < more->n) && rc == 0) {
        bool take = k < more->n && (i == g->n || more->gap[k].begin < g->gap[i].begin);
        rc = gaps_add(&all, take ? more->gap[k++] : g->gap[i++]);
    }
    if (rc < 0) {
        gaps_fini(&all);
        return rc;
    }
    gaps_fini(g);
    *g = all;
    return 0;
}

/* Call `found` with each kept text that stands in [begin, end), whatever stands around it. */
static int scan_kept(struct region *r, size_t end,
                     int (*found)(struct region *r, size_t begin, size_t end))
{
    const struct region_job *j = r->job;
    size_t work = 4 * (end - j->begin) + KEPT_BYTES_MAX;
    int rc = 0;
    learn_lock(r->space);
    for (size_t at = j->begin, n = 0; at < end && rc == 0; at++, n++) {
        if (n % 4096 == 4095) {
            learn_unlock(r->space);
            learn_lock(r->space);
        }
        if (!starts_word(j->text, j->begin, at)) continue;
        size_t len = learn_match(r->space, j->text, at, end, &work);
        if (len < BLOCK_BYTES_MIN) continue;
        rc = found(r, at, at + len);
        at += len - 1;
    }
    learn_unlock(r->space);
    return rc;
}

/* ---- chunks ---- */

static bool evident(const struct gap *x)
{
    return x->verdict == GAP_CUT && x->form != FORM_EDGE;
}

static bool is_kept(const struct gap *x)
{
    return strcmp(x->reason, "kept_text") == 0;
}

/* Behind the instructions in front of the documents: short ones, or long ones that always stand
 * there. Returns the gap where chunks may start, b when there is none. */
static const struct gap *skip_preamble(const struct region *r, const struct gap *a,
                                       const struct gap *b)
{
    const struct region_job *j = r->job;
    if (splits(&a->r)) return a; /* seen elsewhere, so no instructions */
    if (j->fixed_preamble && a->form == FORM_EDGE && a->r.seen >= 2 && evident(b)) return b;
    while (a < b && a->begin < j->preamble_end)
        a++;
    return a;
}

/* The question stands at the end, a document elsewhere, too. */
static bool is_question(const struct region *r, const struct gap *a, const struct gap *b)
{
    if (a->begin >= r->question && r->question < r->job->question) return true;
    if (a->begin < r->question) return false;
    return !splits(&a->r) || !splits(&b->l);
}

/* Of a still text: new where new things always stand, a date, a name; or all of a new text. */
static bool is_news(const struct region *r, const struct gap *a, const struct gap *b)
{
    bool usual = a->form == FORM_EDGE || a->l.news >= NEWS_LEAST;
    return usual && (is_new(r, a) || is_new(r, b - 1)); /* its first piece, its last */
}

static int emit_run(struct region *r, const struct gap *a, const struct gap *b)
{
    const struct region_job *j = r->job;
    bool unsure = false, sure_ends = evident(a) && (evident(b) || b->form == FORM_EDGE);
    a = skip_preamble(r, a, b);
    struct span s = {a->begin, b->end};
    if (s.end <= s.begin || is_question(r, a, b)) return 0;
    for (const struct gap *x = a + 1; x < b; x++)
        unsure |= x->verdict == GAP_UNSURE_SPLIT;
    sure_ends |= a->form == FORM_EDGE && evident(b);
    const char *name = j->detector                ? j->detector
                       : !sure_ends || unsure     ? "blocks"
                       : is_kept(a) && is_kept(b) ? "known"
                                                  : "learned";
    size_t size = s.end - s.begin;
    if (j->still && (size < BLOCK_BYTES_MIN || is_news(r, a, b))) return 0;
    bool whole = size <= BLOCK_BYTES_MAX || (sure_ends && size <= LEARNED_BYTES_MAX);
    if (!unsure && sure_ends && whole) {
        if (!chunk_trim(j->text, &s)) return 0;
        return seg_add(r->out, j->msg, s.begin, s.end, name);
    }
    struct cutter c = cutter_of(j, name, r->out);
    c.group = (struct span){s.begin, s.begin};
    int rc = 0;
    size_t at = s.begin;
    for (const struct gap *x = a + 1; x < b && rc == 0; x++) {
        if (x->verdict != GAP_UNSURE_SPLIT) continue;
        rc = blocks_piece(&c, (struct span){at, x->begin});
        at = x->begin;
    }
    if (rc == 0) rc = blocks_piece(&c, (struct span){at, s.end});
    return rc < 0 ? rc : blocks_flush(&c);
}

/* Where chunks may start. A still text's start behind what other texts began with, too: that is an
 * exact prefix. One that comes again and again, byte for byte, is one as a whole, and so is,
 * for now, a new one that shares no more than a greeting with others. */
static size_t first_cut(struct region *r)
{
    struct gaps *g = &r->gaps;
    const unsigned least = r->seen ? 2 : 1;
    size_t first = 0, n_new = 0;
    if (!r->job->still) return 0;
    if (r->seen && (!(r->seen & TEXT_CUT) || (r->seen & TEXT_TIMES) == TEXT_TIMES)) return g->n;
    for (size_t i = 0; i + 1 < g->n; i++) {
        n_new += is_new(r, &g->gap[i]);
        if (g->gap[i].l.known == GAP_WIDTHS && g->gap[i].l.seen >= least) first = i;
    }
    if (2 * n_new > g->n && g->gap[first].end < r->job->begin + BLOCK_BYTES_GROUP) return g->n;
    for (size_t i = 1; i <= first; i++)
        set_verdict(&g->gap[i], i < first ? GAP_JOIN : GAP_CUT, "prefix", 1);
    return first;
}

static int emit(struct region *r)
{
    const struct gaps *g = &r->gaps;
    int rc = 0;
    for (size_t a = first_cut(r), b; a + 1 < g->n && rc == 0; a = b) {
        for (b = a + 1; g->gap[b].verdict != GAP_CUT; b++)
            ASSERT(b + 1 < g->n); /* the last gap is an edge, and cut */
        rc = emit_run(r, &g->gap[a], &g->gap[b]);
    }
    return rc;
}

static bool is_edge_of(const struct seg_list *l, size_t from, const struct gap *x)
{
    for (size_t i = from; i < l->n && l->seg[i].begin <= x->begin; i++)
        if (l->seg[i].begin >= x->end || l->seg[i].end == x->end ||
            (l->seg[i].end >= x->end && l->seg[i].end <= x->begin))
            return true;
    return false;
}

static int explain(const struct region *r, size_t n_before)
{
    size_t from = n_before;
    for (size_t i = 0; i < r->gaps.n; i++) {
        const struct gap *x = &r->gaps.gap[i];
        while (from < r->out->n && r->out->seg[from].end < x->end)
            from++;
        bool cut = is_edge_of(r->out, from, x);
        if (!cut && x->form == FORM_WORD && x->verdict != GAP_CUT && x->l.turns + x->r.turns == 0)
            continue; /* thousands of words that nothing is known about */
        struct seg_why y = {.msg = r->job->msg,
                            .begin = x->end,
                            .end = x->begin,
                            .cut = cut,
                            .reason = cut || x->verdict != GAP_CUT ? x->reason : "not_a_chunk",
                            .form = gap_form_name(x->form),
                            .n_left = x->l.n,
                            .n_right = x->r.n,
                            .confidence = (double)x->confidence};
        if (!cut && x->verdict == GAP_UNSURE_SPLIT) y.reason = "short_pieces_joined";
        int rc = why_add(r->job->opts->whys, y);
        if (rc < 0) return rc;
    }
    return 0;
}

/* Learn from this text; keep what came out as chunks: what evidence cut at once, what first sight
 * cut when it comes out a second time. */
static void remember(struct region *r, size_t n_before)
{
    const struct region_job *j = r->job;
    if (j->opts->dry || r->seen) return;
    if (j->still && r->out->n > n_before) {
        (void)learn_text(r->learner, r->space, r->print, TEXT_CUT, false);
        for (size_t i = gap_from(&r->gaps, r->out->seg[n_before].begin) + 1; i < r->gaps.n; i++)
            r->gaps.gap[i].left[GAP_WIDTHS - 1] = 0; /* behind a chunk: no exact prefix */
    }
    learn_add(r->learner, r->space, &r->gaps);
    for (size_t i = n_before; i < r->out->n && !j->still; i++) {
        const struct seg *s = &r->out->seg[i];
        bool sure = strcmp(s->detector, "learned") == 0 || strcmp(s->detector, "known") == 0;
        learn_keep(r->learner, r->space, j->text + s->begin, s->end - s->begin, sure);
    }
}

int learned_cut(const struct region_job *j, struct seg_list *out)
{
    const struct seg_opts *o = j->opts;
    struct region r = {.job = j, .learner = o->learner, .out = out, .question = j->question};
    size_t n_before = out->n;
    r.gaps.still = j->still;
    if (j->begin >= j->end) return 0;
    if (j->end - j->begin > GAP_TEXT_MAX) {
        struct cutter c = cutter_of(j, j->detector ? j->detector : "blocks", out);
        return blocks_cut(&c, j->begin, j->question < j->end ? j->question : j->end);
    }
    int rc = gaps_find(j->text, j->begin, j->end, &r.gaps);
    if (rc < 0 || r.gaps.n == 0) goto out;
    (void)open_space(o, &r.space);
    if (r.space) {
        r.print = XXH3_64bits(j->text + j->begin, j->end - j->begin);
        r.seen = learn_text(r.learner, r.space, r.print, 0, o->dry);
        learn_look(r.space, &r.gaps);
    }
    judge_all(&r);
    if (r.space && !j->still) rc = scan_kept(&r, j->end, place_kept);
    if (rc == 0 && r.more.n > 0) rc = merge(&r.gaps, &r.more);
    if (rc == 0) rc = emit(&r);
    if (rc == 0 && o->whys) rc = explain(&r, n_before);
    if (rc == 0 && r.space) remember(&r, n_before);
out:
    if (r.space) learn_close(r.learner, r.space);
    gaps_fini(&r.gaps);
    gaps_fini(&r.more);
    return rc;
}

/* ---- texts that are not cut by gaps ---- */

void learned_keep(const struct seg_opts *o, const char *text, const struct seg_list *l, size_t from)
{
    struct space *space;
    if (o->dry || !open_space(o, &space)) return;
    for (size_t i = from; i < l->n; i++) {
        size_t begin = l->seg[i].begin, end = l->seg[i].end;
        while (begin < end && text[begin] == ' ') /* it will be looked for where words start */
            begin++;
        learn_keep(o->learner, space, text + begin, end - begin, true);
    }
    learn_close(o->learner, space);
}

size_t learned_tail(const struct seg_opts *o, const char *text, size_t begin, size_t end)
{
    struct space *space;
    size_t work = 4 * (end - begin) + KEPT_BYTES_MAX, found = SIZE_MAX;
    while (end > begin && (text[end - 1] == '\n' || text[end - 1] == '\r' || text[end - 1] == ' '))
        end--;
    if (!open_space(o, &space)) return SIZE_MAX;
    learn_lock(space);
    for (size_t at = begin; at < end && found == SIZE_MAX;) {
        if (learn_match(space, text, at, end, &work) == end - at) found = at;
        const char *nl = memchr(text + at, '\n', end - at);
        at = nl ? (size_t)(nl - text) + 1 : end;
    }
    learn_unlock(space);
    learn_close(o->learner, space);
    return found;
}

/* Paragraphs of a short text become candidates. */
static void offer(const struct region *r)
{
    const struct gaps *g = &r->gaps;
    size_t at = g->gap[0].begin;
    for (size_t i = 1; i < g->n; i++) {
        const struct gap *x = &g->gap[i];
        if (x->form != FORM_BLANK && x->form != FORM_RULE && x->form != FORM_EDGE) continue;
        if (x->end > at && x->end - at >= BLOCK_BYTES_MIN)
            learn_keep(r->learner, r->space, r->job->text + at, x->end - at, false);
        at = x->begin;
    }
}

static int take_kept(struct region *r, size_t begin, size_t end)
{
    for (size_t i = 0; i < r->gaps.n; i++)
        if (r->gaps.gap[i].begin == begin || r->gaps.gap[i].end == end)
            set_verdict(&r->gaps.gap[i], GAP_CUT, "kept_text", 1);
    return seg_add(r->out, r->job->msg, begin, end, "known");
}

int learned_short(const struct region_job *j, struct seg_list *out)
{
    const struct seg_opts *o = j->opts;
    struct region r = {.job = j, .learner = o->learner, .out = out};
    size_t end = j->question < j->end ? j->question : j->end, n_before = out->n;
    if (j->begin >= end || !open_space(o, &r.space)) return 0;
    int rc = gaps_find(j->text, j->begin, end, &r.gaps);
    for (size_t i = 0; i < r.gaps.n; i++)
        set_verdict(&r.gaps.gap[i], GAP_UNSURE_JOIN, "short_text", 1);
    if (rc < 0 || r.gaps.n == 0) goto out;
    r.print = XXH3_64bits(j->text + j->begin, end - j->begin);
    r.seen = learn_text(r.learner, r.space, r.print, 0, o->dry);
    rc = scan_kept(&r, end, take_kept);
    if (rc == 0 && !o->dry && !r.seen) offer(&r);
    if (rc == 0 && o->whys) rc = explain(&r, n_before);
out:
    learn_close(r.learner, r.space);
    gaps_fini(&r.gaps);
    return rc;
}
