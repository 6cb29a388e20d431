/* Byte-pair merging over a fixed vocabulary.
 *
 * Both families use one table (left, right) → (rank, merged). Byte-level files bring it as a list
 * of merges; for SentencePiece files it is made from the scores: every way to cut a token into two
 * symbols is a pair whose rank is the token's score in an order-preserving integer form. Characters
 * that only occur inside longer tokens get a symbol of their own, so that this is exact.
 *
 * Most words of ordinary text are one token. `whole`, found once for each token by merging its own
 * text, lets such a word be looked up instead of merged, without any cache that threads would
 * share. Short words are merged by scanning for the lowest rank; long ones with a heap over a
 * linked list, so that a megabyte without a break costs n log n. */
#include "fusor/text/tok_charsmap.h"
#include "fusor/text/tok_load.h"

#define XXH_INLINE_ALL
#include "base/assert.h"
#include "base/mem.h"
#include "fusor/text/unicode.h"

#include <string.h>
#include <xxhash.h>

enum {
    SHORT_SYMS = 24,   /* chosen: below it the quadratic scan stays within a few cache lines */
    MEMO_SLOTS = 2048, /* chosen: 160 KiB, most of a text's repeated words */
    MEMO_TOKENS = 8,
    MEMO_TEXT_MIN = 4096, /* chosen: shorter texts repeat too little to pay for the table */
    VOCAB_MAX = 1u << 24, /* chosen: far above any vocabulary, far below what overflows */
    TOKEN_LEN_MAX = 1u << 16
};
struct tok_sym { /* long words: a doubly linked list in an array */
    int32_t id;
    uint32_t prev, next; /* index or NONE */
    uint32_t begin;      /* byte offset in the word */
};
#define NONE UINT32_MAX
struct tok_memo {
    uint8_t text[SHORT_SYMS];
    uint8_t len, n; /* len 0 = free */
    uint8_t end[MEMO_TOKENS];
    int32_t id[MEMO_TOKENS];
};
struct tok_cand { /* a possible merge at sym[pos]; stale when its symbols have changed */
    uint32_t rank, pos;
    int32_t left, right, id;
};

int tok_new(size_t n_vocab, struct tok **ret)
{
    if (n_vocab == 0 || n_vocab > VOCAB_MAX) return -EBADMSG;
    struct tok *t = mem_zalloc(sizeof *t);
    if (!t) return -ENOMEM;
    t->e = mem_zalloc(n_vocab * sizeof *t->e);
    if (!t->e) {
        mem_free(t);
        return -ENOMEM;
    }
    t->n_vocab = t->n_all = n_vocab;
    t->bos = t->bos_next = t->eos = t->unk = -1;
    for (size_t i = 0; i < 256; i++)
        t->byte_id[i] = -1;
    for (size_t i = 0; i < n_vocab; i++)
        t->e[i].type = TOK_T_UNUSED;
    *ret = t;
    return 0;
}

void tok_close(struct tok *t)
{
    if (!t) return;
    mem_free(t->e);
    mem_free(t->slot);
    mem_free(t->pair);
    mem_free(t->added);
    mem_free(t->chat_template);
    mem_free(t->unigram.score);
    mem_free(t->unigram.token);
    tok_charsmap_close(t->unigram.map);
    buf_fini(&t->bytes);
    mem_free(t);
}

int tok_set(struct tok *t, size_t id, const char *text, size_t len, enum tok_type type)
{
    if (id >= t->n_all || len > TOKEN_LEN_MAX || t->bytes.len > UINT32_MAX - TOKEN_LEN_MAX)
        return -EBADMSG;
    struct tok_entry *e = &t->e[id];
    e->off = (uint32_t)t->bytes.len;
    e->len = (uint32_t)len;
    e->type = (uint8_t)type;
    return len ? buf_add(&t->bytes, text, len) : 0;
}

/* ---- text → id ---------------------------------------------------------------------------- */

/* The place of a text, or the free one where it would stand. */
static inline struct tok_slot *slot_of(const struct tok *t, const void *text, size_t len,
                                       uint32_t *ret_tag)
{
    const uint64_t h = XXH3_64bits(text, len);
    const uint32_t tag = *ret_tag = (uint32_t)(h >> 32);
    for (uint32_t i = (uint32_t)h & t->slot_mask;; i = (i + 1) & t->slot_mask) {
        struct tok_slot *s = &t->slot[i];
        if (s->id < 0) return s;
        if (s->tag == tag && t->e[s->id].len == len && memcmp(tok_raw(t, s->id), text, len) == 0)
            return s;
    }
}

int32_t tok_text_id(const struct tok *t, const void *text, size_t len)
{
    uint32_t tag;
    return len == 0 || len > t->len_max ? -1 : slot_of(t, text, len, &tag)->id;
}

static void slot_add(struct tok *t, int32_t id)
{
    const struct tok_entry *e = &t->e[id];
    uint32_t tag;
    struct tok_slot *s = slot_of(t, tok_raw(t, id), e->len, &tag);
    if (e->len > t->len_max) t->len_max = e->len;
    if (s->id < 0) *s = (struct tok_slot){tag, id}; /* the lower id keeps the text */
}

static uint32_t pow2_at_least(size_t n)
{
    uint32_t cap = 64;
    while (cap < n)
        cap *= 2;
    return cap;
}

static bool mergeable(const struct tok_entry *e)
{
    return e->len > 0 &&
           (e->type == TOK_T_NORMAL || e->type == TOK_T_UNUSED || e->type == TOK_T_CHAR);
}

int tok_index(struct tok *t)
{
    size_t n_slots = 0;
    for (size_t i = 0; i < t->n_vocab; i++)
        n_slots += mergeable(&t->e[i]);
    /* SentencePiece may add a symbol per character of a token; they are few, so there is room. */
    uint32_t cap = pow2_at_least(2 * n_slots + 4096);
    t->slot = mem_alloc(cap * sizeof *t->slot);
    if (!t->slot) return -ENOMEM;
    t->slot_mask = cap - 1;
    for (uint32_t i = 0; i < cap; i++)
        t->slot[i].id = -1;
    for (size_t i = 0; i < t->n_vocab; i++)
        if (mergeable(&t->e[i])) slot_add(t, (int32_t)i);
    if (t->kind == TOK_BYTE_LEVEL) {
        for (unsigned b = 0; b < 256; b++)
            t->byte_id[b] = tok_text_id(t, &(uint8_t){(uint8_t)b}, 1);
    } else {
        for (size_t i = 0; i < t->n_vocab; i++)
            if (t->e[i].type == TOK_T_BYTE && t->e[i].len == 1)
                t->byte_id[tok_raw(t, (int32_t)i)[0]] = (int32_t)i;
    }
    for (unsigned b = 0; b < 128; b++)
        t->ascii_id[b] = tok_text_id(t, &(uint8_t){(uint8_t)b}, 1);
    return 0;
}

/* ---- merges --------------------------------------------------------------------------------- */

/* The place of a pair, or the free one where it would stand. */
static inline struct tok_pair *pair_of(struct tok_pair *table, uint32_t mask, uint64_t key)
{
    uint32_t i = (uint32_t)((key * 0x9E3779B97F4A7C15u) >> 32) & mask;
    while (table[i].key != key && table[i].key != UINT64_MAX)
        i = (i + 1) & mask;
    return &table[i];
}

static inline uint64_t pair_key(int32_t l, int32_t r)
{
    return (uint64_t)(uint32_t)l << 32 | (uint32_t)r;
}

static inline const struct tok_pair *pair_find(const struct tok *t, int32_t l, int32_t r)
{
    if ((l | r) < 0) return NULL;
    const struct tok_pair *p = pair_of(t->pair, t->pair_mask, pair_key(l, r));
    return p->key == UINT64_MAX ? NULL : p;
}

int32_t tok_pair_find(const struct tok *t, int32_t left, int32_t right)
{
    const struct tok_pair *p = t->pair ? pair_find(t, left, right) : NULL;
    return p ? p->id : -1;
}

static int pairs_grow(struct tok *t)
{
    uint32_t cap = t->pair ? (t->pair_mask + 1) * 2 : 4096;
    struct tok_pair *p = mem_alloc(cap * sizeof *p);
    if (!p) return -ENOMEM;
    for (uint32_t i = 0; i < cap; i++)
        p[i].key = UINT64_MAX;
    for (uint32_t i = 0; t->pair && i <= t->pair_mask; i++)
        if (t->pair[i].key != UINT64_MAX) *pair_of(p, cap - 1, t->pair[i].key) = t->pair[i];
    mem_free(t->pair);
    t->pair = p;
    t->pair_mask = cap - 1;
    return 0;
}

int tok_merge_add(struct tok *t, int32_t left, int32_t right, int32_t merged, uint32_t rank)
{
    ASSERT(left >= 0 && right >= 0 && merged >= 0);
    if (!t->pair || 2 * (t->n_pair + 1) > t->pair_mask) {
        int r = pairs_grow(t);
        if (r < 0) return r;
    }
    const uint64_t key = pair_key(left, right);
    struct tok_pair *p = pair_of(t->pair, t->pair_mask, key);
    if (p->key == key) return 0; /* the first, lower rank counts */
    *p = (struct tok_pair){key, rank, merged};
    t->n_pair++;
    return 0;
}

/* Higher score = lower rank, order kept exactly; equal scores give equal ranks. */
static uint32_t score_rank(float score)
{
    uint32_t u;
    memcpy(&u, &score, sizeof u);
    u = u & 0x80000000u ? ~u : u | 0x80000000u;
    return ~u;
}

static unsigned char_len(const uint8_t *s, size_t n)
{
    unsigned len;
    (void)uni_decode(s, n, &len);
    return len;
}

/* Give every character that occurs in a token but is none itself a symbol. */
static int add_chars(struct tok *t)
{
    size_t cap = t->n_all;
    for (size_t i = 0; i < t->n_vocab; i++) {
        if (!mergeable(&t->e[i])) continue;
        unsigned len;
        for (uint32_t p = 0; p < t->e[i].len; p += len) {
            const uint8_t *s = tok_raw(t, (int32_t)i) + p;
            len = char_len(s, t->e[i].len - p);
            if (tok_text_id(t, s, len) >= 0) continue;
            if (2 * (t->n_all - t->n_vocab) > 4096)
                return -EBADMSG; /* the index has no more room */
            if (t->n_all == cap) {
                struct tok_entry *e = mem_realloc(t->e, (cap + 256) * sizeof *e);
                if (!e) return -ENOMEM;
                t->e = e;
                memset(e + cap, 0, 256 * sizeof *e);
                cap += 256;
            }
            uint8_t c[4];
            memcpy(c, s, len); /* tok_set() may move the bytes */
            t->n_all++;
            int r = tok_set(t, t->n_all - 1, (const char *)c, len, TOK_T_CHAR);
            if (r < 0) return r;
            slot_add(t, (int32_t)(t->n_all - 1));
            if (len == 1 && c[0] < 128) t->ascii_id[c[0]] = (int32_t)(t->n_all - 1);
        }
    }
    return 0;
}

int tok_merges_from_scores(struct tok *t, const float *score)
{
    int r = add_chars(t);
    for (size_t i = 0; r == 0 && i < t->n_vocab; i++) {
        const struct tok_entry *e = &t->e[i];
        if (!mergeable(e)) continue;
        const uint8_t *s = tok_raw(t, (int32_t)i);
        if (tok_text_id(t, s, e->len) != (int32_t)i) continue; /* a second token of the same text */
        for (uint32_t p = char_len(s, e->len); r == 0 && p < e->len;
             p += char_len(s + p, e->len - p)) {
            int32_t a = tok_text_id(t, s, p), b = tok_text_id(t, s + p, e->len - p);
            if (a >= 0 && b >= 0) r = tok_merge_add(t, a, b, (int32_t)i, score_rank(score[i]));
        }
    }
    return r;
}

/* ---- one word ------------------------------------------------------------------------------- */

int tok_push(struct tok_ids *out, int32_t id, size_t begin, size_t end)
{
    if (out->n == out->cap) {
        size_t cap = out->cap ? out->cap * 2 : 256;
        int32_t *i = mem_realloc(out->id, cap * sizeof *i);
        if (i) out->id = i;
        uint32_t *b = i ? mem_realloc(out->begin, cap * sizeof *b) : NULL;
        if (b) out->begin = b;
        uint32_t *e = b ? mem_realloc(out->end, cap * sizeof *e) : NULL;
        if (!e) return -ENOMEM;
        out->end = e;
        out->cap = cap;
    }
    out->id[out->n] = id;
    out->begin[out->n] = (uint32_t)begin;
    out->end[out->n++] = (uint32_t)end;
    return 0;
}

void tok_ids_fini(struct tok_ids *ids)
{
    mem_free(ids->id);
    mem_free(ids->begin);
    mem_free(ids->end);
    *ids = (struct tok_ids){0};
}

/* A symbol that is no token: its bytes by fallback, else the unknown token, else nothing. */
static int push_bytes(const struct tok *t, struct tok_ids *out, const uint8_t *s, size_t len,
                      size_t at)
{
    bool all = t->kind == TOK_SPM;
    for (size_t i = 0; i < len; i++)
        all = all && t->byte_id[s[i]] >= 0;
    if (!all) return t->unk >= 0 && t->kind == TOK_SPM ? tok_push(out, t->unk, at, at + len) : 0;
    for (size_t i = 0; i < len; i++) {
        int r = tok_push(out, t->byte_id[s[i]], at + i, at + i + 1);
        if (r < 0) return r;
    }
    return 0;
}

/* The symbol that stands for s[0, len). */
static int push_sym(const struct tok *t, struct tok_ids *out, int32_t id, const uint8_t *s,
                    size_t len, size_t at)
{
    if (id >= 0 && (size_t)id < t->n_vocab) return tok_push(out, id, at, at + len);
    return push_bytes(t, out, s, len, at);
}

static inline int32_t first_sym(const struct tok *t, const uint8_t *s, size_t n, unsigned *ret_len)
{
    if (t->kind == TOK_BYTE_LEVEL) {
        *ret_len = 1;
        return t->byte_id[s[0]];
    }
    if (s[0] < 128) {
        *ret_len = 1;
        return t->ascii_id[s[0]];
    }
    *ret_len = char_len(s, n);
    return tok_text_id(t, s, *ret_len);
}

static int word_short(const struct tok *t, struct tok_ids *out, const uint8_t *s, size_t len,
                      size_t at)
{
    int32_t id[SHORT_SYMS], to[SHORT_SYMS];
    uint32_t rank[SHORT_SYMS];
    uint8_t begin[4 * SHORT_SYMS + 1];
    size_t n = 0;
    unsigned l;
    for (size_t p = 0; p < len; p += l) {
        begin[n] = (uint8_t)p;
        id[n++] = first_sym(t, s + p, len - p, &l);
    }
    begin[n] = (uint8_t)len;
    for (size_t i = 0; i + 1 < n; i++) {
        const struct tok_pair *p = pair_find(t, id[i], id[i + 1]);
        rank[i] = p ? p->rank : UINT32_MAX;
        to[i] = p ? p->id : -1;
    }
    for (;;) {
        size_t best = 0;
        uint32_t low = UINT32_MAX;
        for (size_t i = 0; i + 1 < n; i++)
            if (rank[i] < low) low = rank[best = i];
        if (low == UINT32_MAX) break;
        id[best] = to[best];
        n--;
        for (size_t i = best + 1; i < n; i++) {
            id[i] = id[i + 1];
            rank[i - 1] = rank[i];
            to[i - 1] = to[i];
            begin[i] = begin[i + 1];
        }
        begin[n] = begin[n + 1];
        for (size_t i = best ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const struct tok_pair *p = pair_find(t, id[i], id[i + 1]);
            rank[i] = p ? p->rank : UINT32_MAX;
            to[i] = p ? p->id : -1;
        }
    }
    int r = 0;
    for (size_t i = 0; r == 0 && i < n; i++)
        r = push_sym(t, out, id[i], s + begin[i], (size_t)(begin[i + 1] - begin[i]), at + begin[i]);
    return r;
}

static bool before(const struct tok_cand *a, const struct tok_cand *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->pos < b->pos;
}

static int heap_add(const struct tok *t, struct tok_work *w, uint32_t pos)
{
    uint32_t next = w->sym[pos].next;
    if (next == NONE) return 0;
    int32_t left = w->sym[pos].id, right = w->sym[next].id;
    const struct tok_pair *p = pair_find(t, left, right);
    if (!p) return 0;
    if (w->n_heap == w->cap_heap) {
        size_t cap = w->cap_heap ? w->cap_heap * 2 : 256;
        struct tok_cand *h = mem_realloc(w->heap, cap * sizeof *h);
        if (!h) return -ENOMEM;
        w->heap = h;
        w->cap_heap = cap;
    }
    struct tok_cand c = {p->rank, pos, left, right, p->id};
    size_t i = w->n_heap++;
    for (; i > 0 && before(&c, &w->heap[(i - 1) / 2]); i = (i - 1) / 2)
        w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = c;
    return 0;
}

static struct tok_cand heap_take(struct tok_work *w)
{
    struct tok_cand top = w->heap[0], last = w->heap[--w->n_heap];
    size_t i = 0;
    for (;;) {
        size_t c = 2 * i + 1;
        if (c >= w->n_heap) break;
        if (c + 1 < w->n_heap && before(&w->heap[c + 1], &w->heap[c])) c++;
        if (!before(&w->heap[c], &last)) break;
        w->heap[i] = w->heap[c];
        i = c;
    }
    w->heap[i] = last;
    return top;
}

static int word_long(const struct tok *t, struct tok_work *w, const uint8_t *s, size_t len,
                     size_t at)
{
    if (w->cap_sym < len) {
        struct tok_sym *sym = mem_realloc(w->sym, len * sizeof *sym);
        if (!sym) return -ENOMEM;
        w->sym = sym;
        w->cap_sym = len;
    }
    uint32_t n = 0;
    unsigned l;
    for (size_t p = 0; p < len; p += l, n++) {
        int32_t id = first_sym(t, s + p, len - p, &l);
        w->sym[n] = (struct tok_sym){id, n ? n - 1 : NONE, n + 1, (uint32_t)p};
    }
    w->sym[n - 1].next = NONE;
    w->n_heap = 0;
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < n; i++)
        r = heap_add(t, w, i);
    while (r == 0 && w->n_heap > 0) {
        struct tok_cand c = heap_take(w);
        struct tok_sym *a = &w->sym[c.pos];
        if (a->id != c.left || a->next == NONE || w->sym[a->next].id != c.right) continue;
        struct tok_sym *b = &w->sym[a->next];
        a->id = c.id;
        a->next = b->next;
        b->id = -2; /* gone: no candidate names this id */
        if (a->next != NONE) w->sym[a->next].prev = c.pos;
        r = heap_add(t, w, c.pos);
        if (r == 0 && a->prev != NONE) r = heap_add(t, w, a->prev);
    }
    for (uint32_t i = 0; r == 0 && i != NONE; i = w->sym[i].next) {
        uint32_t next = w->sym[i].next;
        size_t begin = w->sym[i].begin, end = next == NONE ? len : w->sym[next].begin;
        r = push_sym(t, w->out, w->sym[i].id, s + begin, end - begin, at + begin);
    }
    return r;
}

void tok_work_memo(struct tok_work *w, size_t n_bytes)
{
    if (!w->memo && n_bytes >= MEMO_TEXT_MIN) w->memo = mem_zalloc(MEMO_SLOTS * sizeof *w->memo);
}

static int memo_push(const struct tok_memo *m, struct tok_ids *out, size_t at)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < m->n; i++)
        r = tok_push(out, m->id[i], at + (i ? m->end[i - 1] : 0), at + m->end[i]);
    return r;
}

/* Remember the tokens from `from` on, if they are few and leave no gap. */
static void memo_set(struct tok_memo *m, const struct tok_ids *out, size_t from, const uint8_t *s,
                     size_t len, size_t at)
{
    size_t n = out->n - from, last = at;
    m->len = 0;
    if (n == 0 || n > MEMO_TOKENS) return;
    for (size_t i = 0; i < n; i++) {
        if (out->begin[from + i] != last) return;
        last = out->end[from + i];
        m->id[i] = out->id[from + i];
        m->end[i] = (uint8_t)(last - at);
    }
    if (last != at + len) return;
    memcpy(m->text, s, len);
    m->n = (uint8_t)n;
    m->len = (uint8_t)len;
}

int tok_word(const struct tok *t, struct tok_work *w, const uint8_t *s, size_t len, size_t at)
{
    int32_t id = tok_text_id(t, s, len);
    if (id >= 0 && t->e[id].whole) return tok_push(w->out, id, at, at + len);
    if (len > SHORT_SYMS) return word_long(t, w, s, len, at);
    if (!w->memo) return word_short(t, w->out, s, len, at);
    struct tok_memo *m = &w->memo[XXH3_64bits(s, len) % MEMO_SLOTS];
    if (m->len == len && memcmp(m->text, s, len) == 0) return memo_push(m, w->out, at);
    size_t from = w->out->n;
    int r = word_short(t, w->out, s, len, at);
    if (r == 0) memo_set(m, w->out, from, s, len, at);
    return r;
}

void tok_work_fini(struct tok_work *w)
{
    mem_free(w->sym);
    mem_free(w->heap);
    mem_free(w->memo);
}

/* ---- finishing ------------------------------------------------------------------------------ */

static bool is_added(const struct tok_entry *e)
{
    return e->len > 0 &&
           (e->type == TOK_T_CONTROL || e->type == TOK_T_UNKNOWN || e->type == TOK_T_USER);
}

/* Sorted by first byte by counting, then by insertion within a byte (longest first). */
static int index_added(struct tok *t)
{
    size_t n = 0;
    uint32_t count[256] = {0};
    for (size_t i = 0; i < t->n_vocab; i++) {
        if (!is_added(&t->e[i])) continue;
        uint8_t b = tok_raw(t, (int32_t)i)[0];
        count[b]++;
        n++;
        if (t->e[i].type == TOK_T_USER) t->user_byte[b] = t->has_user = true;
    }
    t->added = mem_alloc(n * sizeof *t->added);
    if (!t->added) return -ENOMEM;
    for (unsigned b = 0; b < 256; b++)
        t->first[b + 1] = t->first[b] + count[b];
    uint32_t fill[256] = {0};
    for (size_t i = 0; i < t->n_vocab; i++) {
        if (!is_added(&t->e[i])) continue;
        uint8_t b = tok_raw(t, (int32_t)i)[0];
        int32_t *list = t->added + t->first[b];
        uint32_t k = fill[b]++;
        for (; k > 0 && t->e[list[k - 1]].len < t->e[i].len; k--)
            list[k] = list[k - 1];
        list[k] = (int32_t)i;
    }
    return 0;
}

static void fingerprint(struct tok *t)
{
    XXH3_state_t st;
    (void)XXH3_128bits_reset(&st);
    uint32_t head[] = {
        t->kind,          t->pre,           t->prefix,           t->prefix_unless_space,
        t->nfc,           t->add_bos,       t->add_eos,          t->ignore_merges,
        (uint32_t)t->bos, (uint32_t)t->eos, (uint32_t)t->n_vocab};
    (void)XXH3_128bits_update(&st, head, sizeof head);
    if (t->bos_next >= 0) (void)XXH3_128bits_update(&st, &t->bos_next, sizeof t->bos_next);
    for (size_t i = 0; i < t->n_vocab; i++) {
        const struct tok_entry *e = &t->e[i];
        uint32_t h[] = {e->len, e->type, e->eog, e->lstrip, e->rstrip};
        (void)XXH3_128bits_update(&st, h, sizeof h);
        if (e->len) (void)XXH3_128bits_update(&st, tok_raw(t, (int32_t)i), e->len);
    }
    uint64_t sum[2] = {0, 0}; /* the table's order depends on its size: add up instead */
    for (uint32_t i = 0; t->pair && i <= t->pair_mask; i++) {
        const struct tok_pair *p = &t->pair[i];
        if (p->key == UINT64_MAX) continue;
        uint64_t v[2] = {p->key, (uint64_t)p->rank << 32 | (uint32_t)p->id};
        XXH128_hash_t h = XXH3_128bits(v, sizeof v);
        sum[0] += h.low64;
        sum[1] += h.high64;
    }
    (void)XXH3_128bits_update(&st, sum, sizeof sum);
    if (t->kind == TOK_WORDPIECE) (void)XXH3_128bits_update(&st, &t->bert, sizeof t->bert);
    if (t->kind == TOK_UNIGRAM) {
        const uint8_t how[] = {t->unigram.strips, t->unigram.joins_spaces, t->unigram.split};
        size_t n = 0;
        const void *map = t->unigram.map ? tok_charsmap_bytes(t->unigram.map, &n) : how;
        (void)XXH3_128bits_update(&st, how, sizeof how);
        (void)XXH3_128bits_update(&st, t->unigram.score, t->n_vocab * sizeof(double));
        (void)XXH3_128bits_update(&st, map, n);
    }
    XXH128_hash_t h = XXH3_128bits_digest(&st);
    t->fingerprint[0] = h.low64;
    t->fingerprint[1] = h.high64;
}

/* Which tokens a look-up of their text may stand for: those that it alone merges into. */
static int find_whole(struct tok *t)
{
    struct tok_ids out = {0};
    struct tok_work w = {.out = &out};
    int r = t->pair ? 0 : pairs_grow(t);
    for (size_t i = 0; r == 0 && i < t->n_vocab; i++) {
        struct tok_entry *e = &t->e[i];
        if (!mergeable(e)) continue;
        out.n = 0;
        r = tok_word(t, &w, tok_raw(t, (int32_t)i), e->len, 0);
        e->whole = r == 0 && (t->ignore_merges || (out.n == 1 && out.id[0] == (int32_t)i));
    }
    tok_work_fini(&w);
    tok_ids_fini(&out);
    return r;
}

int tok_finish(struct tok *t)
{
    int r = index_added(t);
    if (r == 0 && (t->kind == TOK_BYTE_LEVEL || t->kind == TOK_SPM)) r = find_whole(t);
    if (r == 0) fingerprint(t);
    return r;
}
