/* SentencePiece's unigram model: of all ways to cut a word into tokens the one whose scores add up
 * to the most.
 *
 * The text is first made what the vocabulary is about: characters mapped, runs of spaces made one,
 * each space U+2581, which also stands before the first word. It is cut before each U+2581; a word
 * is a row of places, each with the best way to get there. Tokens are found in a trie whose edges
 * (node, byte) → node stand in the pair table that the merging tokenizers use for merges. Sums are
 * made in doubles in the order of the tokenizers package, so that ties fall as they do there.
 * Unknown characters that follow each other are one token. */
#include "base/mem.h"
#include "fusor/text/tok_charsmap.h"
#include "fusor/text/tok_load.h"
#include "fusor/text/unicode.h"

#include <string.h>

#define SPACE "\xE2\x96\x81" /* U+2581 */
enum {
    SPACE_LEN = sizeof SPACE - 1,
    UNKNOWN_PENALTY = 10, /* SentencePiece's */
    WORD_MAX = 1 << 16,   /* bytes; chosen: bounds the places, no word of any text */
    GRAPHEME_MAX = 5      /* bytes of one that is mapped as a whole */
};

/* ---- the trie ---- */

int tok_unigram_index(struct tok *t)
{
    struct tok_unigram *u = &t->unigram;
    size_t cap = 0, most = 1;
    for (size_t i = 0; i < t->n_vocab; i++)
        most += t->e[i].len; /* nodes, if nothing is shared */
    u->n_nodes = 1;
    for (size_t i = 0; i < t->n_vocab; i++) {
        const struct tok_entry *e = &t->e[i];
        if (e->type != TOK_T_NORMAL) continue;
        int32_t node = 0;
        for (uint32_t k = 0; k < e->len; k++) {
            const uint8_t byte = tok_raw(t, (int32_t)i)[k];
            int32_t next = tok_pair_find(t, node, byte);
            if (next < 0) {
                next = (int32_t)u->n_nodes++;
                int r = tok_merge_add(t, node, byte, next, 0);
                if (r < 0) return r;
            }
            node = next;
        }
        while (u->n_nodes > cap) {
            const size_t grown = cap ? cap * 2 : 4096, now = grown < most ? grown : most;
            int32_t *token = mem_realloc(u->token, now * sizeof *token);
            if (!token) return -ENOMEM;
            u->token = token;
            for (; cap < now; cap++)
                token[cap] = -1;
        }
        if (node) u->token[node] = (int32_t)i;
    }
    return 0;
}

/* ---- a word ---- */

struct place { /* behind a character: the best way here */
    double score;
    int32_t id;
    uint32_t from; /* UINT32_MAX: nobody has been here */
};
struct cutter {
    const struct tok *t;
    struct tok_ids *out;
    struct place *place; /* [cap] */
    size_t cap;
};

static void arrive(struct cutter *c, size_t from, size_t to, int32_t id, double score)
{
    struct place *p = &c->place[to];
    const double sum = score + c->place[from].score;
    if (p->from != UINT32_MAX && !(sum > p->score)) return;
    *p = (struct place){sum, id, (uint32_t)from};
}

/* All tokens that begin at `at`; and the character there alone, if it is no token. */
static void leave(struct cutter *c, const uint8_t *s, size_t len, size_t at, unsigned char_len)
{
    const struct tok_unigram *u = &c->t->unigram;
    bool alone = false;
    int32_t node = 0;
    for (size_t k = at; k < len; k++) {
        node = tok_pair_find(c->t, node, s[k]);
        if (node < 0) break;
        const int32_t id = u->token[node];
        if (id < 0) continue;
        arrive(c, at, k + 1, id, u->score[id]);
        alone |= k + 1 - at == char_len;
    }
    if (!alone) arrive(c, at, at + char_len, c->t->unk, u->least - UNKNOWN_PENALTY);
}

/* The way back, whose ends become starts; its tokens in order. */
static int push_path(struct cutter *c, size_t len, size_t base)
{
    const int32_t unk = c->t->unk;
    size_t n = 0, first = c->out->n;
    int r = 0;
    for (size_t at = len; at > 0; at = c->place[at].from)
        n++;
    for (size_t i = 0; r == 0 && i < n; i++)
        r = tok_push(c->out, unk, 0, 0); /* room, to be filled from the end */
    if (r < 0) return r;
    size_t k = first + n;
    for (size_t at = len; at > 0; at = c->place[at].from) {
        const struct place *p = &c->place[at];
        const bool joins = p->id == unk && k < first + n && c->out->id[k] == unk;
        if (!joins) c->out->end[--k] = (uint32_t)(base + at);
        c->out->id[k] = p->id;
        c->out->begin[k] = (uint32_t)(base + p->from);
    }
    const size_t kept = first + n - k; /* fewer where unknown ones were joined */
    memmove(c->out->id + first, c->out->id + k, kept * sizeof *c->out->id);
    memmove(c->out->begin + first, c->out->begin + k, kept * sizeof *c->out->begin);
    memmove(c->out->end + first, c->out->end + k, kept * sizeof *c->out->end);
    c->out->n = first + kept;
    return 0;
}

static int cut_word(struct cutter *c, const uint8_t *s, size_t len, size_t base)
{
    if (len + 1 > c->cap) {
        struct place *p = mem_realloc(c->place, (len + 1) * sizeof *p);
        if (!p) return -ENOMEM;
        c->place = p;
        c->cap = len + 1;
    }
    for (size_t i = 1; i <= len; i++)
        c->place[i].from = UINT32_MAX;
    c->place[0] = (struct place){0};
    unsigned char_len;
    for (size_t at = 0; at < len; at += char_len) {
        (void)uni_decode(s + at, len - at, &char_len);
        leave(c, s, len, at, char_len);
    }
    return push_path(c, len, base);
}

static bool is_space_mark(const uint8_t *s, size_t len)
{
    return len >= SPACE_LEN && memcmp(s, SPACE, SPACE_LEN) == 0;
}

/* Up to the next U+2581. */
static size_t word_len(const uint8_t *s, size_t len)
{
    size_t n = 0;
    unsigned l;
    while (n < len && n + 4 <= WORD_MAX && !(n && is_space_mark(s + n, len - n))) {
        (void)uni_decode(s + n, len - n, &l);
        n += l;
    }
    return n;
}

/* ---- what the vocabulary is about: a text from a text, with the places that changed ---- */

static int put_edit(struct tok_norm *n, const uint8_t *s, size_t len, size_t at, size_t src_len)
{
    int r = tok_norm_edit(n, n->text.len, len, at, src_len);
    return r == 0 && len ? buf_add(&n->text, s, len) : r;
}

/* Characters and graphemes by the map. */
static int map_text(const struct tok_charsmap *m, const uint8_t *s, size_t len, struct tok_norm *n)
{
    int r = 0;
    unsigned l;
    for (size_t at = 0, end; r == 0 && at < len; at = end) {
        const size_t whole = uni_grapheme(s + at, len - at);
        end = at + whole;
        const char *to = whole <= GRAPHEME_MAX ? tok_charsmap_find(m, s + at, whole) : NULL;
        if (to) r = put_edit(n, (const uint8_t *)to, strlen(to), at, whole);
        for (size_t i = to ? end : at; r == 0 && i < end; i += l) {
            (void)uni_decode(s + i, end - i, &l);
            to = tok_charsmap_find(m, s + i, l);
            r = to ? put_edit(n, (const uint8_t *)to, strlen(to), i, l)
                   : buf_add(&n->text, s + i, l);
        }
    }
    return r;
}

/* Each run of spaces one U+2581, or as many as spaces; one more before the first word. Where words
 * are split at white space of any kind, that goes, and each word has one before it. */
static int mark_spaces(const struct tok_unigram *u, const uint8_t *s, size_t len,
                       struct tok_norm *n)
{
    static const uint8_t mark[] = SPACE;
    bool begun = false, in_run = false;
    int r = 0;
    unsigned l;
    for (size_t at = 0; r == 0 && at < len; at += l) {
        (void)uni_decode(s + at, len - at, &l);
        const bool space = u->split ? uni_space_head(s + at, l, false) == l : s[at] == ' ';
        if (space) {
            const bool drops = u->split || (u->joins_spaces && in_run);
            r = put_edit(n, mark, drops ? 0 : SPACE_LEN, at, l);
            begun = !u->split;
            in_run = true;
            continue;
        }
        in_run = false;
        if (!begun && !is_space_mark(s + at, len - at)) r = put_edit(n, mark, SPACE_LEN, at, 0);
        begun = true;
        if (r == 0) r = buf_add(&n->text, s + at, l);
    }
    return r;
}

int tok_unigram(const struct tok *t, const uint8_t *s, size_t len, size_t base, struct tok_ids *out)
{
    const struct tok_unigram *u = &t->unigram;
    struct tok_norm mapped = {0}, marked = {0};
    struct cutter c = {.t = t, .out = out};
    const size_t from = out->n;
    int r = u->map ? map_text(u->map, s, len, &mapped) : 0;
    if (u->map) s = (const uint8_t *)mapped.text.data;
    if (u->map) len = mapped.text.len;
    if (u->strips && len) len -= uni_space_tail(s, len, false);
    if (r == 0) r = mark_spaces(u, s, len, &marked);
    if (r == 0 && marked.text.len > UINT32_MAX - base) r = -ERANGE;
    const uint8_t *text = (const uint8_t *)marked.text.data;
    for (size_t at = 0, l; r == 0 && at < marked.text.len; at += l) {
        l = word_len(text + at, marked.text.len - at);
        r = cut_word(&c, text + at, l, base + at);
    }
    if (r == 0) tok_norm_offsets(&marked, base, out, from);
    if (r == 0 && u->map) tok_norm_offsets(&mapped, base, out, from);
    mem_free(c.place);
    tok_norm_fini(&mapped);
    tok_norm_fini(&marked);
    return r;
}
