/* Documents made of the sample's sentences; see docpool.h. */
#include "tools/bench/docpool.h"
#include "tools/bench/bench.h"

#include "base/mem.h"

#include <string.h>

struct sentence {
    const char *text;
    uint32_t n_tok;
};
struct sample {
    struct buf all;      /* the texts, cut into sentences in place */
    struct buf sentence; /* struct sentence, one after another */
};

static int read_sample(const struct tok *tok, const char *folder, struct sample *s, struct err *err)
{
    enum { SENTENCES_MIN = 20 };
    int r = bench_documents(folder, &s->all, err);
    for (size_t i = 0; i < s->all.len; i++)
        if (strchr("\n\r", s->all.data[i])) s->all.data[i] = ' '; /* the NUL behind a text, too */
    if (r == 0 && !buf_cstr(&s->all)) r = -ENOMEM;
    for (char *at = s->all.data, *end; r == 0; at = end + 2) {
        struct tok_ids ids = {0};
        at += strspn(at, " ");
        if (!(end = strstr(at, ". "))) break;
        end[1] = '\0';
        r = tok_encode(tok, &(struct tok_piece){.text = at, .len = strlen(at)}, 1, 0, &ids);
        if (ids.n >= 6 && ids.n <= 80)
            (void)buf_add(&s->sentence, &(struct sentence){at, (uint32_t)ids.n},
                          sizeof(struct sentence));
        tok_ids_fini(&ids);
    }
    if (r == 0 && s->sentence.len < SENTENCES_MIN * sizeof(struct sentence))
        r = err_set(err, -EINVAL, "%s: too little text", folder);
    return r;
}

/* Sentences of the sample, drawn until a document is long enough: all different, all English. */
static char *make_document(struct rng *rng, const struct sample *s, uint32_t want, size_t number)
{
    const struct sentence *sentence = (const void *)s->sentence.data;
    struct buf out = BUF_INIT;
    (void)buf_addf(&out, "Report %zu.", number);
    for (uint32_t have = 8; have < want;) { /* the title has 8 tokens, about */
        const struct sentence *next =
            &sentence[rng_next(rng) % (s->sentence.len / sizeof *sentence)];
        if (have + next->n_tok > want + want / 16 && have > want / 2) break;
        (void)buf_addf(&out, " %s", next->text);
        have += next->n_tok;
    }
    char *text = buf_status(&out) == 0 ? buf_take(&out, NULL) : NULL;
    buf_fini(&out);
    return text;
}

int docpool_make(struct docpool *p, const struct docpool_opts *o, const struct tok *tok,
                 struct err *err)
{
    struct sample s = {0};
    struct rng rng = {o->seed};
    int r = read_sample(tok, o->folder, &s, err);
    p->text = mem_zalloc(o->n * sizeof *p->text);
    if (r == 0) r = p->text ? zipf_init(&p->popular, (uint32_t)o->n, o->zipf) : -ENOMEM;
    for (; r == 0 && p->n < o->n; p->n++)
        if (!(p->text[p->n] =
                  make_document(&rng, &s, o->each ? o->each[p->n] : o->n_tok, p->n + 1)))
            r = -ENOMEM;
    buf_fini(&s.all);
    buf_fini(&s.sentence);
    return r < 0 && !err->code ? err_set(err, r, "no documents: %s", err_name(r)) : r;
}

void docpool_fini(struct docpool *p)
{
    for (size_t i = 0; i < p->n; i++)
        mem_free(p->text[i]);
    mem_free(p->text);
    zipf_fini(&p->popular);
}

void docpool_words(const struct docpool *p, struct rng *rng, int n, struct buf *out)
{
    static const char between[] = " .,;:()\"";
    while (n-- > 0) {
        const char *at = p->text[rng_next(rng) % p->n];
        at += rng_next(rng) % (strlen(at) / 2); /* not so far that no word follows */
        at += strcspn(at, between);
        at += strspn(at, between);
        (void)buf_addf(out, " %.*s", (int)strcspn(at, between), at);
    }
}
