/* Gaps: lines into pieces, what lies between into gaps, both sides into fingerprints.
 *
 * The windows are plain bytes next to the gap, whatever lines they span: a closing brace alone says
 * nothing, the 64 bytes that end with it do; where two documents share those, 1024 bytes still tell
 * them apart. Rejected: a fingerprint per whole paragraph (one edited
 * word makes it a stranger, and a document cut off by a token budget loses its end). */
#include "segment/gaps.h"

#include "base/assert.h"
#include "base/mem.h"

#include <string.h>
#include <strings.h>
#include <xxhash.h>

enum {
    SEED_LEFT = 1,
    SEED_RIGHT = 2,
    SEED_WORD = 3,
    SEED_OPENING = 16, /* and the form */
    SEED_PREFIX = 64,
    SEED_PIECE,
    STILL_WORDS = 64, /* chosen: words of a piece without sentences, about */
    STILL_BYTES = 48, /* chosen: fewer may stand anywhere */
    OPENING_BYTES_MAX = 24,
    MARKER_BYTES_MAX = 48
};

const char *gap_form_name(unsigned form)
{
    static const char *const names[] = {"word", "line", "blank", "rule", "edge", "none"};
    ASSERT(form < FORM_COUNT);
    return names[form];
}

int gaps_add(struct gaps *g, struct gap x)
{
    struct gap *room = grown(g->gap, g->n, &g->cap, sizeof *room);
    if (!room) return -ENOMEM;
    g->gap = room;
    g->gap[g->n++] = x;
    return 0;
}

void gaps_fini(struct gaps *g)
{
    mem_free(g->gap);
    *g = (struct gaps){0};
}

/* ---- markers ---- */

static size_t skip_digits(const char *t, size_t at, size_t end)
{
    while (at < end && t[at] >= '0' && t[at] <= '9')
        at++;
    return at;
}

static size_t skip_word(const char *t, size_t at, size_t end)
{
    static const char *const words[] = {"document", "doc",     "source",    "passage",
                                        "context",  "chunk",   "excerpt",   "snippet",
                                        "text",     "article", "reference", "result"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t n = strlen(words[i]);
        if (end - at > n && strncasecmp(t + at, words[i], n) == 0 &&
            (t[at + n] == ' ' || t[at + n] == '#'))
            return at + n + 1;
    }
    return at;
}

/* Number with its brackets; `at` when there is none. */
static size_t skip_number(const char *t, size_t at, size_t end, bool bare)
{
    size_t i = at;
    char open = i < end ? t[i] : '\0';
    if (open == '[' || open == '(' || open == '#') i++;
    size_t d = skip_digits(t, i, end);
    if (d == i || d - i > 6) return at;
    if (open == '[' || open == '(') {
        if (d == end || t[d] != (open == '[' ? ']' : ')')) return at;
        d++;
        if (d < end && (t[d] == ':' || t[d] == '.')) d++;
    } else if (d < end && (t[d] == ':' || t[d] == '.' || t[d] == ')')) {
        d++;
    } else if (!bare && open != '#') {
        return at; /* a sentence may start with a number */
    }
    return d == end || is_blank(t[d]) || strchr("\n*]", t[d]) || t[d - 1] == ']' ? d : at;
}

/* "[3] ", "Document 3:", "### Source 2", "**Doc 1** ", "4. " at the start of a line. */
size_t marker_end(const char *t, size_t at, size_t end)
{
    if (end - at > MARKER_BYTES_MAX) end = at + MARKER_BYTES_MAX;
    size_t i = at;
    while (i < end && (t[i] == '#' || t[i] == '*' || t[i] == '-' || is_blank(t[i])))
        i++;
    if (i < end && t[i] == '[' && skip_word(t, i + 1, end) > i + 1) i++;
    size_t w = skip_word(t, i, end), d = skip_number(t, w, end, w > i);
    if (d == w && w == i) return at;
    if (d == w) return at;
    while (d < end && (t[d] == '*' || t[d] == ']' || t[d] == ':' || is_blank(t[d])))
        d++;
    return d;
}

/* A line of nothing but rule characters, three at least. */
static bool is_rule(const char *t, size_t at, size_t end)
{
    size_t n = 0;
    for (; at < end; at++) {
        if (is_blank(t[at])) continue;
        if (!strchr("-=*_#~+", t[at])) return false;
        n++;
    }
    return n >= 3;
}

/* ---- fingerprints ---- */

struct scanner {
    const char *text;
    size_t begin, end;
    uint64_t *sum; /* sum[i]: polynomial of text[begin, begin + i) */
    uint64_t power[GAP_WIDTHS];
    struct gaps *out;
    size_t n_words;
};
#define BASE 0x9E3779B97F4A7C15u
static const size_t widths[GAP_WIDTHS] = {64, 256, 1024}; /* chosen: 12 words, a paragraph, more
                                                             than what documents often share */

static uint64_t power_of(size_t n)
{
    uint64_t r = 1;
    for (uint64_t b = BASE; n; n >>= 1, b *= b)
        if (n & 1) r *= b;
    return r;
}

static int scanner_init(struct scanner *s, const char *text, size_t begin, size_t end)
{
    size_t n = end - begin;
    uint64_t sum = 0;
    s->text = text;
    s->begin = begin;
    s->end = end;
    s->sum = mem_alloc((n + 1) * sizeof *s->sum);
    if (!s->sum) return -ENOMEM;
    s->sum[0] = 0;
    for (size_t i = 0; i < n; i++)
        s->sum[i + 1] = sum = sum * BASE + (unsigned char)text[begin + i] + 1;
    for (int k = 0; k < GAP_WIDTHS; k++)
        s->power[k] = power_of(widths[k]);
    return 0;
}

static uint64_t mix(uint64_t x, uint64_t seed)
{
    x ^= seed * 0xD6E8FEB86659FD93u;
    x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93u;
    x = (x ^ (x >> 29)) * 0xBF58476D1CE4E5B9u;
    return (x ^ (x >> 32)) | 1; /* never 0 */
}

static uint64_t window(const struct scanner *s, size_t from, size_t to, uint64_t power)
{
    return s->sum[to - s->begin] - s->sum[from - s->begin] * power;
}

/* Of the bytes in front of `at` (back) or from it on, as far as `limit`. */
static uint64_t print_window(const struct scanner *s, size_t at, size_t limit, bool back, int k)
{
    const size_t n = back ? at - limit : limit - at, w = n < widths[k] ? n : widths[k];
    const uint64_t power = w == widths[k] ? s->power[k] : power_of(w);
    const uint64_t h = back ? window(s, at - w, at, power) : window(s, at, at + w, power);
    return mix(h, (back ? SEED_LEFT : SEED_RIGHT) + 4 * (unsigned)k);
}

/* In each width. The narrow window stays inside its piece, whose other end is `edge`: a title, or a
 * last line cut short, is known by itself, whatever document comes next. */
static void print_side(const struct scanner *s, size_t at, size_t edge, bool back,
                       uint64_t ret[GAP_WIDTHS])
{
    for (int k = 0; k < GAP_WIDTHS; k++)
        ret[k] = print_window(s, at, k == 0 ? edge : back ? s->begin : s->end, back, k);
}

static uint32_t print_word(const char *t, size_t at, size_t end)
{
    return (uint32_t)XXH3_64bits_withSeed(t + at, end - at, SEED_WORD);
}

/* "file_path:", "Title:", "<doc": what a piece starts with up to the first blank. */
static uint32_t print_opening(const char *t, size_t at, size_t end, unsigned form)
{
    size_t to = at;
    while (to < end && to - at < OPENING_BYTES_MAX && !is_blank(t[to]))
        to++;
    return (uint32_t)XXH3_64bits_withSeed(t + at, to - at, SEED_OPENING + form) | 1;
}

/* ---- finding ---- */

struct piece {
    size_t begin, end;
};

/* The gap between two pieces; no piece before the first and behind the last. */
static int add_line_gap(struct scanner *s, const struct piece *before, const struct piece *behind,
                        unsigned form)
{
    size_t end = before ? before->end : behind->begin, begin = behind ? behind->begin : s->end;
    struct gap g = {.end = (uint32_t)end, .begin = (uint32_t)begin, .form = (uint8_t)form};
    if (before) {
        print_side(s, end, before->begin, true, g.left);
        g.prev = (uint32_t)g.left[0];
    }
    if (behind) {
        print_side(s, begin, behind->end, false, g.right);
        g.opens = print_opening(s->text, begin, behind->end, form);
        g.next = (uint32_t)g.right[0];
    }
    return gaps_add(s->out, g);
}

/* May a text end behind text[i], though nothing separates it from the next? */
static bool ends_text(const char *t, size_t i, size_t end)
{
    return strchr(".!?)]}>\"", t[i]) && t[i] && i + 1 < end && !is_blank(t[i + 1]);
}

static int add_word_gap(struct scanner *s, const struct piece *word, size_t begin, size_t end)
{
    size_t next_end = begin;
    while (next_end < end && !is_blank(s->text[next_end]) && next_end - begin < widths[0])
        next_end++;
    struct gap g = {.end = (uint32_t)word->end, .begin = (uint32_t)begin, .form = FORM_WORD};
    print_side(s, word->end, s->begin, true, g.left);
    print_side(s, begin, s->end, false, g.right);
    g.next = print_word(s->text, begin, next_end);
    g.prev = print_word(s->text, word->begin, word->end);
    s->n_words++;
    return gaps_add(s->out, g);
}

/* Where a still text's long line is divided: behind a sentence, or where a word says so, but not
 * shortly behind another such place (`last`), as a few words alone may stand anywhere. */
static bool ends_piece(const char *t, const struct piece *word, size_t *last)
{
    bool ends =
        strchr(".!?", t[word->end - 1]) || print_word(t, word->begin, word->end) % STILL_WORDS == 0;
    bool apart = word->end - *last >= STILL_BYTES;
    if (ends) *last = word->end;
    return ends && apart;
}

/* Gaps between the words of a long piece. */
static int word_gaps(struct scanner *s, size_t begin, size_t end)
{
    const char *t = s->text;
    struct piece word = {begin, begin};
    size_t last = begin;
    int r = 0;
    for (size_t i = begin; i < end && s->n_words < GAP_WORDS_MAX && r == 0; i++) {
        bool blank = is_blank(t[i]);
        if (!blank && !ends_text(t, i, end)) continue;
        word.end = blank ? i : i + 1;
        size_t next = word.end;
        while (next < end && is_blank(t[next]))
            next++;
        if (next >= end) break;
        if (word.end > word.begin && (!s->out->still || ends_piece(t, &word, &last)))
            r = add_word_gap(s, &word, next, end);
        word.begin = next;
        i = next - 1;
    }
    return r;
}

/* Of a still text everything in front of a gap is its widest window, so that what is known in it is
 * an exact prefix; and a change anywhere in a piece makes another neighbour of it. */
static void still_prints(const struct scanner *s)
{
    for (struct gap *a = s->out->gap, *b = a + 1; b < s->out->gap + s->out->n; a = b++) {
        a->next = b->prev = print_word(s->text, a->begin, b->end);
        a->right[0] = print_window(s, a->begin, b->end, false, 0);
        a->right[1] = mix(a->next, SEED_PIECE);
        b->left[0] = print_window(s, b->end, a->begin, true, 0);
        b->left[GAP_WIDTHS - 1] = mix(s->sum[b->end - s->begin], SEED_PREFIX);
    }
}

int gaps_find(const char *text, size_t begin, size_t end, struct gaps *ret)
{
    struct scanner s = {.out = ret};
    const size_t long_piece = ret->still ? widths[1] : BLOCK_BYTES_MAX;
    struct piece last = {0, 0};
    size_t n_pieces = 0;
    unsigned form = FORM_EDGE;
    int r = scanner_init(&s, text, begin, end);
    for (size_t at = begin; at < end && r == 0;) {
        const char *nl = memchr(text + at, '\n', end - at);
        size_t line_end = nl ? (size_t)(nl - text) : end, from = at, to = line_end;
        while (from < to && is_blank(text[from]))
            from++;
        while (to > from && is_blank(text[to - 1]))
            to--;
        size_t start = to > from ? marker_end(text, at, to) : to;
        if (to == from) {
            if (form == FORM_LINE) form = FORM_BLANK;
        } else if (is_rule(text, from, to)) {
            if (form != FORM_EDGE) form = FORM_RULE;
        } else if (start < to) { /* else a line of nothing but a marker */
            struct piece p = {start, to};
            r = add_line_gap(&s, n_pieces ? &last : NULL, &p, n_pieces ? form : FORM_EDGE);
            if (r == 0 && to - start > long_piece) r = word_gaps(&s, start, to);
            last = p;
            n_pieces++;
            form = FORM_LINE;
        }
        at = line_end + 1;
    }
    bool lone = n_pieces == 1 && last.end - last.begin >= PIECE_BYTES_LONE && s.n_words == 0;
    if (r == 0 && lone) r = word_gaps(&s, last.begin, last.end);
    if (r == 0 && n_pieces > 0) r = add_line_gap(&s, &last, NULL, FORM_EDGE);
    if (r == 0 && ret->still && n_pieces > 0) still_prints(&s);
    mem_free(s.sum);
    return r;
}
