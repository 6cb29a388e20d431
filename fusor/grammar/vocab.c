/* The vocabulary's tries and sets. Tokens are sorted by their bytes; the preorder of a trie is then
 * one pass, and a node needs no child pointers. */
#include "fusor/grammar/vocab_int.h"

#include "base/buf.h"
#include "base/jsonscan.h"
#include "base/mem.h"
#include "fusor/text/tok.h"

#include <stdlib.h>
#include <string.h>

struct entry { /* a token while tries are made */
    const unsigned char *bytes;
    uint32_t len, id;
};

static int entry_order(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    const int c = memcmp(x->bytes, y->bytes, x->len < y->len ? x->len : y->len);

    if (c) return c;
    if (x->len != y->len) return x->len < y->len ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

/* The characters of a text of prose; 0: it is none. */
static uint32_t prose_chars(const struct entry *t)
{
    uint32_t n = 0;

    for (size_t i = 0, k; i < t->len; i += k, n++) {
        const unsigned char c = t->bytes[i];
        k = json_utf8_len((const char *)t->bytes + i, t->len - i);
        if (k == 0 || c < 0x20 || c == '"' || c == '\\') return 0;
    }
    return n;
}

/* ---- tries ---- */

struct trie_build {
    struct buf node;
    uint32_t path[VOCAB_TOKEN_MAX + 1]; /* the node of each length of the last text */
    int status;
};

/* No node on the path from this length on gets any more behind it. */
static void close_path(struct trie_build *b, uint32_t len, uint32_t last_len)
{
    const uint32_t n = (uint32_t)(b->node.len / sizeof(struct trie_node));

    for (uint32_t i = len + 1; i <= last_len; i++)
        ((struct trie_node *)(void *)b->node.data)[b->path[i]].end = n;
}

static void add_text(struct trie_build *b, const struct entry *t, uint32_t from)
{
    for (uint32_t i = from; i < t->len && b->status == 0; i++) {
        const struct trie_node n = {.byte = t->bytes[i], .token = VOCAB_NO_TOKEN, .depth = i + 1};
        b->path[i + 1] = (uint32_t)(b->node.len / sizeof n);
        if (b->path[i + 1] >= VOCAB_NODES_MAX) b->status = -ERANGE;
        if (b->status == 0) b->status = buf_add(&b->node, &n, sizeof n);
    }
}

/* Of sorted texts. */
static int build_trie(const struct entry *t, size_t n, int32_t *same, struct vocab_trie *ret)
{
    struct trie_build b = {0};
    uint32_t last_len = 0;

    for (size_t i = 0; i < n && b.status == 0; i++) {
        uint32_t head = 0;
        while (i > 0 && head < last_len && head < t[i].len &&
               t[i].bytes[head] == t[i - 1].bytes[head])
            head++;
        close_path(&b, head, last_len);
        add_text(&b, &t[i], head);
        last_len = t[i].len;
        if (b.status < 0) break;
        struct trie_node *leaf = (struct trie_node *)(void *)b.node.data + b.path[last_len];
        same[t[i].id] = leaf->token == VOCAB_NO_TOKEN ? -1 : (int32_t)leaf->token;
        leaf->token = t[i].id;
    }
    if (b.status == 0) close_path(&b, 0, last_len);
    ret->n = (uint32_t)(b.node.len / sizeof(struct trie_node));
    ret->node = (struct trie_node *)(void *)buf_take(&b.node, NULL);
    return b.status;
}

/* ---- sets ---- */

static void set_bit(uint64_t *set, uint32_t id)
{
    set[id / 64] |= 1ull << (id % 64);
}

static int long_order(const void *a, const void *b)
{
    const uint32_t *x = a, *y = b; /* token, chars */

    return x[1] < y[1] ? -1 : x[1] > y[1];
}

static int sort_prose(struct gram_vocab *v, const struct entry *t, size_t n)
{
    v->prose_upto = mem_zalloc(VOCAB_SHORT * v->n_words * sizeof *v->prose_upto);
    v->prose_long = mem_alloc((n + 1) * sizeof *v->prose_long);
    if (!v->prose_upto || !v->prose_long) return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        const uint32_t chars = prose_chars(&t[i]);
        for (uint32_t k = chars; k < VOCAB_SHORT; k++)
            set_bit(v->prose_upto + k * v->n_words, t[i].id);
        if (chars < VOCAB_SHORT) continue;
        v->prose_long[v->n_prose_long].token = t[i].id;
        v->prose_long[v->n_prose_long++].chars = chars;
    }
    qsort(v->prose_long, v->n_prose_long, sizeof *v->prose_long, long_order);
    return 0;
}

/* The characters that a text has or begins, at most. */
static void count_chars(struct gram_vocab *v, const struct entry *t, size_t n)
{
    v->chars_max[0] = v->chars_max[1] = 1;
    for (size_t i = 0; i < n; i++) {
        uint32_t chars = 1; /* what the first bytes may end */
        bool controls = false;
        for (uint32_t k = 0; k < t[i].len; k++) {
            chars += (t[i].bytes[k] & 0xC0) != 0x80;
            controls |= t[i].bytes[k] < 0x20;
        }
        for (int which = controls; which < 2; which++)
            if (chars > v->chars_max[which]) v->chars_max[which] = chars;
    }
}

/* ---- from a source ---- */

static int copy_tokens(struct gram_vocab *v, const struct vocab_source *s)
{
    struct buf bytes = BUF_INIT;

    for (size_t i = 0; i < s->n; i++) {
        struct vocab_token t = {0};
        s->token(s->ctx, i, &t);
        v->at[i] = (uint32_t)bytes.len;
        if (t.ends)
            set_bit(v->ends, (uint32_t)i);
        else if (t.len <= VOCAB_TOKEN_MAX && buf_add(&bytes, t.bytes, t.len) < 0)
            break;
        if (!t.ends && t.len == 1) v->byte[(unsigned char)t.bytes[0]] = true;
    }
    v->at[s->n] = (uint32_t)bytes.len;
    const int rc = buf_status(&bytes);
    v->bytes = buf_take(&bytes, NULL);
    return rc;
}

/* All bytes are tokens? A token with one that is not would lead where nothing else may be able to
 * go on from. */
static bool is_usable(const struct gram_vocab *v, const struct entry *t)
{
    for (uint32_t i = 0; i < t->len; i++)
        if (!v->byte[t->bytes[i]]) return false;
    return t->len > 0;
}

/* Sorted; prose first, then the others. */
static size_t sort_tokens(const struct gram_vocab *v, struct entry *e, size_t *ret_prose)
{
    size_t n = 0, prose = 0;

    for (size_t i = 0; i < v->n_tokens; i++) {
        const struct entry t = {(const unsigned char *)v->bytes + v->at[i], v->at[i + 1] - v->at[i],
                                (uint32_t)i};
        if (is_usable(v, &t)) e[n++] = t;
    }
    for (size_t i = 0; i < n; i++)
        if (prose_chars(&e[i]) > 0) {
            const struct entry t = e[i];
            e[i] = e[prose];
            e[prose++] = t;
        }
    qsort(e, prose, sizeof *e, entry_order);
    qsort(e + prose, n - prose, sizeof *e, entry_order);
    *ret_prose = prose;
    return n;
}

/* Of what begins with a space and is more than that. Sorted stays sorted without it. */
static int build_first(struct gram_vocab *v, const struct entry *e, size_t n)
{
    struct entry *t = mem_alloc((n + 1) * sizeof *t);
    int32_t *same = mem_alloc(v->n_tokens * sizeof *same); /* the same as with the space */
    size_t k = 0;
    int rc = t && same ? 0 : -ENOMEM;

    for (size_t i = 0; rc == 0 && i < n; i++)
        if (e[i].bytes[0] == ' ' && e[i].len > 1)
            t[k++] = (struct entry){e[i].bytes + 1, e[i].len - 1, e[i].id};
    if (rc == 0) qsort(t, k, sizeof *t, entry_order); /* of two tries */
    if (rc == 0) rc = build_trie(t, k, same, &v->first);
    mem_free(t);
    mem_free(same);
    return rc;
}

static int build_all(struct gram_vocab *v, const struct vocab_source *s)
{
    struct entry *e = mem_alloc((v->n_tokens + 1) * sizeof *e);
    size_t prose = 0, n = 0;
    int rc = e ? copy_tokens(v, s) : -ENOMEM;

    if (rc == 0) n = sort_tokens(v, e, &prose);
    if (rc == 0) rc = build_trie(e, prose, v->same, &v->prose);
    if (rc == 0) rc = build_trie(e + prose, n - prose, v->same, &v->other);
    if (rc == 0) rc = sort_prose(v, e, prose);
    if (rc == 0) count_chars(v, e + prose, n - prose);
    if (rc == 0 && s->drops_space) rc = build_first(v, e, n);
    mem_free(e);
    return rc;
}

int gram_vocab_create(const struct vocab_source *s, struct gram_vocab **ret)
{
    struct gram_vocab *v = mem_zalloc(sizeof *v);
    int rc = -ENOMEM;

    if (!v) return -ENOMEM;
    v->n_tokens = s->n;
    v->n_words = (s->n + 63) / 64;
    v->same = mem_alloc((s->n + 1) * sizeof *v->same);
    v->at = mem_zalloc((s->n + 1) * sizeof *v->at);
    v->ends = mem_zalloc((v->n_words + 1) * sizeof *v->ends);
    if (s->n >= VOCAB_NO_TOKEN)
        rc = -ERANGE;
    else if (v->same && v->at && v->ends)
        rc = build_all(v, s);
    if (rc < 0) {
        gram_vocab_destroy(v);
        return rc;
    }
    *ret = v;
    return 0;
}

void gram_vocab_destroy(struct gram_vocab *v)
{
    if (!v) return;
    mem_free(v->prose.node);
    mem_free(v->other.node);
    mem_free(v->first.node);
    mem_free(v->same);
    mem_free(v->prose_upto);
    mem_free(v->prose_long);
    mem_free(v->ends);
    mem_free(v->bytes);
    mem_free(v->at);
    mem_free(v);
}

size_t gram_vocab_size(const struct gram_vocab *v)
{
    return v->n_tokens;
}

void gram_vocab_bytes(const struct gram_vocab *v, bool ret[256])
{
    memcpy(ret, v->byte, sizeof v->byte);
}

static void token_of(const void *ctx, size_t id, struct vocab_token *ret)
{
    const struct tok *t = ctx;

    *ret = (struct vocab_token){.ends = tok_is_eog(t, (int32_t)id)};
    (void)tok_bytes(t, (int32_t)id, false, &ret->bytes, &ret->len);
}

int gram_vocab_of(const struct tok *t, size_t n_ids, struct gram_vocab **ret)
{
    const struct vocab_source s = {
        .n = n_ids, .token = token_of, .ctx = t, .drops_space = tok_drops_space(t)};

    return gram_vocab_create(&s, ret);
}
