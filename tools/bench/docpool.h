/* docpool: documents that requests ask about, made of the sample's sentences, all different, and
 * how often each is asked for (Zipf). The same for the same options. Thread: one. */
#ifndef TOOLS_BENCH_DOCPOOL_H
#define TOOLS_BENCH_DOCPOOL_H

#include "base/buf.h"
#include "base/err.h"
#include "fusor/text/tok.h"
#include "tools/bench/zipf.h"

struct docpool {
    char **text; /* [n] */
    size_t n;
    struct zipf popular; /* [n] */
};
struct docpool_opts {
    const char *folder; /* of the sample */
    size_t n;
    uint32_t n_tok;       /* of a document, about */
    const uint32_t *each; /* [n] of each instead; NULL: all alike */
    double zipf;
    uint64_t seed;
};
int docpool_make(struct docpool *p, const struct docpool_opts *o, const struct tok *tok,
                 struct err *err);
void docpool_fini(struct docpool *p);
/* Appends n words of any documents, a blank before each. */
void docpool_words(const struct docpool *p, struct rng *rng, int n, struct buf *out);

#endif
