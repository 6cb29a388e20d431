/* draft: an index of the tokens' n-grams, and a place in the sequence that the end is thought to
 * repeat.
 *
 * The place moves on with each token that it foretold. When one was wrong, or none was foretold,
 * the last tokens are looked up: of the places where they stood before, the newest ones, that which
 * agrees with the end for longest. Every n-gram has a bucket of a hash table, whose places are
 * linked from the newest to the oldest; n-grams that share a bucket differ in the tokens. */
#include "fusor/core/draft.h"

#include "base/err.h"
#include "base/fnv.h"
#include "base/mem.h"

enum {
    GRAM = 3,       /* chosen: two tokens agree by chance too often, four find quotes late */
    TRIES = 16,     /* chosen: places that are looked at */
    AGREE_MAX = 32, /* chosen: longer agreement says nothing more */
};
/* A token more of a guess costs 0.14 (AMX), 0.20 (AVX-512) to 0.32 (AVX2) of a decode step (SmolLM2
 * on two cores, bench_decode), and every one needs all before it to be right. */
#define WORTH 0.5
#define NEWS 0.25 /* chosen: weight of the last judgement */
#define FIRST 0.5 /* chosen: the first guess is of one token; if it is wrong, others wait */

struct fus_draft {
    size_t n, cap;
    int32_t *tok;     /* [cap] */
    int32_t *older;   /* [cap] of the n-gram that ends here, where one of its bucket ended before */
    int32_t *newest;  /* [n_buckets] where the last n-gram of the bucket ended; -1: none */
    size_t n_buckets; /* a power of two */
    size_t place;     /* index of the token that is guessed next; 0: none is */
    double right;     /* share of judged guesses that were, the last ones count more */
};

int fus_draft_create(size_t cap, struct fus_draft **ret)
{
    struct fus_draft *d = mem_zalloc(sizeof(*d));
    if (!d) return -ENOMEM;
    d->cap = cap;
    d->right = FIRST;
    d->n_buckets = 64;
    while (d->n_buckets < cap)
        d->n_buckets *= 2;
    d->tok = mem_alloc(cap * sizeof(*d->tok) + 1);
    d->older = mem_alloc(cap * sizeof(*d->older) + 1);
    d->newest = mem_alloc(d->n_buckets * sizeof(*d->newest));
    if (!d->tok || !d->older || !d->newest) {
        fus_draft_destroy(d);
        return -ENOMEM;
    }
    for (size_t i = 0; i < d->n_buckets; i++)
        d->newest[i] = -1;
    *ret = d;
    return 0;
}

void fus_draft_destroy(struct fus_draft *d)
{
    if (!d) return;
    mem_free(d->tok);
    mem_free(d->older);
    mem_free(d->newest);
    mem_free(d);
}

/* The bucket of the n-gram that ends at `end`. */
static size_t bucket(const struct fus_draft *d, size_t end)
{
    const int32_t *gram = d->tok + end + 1 - GRAM;
    return (size_t)fnv_add(FNV_START, gram, GRAM * sizeof(*gram)) & (d->n_buckets - 1);
}

/* How many tokens up to a and up to b, the later one, are the same. */
static size_t agreement(const struct fus_draft *d, size_t a, size_t b)
{
    size_t n = 0;
    while (n < AGREE_MAX && n <= a && d->tok[a - n] == d->tok[b - n])
        n++;
    return n;
}

/* Where what the sequence ends with stood before: the index behind it; 0: nowhere. */
static size_t find_place(const struct fus_draft *d)
{
    size_t best = 0, longest = GRAM - 1;
    const size_t end = d->n - 1;
    int32_t at = d->n < GRAM ? -1 : d->newest[bucket(d, end)];
    for (int i = 0; i < TRIES && at >= 0; i++, at = d->older[at]) {
        const size_t n = agreement(d, (size_t)at, end);
        if (n <= longest) continue;
        longest = n;
        best = (size_t)at + 1;
    }
    return best;
}

static void judge(struct fus_draft *d, bool right)
{
    d->right += NEWS * ((right ? 1 : 0) - d->right);
}

void fus_draft_see(struct fus_draft *d, int32_t tok, bool said)
{
    if (d->n == d->cap) return;
    const bool foretold = d->place > 0 && d->tok[d->place] == tok;
    if (said && d->place > 0) judge(d, foretold);
    d->tok[d->n++] = tok;
    d->place = foretold ? d->place + 1 : said ? find_place(d) : 0;
    if (d->n < GRAM) return;
    int32_t *newest = &d->newest[bucket(d, d->n - 1)];
    d->older[d->n - 1] = *newest;
    *newest = (int32_t)d->n - 1;
}

size_t fus_draft_next(const struct fus_draft *d, size_t most, int32_t ret[FUS_DRAFT_MOST])
{
    size_t n = 0;
    if (most > FUS_DRAFT_MOST) most = FUS_DRAFT_MOST;
    if (d->place == 0) return 0;
    /* What repeats itself goes on with its own repetition. */
    const size_t known = d->n - d->place;
    for (double p = d->right; n < most && p >= WORTH; p *= d->right, n++)
        ret[n] = d->tok[d->place + n % known];
    return n;
}
