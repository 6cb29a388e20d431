#include "tools/bench/score.h"

#include "base/err.h"
#include "base/mem.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

struct words {
    char *text; /* normalised, words separated by NUL */
    char **word;
    size_t n;
};

static bool is_article(const char *w)
{
    return strcmp(w, "a") == 0 || strcmp(w, "an") == 0 || strcmp(w, "the") == 0;
}

static int words_init(struct words *w, const char *s)
{
    size_t len = strlen(s);
    w->text = mem_strndup(s, len);
    w->word = mem_alloc((len + 1) * sizeof *w->word);
    w->n = 0;
    if (!w->text || !w->word) return -ENOMEM;
    char *out = w->text, *start = w->text;
    for (size_t i = 0; i <= len; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c && !isspace(c)) {
            if (!(c < 0x80 && ispunct(c))) *out++ = (char)(c < 0x80 ? tolower(c) : c);
            continue;
        }
        if (out > start) {
            *out++ = '\0';
            if (is_article(start))
                out = start;
            else
                w->word[w->n++] = start;
            start = out;
        }
    }
    return 0;
}

static void words_fini(struct words *w)
{
    mem_free(w->text);
    mem_free(w->word);
}

static size_t common_words(const struct words *a, const struct words *b)
{
    size_t common = 0;
    for (size_t i = 0; i < a->n; i++) { /* multiset intersection: min of both counts, per word */
        size_t before = 0, in_b = 0;
        for (size_t j = 0; j < i; j++)
            before += strcmp(a->word[i], a->word[j]) == 0;
        for (size_t j = 0; j < b->n; j++)
            in_b += strcmp(a->word[i], b->word[j]) == 0;
        common += before < in_b;
    }
    return common;
}

/* Longest common subsequence, one row of the table at a time. */
static int lcs_words(const struct words *a, const struct words *b, size_t *ret)
{
    uint32_t *row = mem_zalloc((b->n + 1) * sizeof *row);
    if (!row) return -ENOMEM;
    for (size_t i = 0; i < a->n; i++) {
        uint32_t diagonal = 0;
        for (size_t j = 1; j <= b->n; j++) {
            uint32_t above = row[j];
            bool same = strcmp(a->word[i], b->word[j - 1]) == 0;
            uint32_t best = above > row[j - 1] ? above : row[j - 1];
            row[j] = same ? diagonal + 1 : best;
            diagonal = above;
        }
    }
    *ret = row[b->n];
    mem_free(row);
    return 0;
}

static double f_measure(size_t common, size_t n_answer, size_t n_expected)
{
    if (n_answer == 0 || n_expected == 0) return n_answer == n_expected;
    return 2.0 * (double)common / (double)(n_answer + n_expected);
}

int score_answer(const char *answer, const char *expected, struct score *ret)
{
    struct words got = {0}, want = {0};
    size_t lcs = 0;
    int r = words_init(&got, answer);
    if (r == 0) r = words_init(&want, expected);
    if (r == 0) r = lcs_words(&got, &want, &lcs);
    if (r == 0) {
        ret->exact_match = got.n == want.n && lcs == want.n;
        ret->f1 = f_measure(common_words(&got, &want), got.n, want.n);
        ret->rouge_l = f_measure(lcs, got.n, want.n);
    }
    words_fini(&got);
    words_fini(&want);
    return r;
}
