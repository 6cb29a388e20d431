/* Documents made of the sample's sentences; see docpool.h. */
#include "tools/bench/docpool.h"
#include "tools/bench/bench.h"

#include "base/buf.h"
#include "base/mem.h"

#include <string.h>

struct sample {
    char *all; /* the texts, cut into sentences and words in place */
    char **sentence;
    uint32_t *n_tok;
    size_t n;
};

static int read_sample(const struct tok *tok, const char *folder, struct sample *ret,
                       struct err *err)
{
    char *doc[BENCH_DOCS_MAX] = {0};
    struct buf all = BUF_INIT;
    size_t n_docs = 0, cap;
    int r = bench_documents(folder, doc, &n_docs, err);
    for (size_t i = 0; i < n_docs; i++) {
        if (r == 0) r = buf_addf(&all, "%s ", doc[i]);
        mem_free(doc[i]);
    }
    if (r < 0) return r;
    for (size_t i = 0; i < all.len; i++)
        if (all.data[i] == '\n' || all.data[i] == '\r') all.data[i] = ' ';
    cap = all.len / 8 + 1;
    ret->all = mem_strdup(buf_cstr(&all));
    buf_fini(&all);
    ret->sentence = mem_alloc(cap * sizeof *ret->sentence);
    ret->n_tok = mem_alloc(cap * sizeof *ret->n_tok);
    if (!ret->all || !ret->sentence || !ret->n_tok) return err_set(err, -ENOMEM, "out of memory");
    for (char *at = ret->all, *end; at && *at && ret->n < cap; at = end) {
        at += strspn(at, " ");
        end = strstr(at, ". ");
        if (!end) break;
        end[1] = '\0';
        struct tok_ids ids = {0};
        const struct tok_piece piece = {.text = at, .len = strlen(at)};
        r = tok_encode(tok, &piece, 1, 0, &ids);
        end += 2;
        if (r < 0) return err_set(err, r, "the sample cannot be tokenised");
        if (ids.n >= 6 && ids.n <= 80) {
            ret->n_tok[ret->n] = (uint32_t)ids.n;
            ret->sentence[ret->n++] = at;
        }
        tok_ids_fini(&ids);
    }
    return ret->n >= 20 ? 0 : err_set(err, -EINVAL, "%s: too little text", folder);
}

static void sample_fini(struct sample *s)
{
    mem_free(s->all);
    mem_free(s->sentence);
    mem_free(s->n_tok);
}

/* Sentences of the sample, drawn until a document is long enough: all different, all English. */
static int write_document(struct rng *r, const struct sample *s, uint32_t want, size_t number,
                          struct buf *out)
{
    uint32_t have = 8; /* of the title */
    int rc = buf_addf(out, "Report %zu.", number + 1);
    while (rc == 0 && have < want) {
        size_t i = rng_next(r) % s->n;
        if (have + s->n_tok[i] > want + want / 16 && have > want / 2) break;
        rc = buf_addf(out, " %s", s->sentence[i]);
        have += s->n_tok[i];
    }
    return rc;
}

static int cut_words(struct docpool *p, const char *text)
{
    char *copy = mem_strdup(text);
    p->word = mem_alloc((strlen(text) / 2 + 1) * sizeof *p->word);
    if (!copy || !p->word) {
        mem_free(copy);
        return -ENOMEM;
    }
    for (char *save, *w = strtok_r(copy, " .,;:()\"", &save); w;
         w = strtok_r(NULL, " .,;:()\"", &save))
        p->word[p->n_words++] = w;
    p->word[0] = copy; /* owns all of them; as a word it ends at its first separator */
    return 0;
}

int docpool_make(struct docpool *p, const struct docpool_opts *o, const struct tok *tok,
                 struct err *err)
{
    struct sample s = {0};
    struct rng rng = {o->seed};
    int r = read_sample(tok, o->folder, &s, err);
    p->text = mem_zalloc(o->n * sizeof *p->text);
    if (r == 0) r = p->text ? zipf_init(&p->popular, (uint32_t)o->n, o->zipf) : -ENOMEM;
    if (r == 0) r = cut_words(p, s.sentence[0]);
    for (; r == 0 && p->n < o->n; p->n++) {
        struct buf text = BUF_INIT;
        r = write_document(&rng, &s, o->n_tok, p->n, &text);
        if (r == 0 && !(p->text[p->n] = buf_take(&text, NULL))) r = -ENOMEM;
        buf_fini(&text);
        if (r < 0) break;
    }
    sample_fini(&s);
    return r < 0 && !err->code ? err_set(err, r, "out of memory") : r;
}

void docpool_fini(struct docpool *p)
{
    for (size_t i = 0; i < p->n; i++)
        mem_free(p->text[i]);
    mem_free(p->text);
    zipf_fini(&p->popular);
    if (p->word) mem_free(p->word[0]);
    mem_free(p->word);
}
