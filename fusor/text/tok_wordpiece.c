/* BERT's tokenizer: text made plain, cut at white space and punctuation, each word by the longest
 * pieces of the vocabulary from its left end on.
 *
 * All of it is one pass over the characters, so that every character of a word knows the source
 * bytes that it came from. The order of its steps (control characters out, ideographs apart,
 * accents off, small letters) and its character classes are those of BertNormalizer and
 * BertPreTokenizer. A word is held up to the length at which it is unknown anyway, so memory is
 * bounded whatever the text. */
#include "base/mem.h"
#include "fusor/text/tok_int.h"
#include "fusor/text/unicode.h"

#include <string.h>

struct letter {
    uint32_t begin, end; /* in the source; they ascend */
    uint32_t at;         /* in the word's text */
    uint8_t order;       /* canonical combining class */
};
struct words {
    const struct tok *t;
    struct tok_ids *out;
    struct letter *letter; /* [word_max + 1]: the last one's place is the end of the text */
    size_t n;              /* letters, those that are too many included */
    uint32_t begin, end;   /* of the word in the source */
    struct buf text, room;
};

static int push_unknown(struct words *w)
{
    return tok_push(w->out, w->t->unk, w->begin, w->end);
}

/* The longest token at letter i, to the letter behind it; -1: none. */
static int32_t longest(struct words *w, size_t i, size_t *ret_next, int *ret_status)
{
    const struct tok *t = w->t;
    const uint32_t at = w->letter[i].at;
    buf_clear(&w->room);
    *ret_status = i ? buf_add(&w->room, t->bert.prefix, strlen(t->bert.prefix)) : 0;
    const size_t lead = w->room.len;
    if (*ret_status == 0) *ret_status = buf_add(&w->room, w->text.data + at, w->text.len - at);
    for (size_t k = w->n; *ret_status == 0 && k > i; k--) {
        const size_t len = lead + w->letter[k].at - at;
        const int32_t id = tok_text_id(t, w->room.data, len);
        if (id < 0) continue;
        *ret_next = k;
        return id;
    }
    return -1;
}

static int end_word(struct words *w)
{
    const size_t n = w->n, from = w->out->n;
    int r = 0;
    if (n > w->t->bert.word_max) {
        r = push_unknown(w);
    } else if (n > 0) {
        w->letter[n].at = (uint32_t)w->text.len;
        for (size_t i = 0, next; r == 0 && i < n; i = next) {
            const int32_t id = longest(w, i, &next, &r);
            if (r < 0) break;
            if (id < 0) { /* the whole word is unknown */
                w->out->n = from;
                r = push_unknown(w);
                break;
            }
            r = tok_push(w->out, id, w->letter[i].begin, w->letter[next - 1].end);
        }
    }
    buf_clear(&w->text);
    w->n = 0;
    return r;
}

/* Canonical order: what is of a lower class goes before the letters of higher ones; their places
 * in the source stay in order, which only these few letters share. */
static int add_in_order(struct words *w, uint32_t cp, uint8_t order)
{
    uint8_t s[4];
    const unsigned len = uni_encode(cp, s);
    size_t i = w->n;
    while (order && i > 0 && w->letter[i - 1].order > order)
        i--;
    const uint32_t at = i < w->n ? w->letter[i].at : (uint32_t)w->text.len;
    int r = buf_add(&w->text, s, len);
    if (r < 0) return r;
    char *to = w->text.data + at;
    memmove(to + len, to, w->text.len - len - at);
    memcpy(to, s, len);
    for (size_t k = w->n; k > i; k--) {
        w->letter[k].at = w->letter[k - 1].at + len;
        w->letter[k].order = w->letter[k - 1].order;
    }
    w->letter[i].at = at;
    w->letter[i].order = order;
    return 0;
}

static int add_letter(struct words *w, uint32_t cp, uint32_t begin, uint32_t end)
{
    if (w->n == 0) w->begin = begin;
    w->end = end;
    int r = 0;
    if (w->n < w->t->bert.word_max) {
        w->letter[w->n].begin = begin;
        w->letter[w->n].end = end;
        r = add_in_order(w, cp, w->t->bert.strip ? uni_order(cp) : 0);
    }
    w->n++;
    return r;
}

/* A character of the text made plain: part of a word, a word, or between words. */
static int add_plain(struct words *w, uint32_t cp, uint32_t begin, uint32_t end)
{
    const enum uni_kind kind = uni_kind(cp);
    const bool old_space = cp == '\v' || cp == '\f' || cp == 0x85; /* controls to a normalizer */
    if (kind == UNI_SPACE || old_space) return end_word(w);
    if (kind != UNI_PUNCTUATION) return add_letter(w, cp, begin, end);
    int r = end_word(w);
    if (r == 0) r = add_letter(w, cp, begin, end);
    return r == 0 ? end_word(w) : r;
}

static int add_lower(struct words *w, uint32_t cp, uint32_t begin, uint32_t end)
{
    uint32_t low[2];
    const unsigned n = w->t->bert.lower ? uni_lower(cp, low) : (low[0] = cp, 1);
    int r = 0;
    for (unsigned i = 0; r == 0 && i < n; i++)
        r = add_plain(w, low[i], begin, end);
    return r;
}

/* As BertNormalizer has them: not all ideographs, and no kana. */
static bool is_ideograph(uint32_t cp)
{
    static const uint32_t range[][2] = {{0x4E00, 0x9FFF},   {0x3400, 0x4DBF},   {0x20000, 0x2A6DF},
                                        {0x2A700, 0x2B73F}, {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF},
                                        {0xF900, 0xFAFF},   {0x2F800, 0x2FA1F}};
    for (size_t i = 0; i < sizeof range / sizeof *range; i++)
        if (cp >= range[i][0] && cp <= range[i][1]) return true;
    return false;
}

static int add_char(struct words *w, uint32_t cp, uint32_t begin, uint32_t end)
{
    const struct tok_bert *b = &w->t->bert;
    if (cp == UNI_BAD) cp = 0xFFFD;
    if (b->clean && (cp == 0 || cp == 0xFFFD || uni_kind(cp) == UNI_CONTROL)) return 0;
    const bool apart = b->ideographs && is_ideograph(cp);
    uint32_t part[UNI_PARTS] = {cp};
    const unsigned n = b->strip ? uni_decompose(cp, part) : 1;
    int r = apart ? end_word(w) : 0;
    for (unsigned i = 0; r == 0 && i < n; i++)
        if (!b->strip || uni_kind(part[i]) != UNI_MARK) r = add_lower(w, part[i], begin, end);
    return r == 0 && apart ? end_word(w) : r;
}

int tok_wordpiece(const struct tok *t, const uint8_t *s, size_t len, size_t base,
                  struct tok_ids *out)
{
    struct words w = {.t = t, .out = out};
    w.letter = mem_alloc((t->bert.word_max + 1) * sizeof *w.letter);
    int r = w.letter ? 0 : -ENOMEM;
    unsigned l;
    for (size_t p = 0; r == 0 && p < len; p += l) {
        const uint32_t cp = uni_decode(s + p, len - p, &l);
        r = add_char(&w, cp, (uint32_t)(base + p), (uint32_t)(base + p + l));
    }
    if (r == 0) r = end_word(&w);
    mem_free(w.letter);
    buf_fini(&w.text);
    buf_fini(&w.room);
    return r;
}
