/* The encoder's driver and the small reads of a finished tokenizer.
 *
 * Pieces become stretches of text between added tokens, these become pre-tokens, and each pre-token
 * is merged as a word.
 *
 * Neighbouring text, whatever pieces it comes from, is one text to the pre-token rules, as it would
 * be had the prompt been one string. Control tokens are looked for in special pieces only;
 * user-defined tokens everywhere, as the models' own tokenizers do. */
#include "fusor/text/tok.h"

#include "base/assert.h"
#include "fusor/text/tok_int.h"
#include "fusor/text/unicode.h"

#include <string.h>

struct enc {
    const struct tok *t;
    struct tok_ids *out;
    struct tok_work work;
    struct tok_norm norm;
    /* text that waits: in place while it comes from one piece, else joined in `join` */
    const uint8_t *cur;
    size_t cur_len, cur_base, end; /* end: offset after everything seen */
    struct buf join;
    bool joined, eat_space; /* eat_space: the added token before takes the white space after it */
};

/* The longest added token at s, or -1. */
static int32_t added_at(const struct tok *t, const uint8_t *s, size_t n, bool control)
{
    for (uint32_t i = t->first[s[0]]; i < t->first[s[0] + 1]; i++) {
        const struct tok_entry *e = &t->e[t->added[i]];
        if (!control && e->type != TOK_T_USER) continue;
        if (e->len <= n && memcmp(tok_raw(t, t->added[i]), s, e->len) == 0) return t->added[i];
    }
    return -1;
}

static int enc_fragment(struct enc *e, const uint8_t *s, size_t len, size_t base)
{
    const struct tok *t = e->t;
    if (len == 0) return 0;
    if (t->kind == TOK_WORDPIECE) return tok_wordpiece(t, s, len, base, e->out);
    if (t->kind == TOK_UNIGRAM) return tok_unigram(t, s, len, base, e->out);
    bool prefix = t->prefix == TOK_PREFIX_ALWAYS || (t->prefix == TOK_PREFIX_FIRST && base == 0);
    size_t from = e->out->n;
    int changed = tok_normalise(t, s, len, prefix, &e->norm);
    if (changed < 0) return changed;
    if (changed) {
        s = (const uint8_t *)e->norm.text.data;
        len = e->norm.text.len;
        if (len > UINT32_MAX - base) return -ERANGE; /* NFC may make text longer */
    }
    tok_work_memo(&e->work, len);
    for (size_t p = 0; p < len;) {
        size_t q = tok_scan(t->pre, s, len, p);
        int r = tok_word(t, &e->work, s + p, q - p, base + p);
        if (r < 0) return r;
        p = q;
    }
    if (changed) tok_norm_offsets(&e->norm, base, e->out, from);
    return 0;
}

/* Text that is cut only by user-defined tokens. */
static int enc_flush(struct enc *e)
{
    const struct tok *t = e->t;
    const uint8_t *s = e->joined ? (const uint8_t *)e->join.data : e->cur;
    size_t len = e->cur_len, start = 0;
    int r = 0;
    for (size_t p = 0; r == 0 && t->has_user && p < len;) {
        int32_t id = t->user_byte[s[p]] ? added_at(t, s + p, len - p, false) : -1;
        if (id < 0) {
            p++;
            continue;
        }
        size_t from = p, to = p + t->e[id].len;
        if (t->e[id].lstrip) from -= uni_space_tail(s + start, p - start, false);
        if (t->e[id].rstrip) to += uni_space_head(s + to, len - to, false);
        r = enc_fragment(e, s + start, from - start, e->cur_base + start);
        if (r == 0) r = tok_push(e->out, id, e->cur_base + from, e->cur_base + to);
        p = start = to;
    }
    if (r == 0) r = enc_fragment(e, s + start, len - start, e->cur_base + start);
    e->cur_len = 0;
    e->joined = false;
    return r;
}

static int enc_text(struct enc *e, const uint8_t *s, size_t len)
{
    size_t base = e->end;
    e->end += len;
    if (e->eat_space) {
        size_t n = uni_space_head(s, len, false);
        if (n < len) e->eat_space = false;
        if (n) e->out->end[e->out->n - 1] += (uint32_t)n;
        s += n;
        len -= n;
        base += n;
    }
    if (len == 0) return 0;
    if (e->cur_len == 0) {
        e->cur = s;
        e->cur_len = len;
        e->cur_base = base;
        return 0;
    }
    int r = 0;
    if (!e->joined) {
        buf_clear(&e->join);
        r = buf_add(&e->join, e->cur, e->cur_len);
        if (r < 0) return r;
        e->joined = true;
    }
    r = buf_add(&e->join, s, len);
    if (r == 0) e->cur_len += len;
    return r;
}

static int enc_control(struct enc *e, int32_t id)
{
    const struct tok_entry *a = &e->t->e[id];
    size_t begin = e->end;
    if (a->lstrip && e->cur_len) {
        const uint8_t *s = e->joined ? (const uint8_t *)e->join.data : e->cur;
        size_t n = uni_space_tail(s, e->cur_len, false);
        e->cur_len -= n;
        begin -= n;
    }
    int r = enc_flush(e);
    if (r == 0) r = tok_push(e->out, id, begin, e->end + a->len);
    e->end += a->len;
    e->eat_space = a->rstrip;
    return r;
}

static int enc_special(struct enc *e, const uint8_t *s, size_t len)
{
    size_t start = 0;
    for (size_t p = 0; p < len;) {
        int32_t id = added_at(e->t, s + p, len - p, true);
        if (id < 0) {
            p++;
            continue;
        }
        int r = enc_text(e, s + start, p - start);
        if (r == 0) r = enc_control(e, id);
        if (r < 0) return r;
        p += e->t->e[id].len;
        start = p;
    }
    return enc_text(e, s + start, len - start);
}

int tok_encode(const struct tok *t, const struct tok_piece *pieces, size_t n, unsigned flags,
               struct tok_ids *out)
{
    size_t total = 0, n_before = out->n;
    for (size_t i = 0; i < n; i++)
        if (pieces[i].len > UINT32_MAX - 1 - total)
            return -ERANGE;
        else
            total += pieces[i].len;
    struct enc e = {.t = t, .out = out, .work = {.out = out}};
    int r = 0;
    const bool begins = (flags & TOK_BOS) && t->add_bos && t->bos >= 0;
    if (begins) r = tok_push(out, t->bos, 0, 0);
    if (r == 0 && begins && t->bos_next >= 0) r = tok_push(out, t->bos_next, 0, 0);
    for (size_t i = 0; r == 0 && i < n; i++) {
        const uint8_t *s = (const uint8_t *)pieces[i].text;
        r = pieces[i].special ? enc_special(&e, s, pieces[i].len) : enc_text(&e, s, pieces[i].len);
    }
    if (r == 0) r = enc_flush(&e);
    if (r == 0 && (flags & TOK_BOS) && t->add_eos && t->eos >= 0)
        r = tok_push(out, t->eos, total, total);
    if (r < 0) out->n = n_before;
    tok_work_fini(&e.work);
    tok_norm_fini(&e.norm);
    buf_fini(&e.join);
    return r;
}

/* ---- reads ---------------------------------------------------------------------------------- */

const struct tok_frame *tok_pair_frame(const struct tok *t)
{
    return t->has_frame ? &t->frame : NULL;
}

size_t tok_n_vocab(const struct tok *t)
{
    return t->n_vocab;
}

int32_t tok_bos(const struct tok *t)
{
    return t->bos;
}

int32_t tok_eos(const struct tok *t)
{
    return t->eos;
}

static bool in_vocab(const struct tok *t, int32_t id)
{
    return id >= 0 && (size_t)id < t->n_vocab;
}

bool tok_is_eog(const struct tok *t, int32_t id)
{
    return in_vocab(t, id) && t->e[id].eog;
}

bool tok_is_special(const struct tok *t, int32_t id)
{
    return in_vocab(t, id) && (t->e[id].type == TOK_T_CONTROL || t->e[id].type == TOK_T_UNKNOWN);
}

bool tok_drops_space(const struct tok *t)
{
    return t->kind == TOK_SPM && t->prefix != TOK_PREFIX_NONE;
}

int tok_bytes(const struct tok *t, int32_t id, bool show_special, const char **ret, size_t *ret_len)
{
    if (!in_vocab(t, id)) return -EINVAL;
    bool hide = tok_is_special(t, id) && !show_special;
    *ret = t->e[id].len ? (const char *)tok_raw(t, id) : "";
    *ret_len = hide ? 0 : t->e[id].len;
    return 0;
}

const char *tok_chat_template(const struct tok *t)
{
    return t->chat_template;
}

void tok_fingerprint(const struct tok *t, uint64_t ret[2])
{
    ret[0] = t->fingerprint[0];
    ret[1] = t->fingerprint[1];
}

/* ---- streaming detokeniser ------------------------------------------------------------------ */

/* How many bytes the held bytes need in all to be a character; 0 = they never become one. */
static unsigned utf8_need(const unsigned char *s, unsigned n)
{
    unsigned char c = s[0];
    unsigned need = c < 0x80 ? 1 : c < 0xC2 ? 0 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : c < 0xF5 ? 4 : 0;
    if (n < 2 || need < 2) return need;
    unsigned char lo = 0x80,
                  hi = 0xBF; /* the second byte rules out overlong forms and surrogates */
    if (c == 0xE0) lo = 0xA0;
    if (c == 0xED) hi = 0x9F;
    if (c == 0xF0) lo = 0x90;
    if (c == 0xF4) hi = 0x8F;
    if (s[1] < lo || s[1] > hi) return 0;
    for (unsigned i = 2; i < n; i++)
        if ((s[i] & 0xC0) != 0x80) return 0;
    return need;
}

static int stream_byte(struct tok_stream *s, unsigned char c, struct buf *out)
{
    s->hold[s->n_hold] = c;
    unsigned need = utf8_need(s->hold, s->n_hold + 1);
    if (need == s->n_hold + 1) {
        int r = buf_add(out, s->hold, need);
        if (r == 0) s->n_hold = 0;
        return r;
    }
    if (need) {
        s->n_hold++;
        return 0;
    }
    int r = buf_add(out, "\xEF\xBF\xBD", 3);
    if (r < 0) return r;
    bool alone = s->n_hold == 0;
    s->n_hold = 0;
    return alone ? 0 : stream_byte(s, c, out); /* at most once: nothing is held any more */
}

/* Of a Unigram vocabulary, whose pieces have U+2581 for a space; the first of a text is none. */
static int stream_piece(struct tok_stream *s, const char *p, size_t len, struct buf *out)
{
    static const char mark[] = "\xE2\x96\x81";
    int r = 0;
    for (size_t i = 0; r == 0 && i < len; s->started = true) {
        const bool space = len - i >= 3 && memcmp(p + i, mark, 3) == 0;
        if (!space || s->started) r = stream_byte(s, (unsigned char)(space ? ' ' : p[i]), out);
        i += space ? 3 : 1;
    }
    return r;
}

/* Words of a WordPiece vocabulary, which has no spaces, are apart; what continues one is not. */
static int stream_word(const struct tok *t, const struct tok_stream *s, const char **p, size_t *len,
                       struct buf *out)
{
    const size_t n = strlen(t->bert.prefix);
    if (*len < n || memcmp(*p, t->bert.prefix, n) != 0) return s->started ? buf_addc(out, ' ') : 0;
    *p += n;
    *len -= n;
    return 0;
}

int tok_stream_push(const struct tok *t, struct tok_stream *s, int32_t id, struct buf *out)
{
    const char *p;
    size_t len;
    int r = tok_bytes(t, id, false, &p, &len);
    if (r < 0 || len == 0) return r;
    if (t->kind == TOK_UNIGRAM) return stream_piece(s, p, len, out);
    if (!s->started && tok_drops_space(t) && p[0] == ' ') {
        p++;
        len--;
    }
    if (t->kind == TOK_WORDPIECE) r = stream_word(t, s, &p, &len, out);
    s->started = true;
    for (size_t i = 0; r == 0 && i < len; i++)
        r = stream_byte(s, (unsigned char)p[i], out);
    return r;
}

int tok_stream_end(struct tok_stream *s, struct buf *out)
{
    int r = s->n_hold ? buf_add(out, "\xEF\xBF\xBD", 3) : 0;
    s->n_hold = 0;
    return r;
}
