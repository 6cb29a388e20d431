/* rag: a published trace of RAG requests, and what one kind of KV cache finds of its prompts.
 *
 * RAGPulse (flashserve, arXiv 2511.12979) names the parts of each prompt by id and gives their
 * lengths, no texts: parts of one id are equal, others have nothing in common. A request is looked
 * up as a whole, then its records are kept or touched from its end to its beginning, as a worker
 * does: the head of a prompt outlives its tail. Thread: one. */
#ifndef TOOLS_BENCH_RAG_H
#define TOOLS_BENCH_RAG_H

#include "base/buf.h"
#include "base/opt.h"
#include "tiers/evict.h"

#include <jansson.h>

enum rag_kind { RAG_SYSTEM, RAG_PASSAGE, RAG_HISTORY, RAG_WEB, RAG_QUESTION, RAG_KINDS };
enum {
    RAG_PARTS_MAX = 64,       /* of a request; the trace's longest has 16 */
    RAG_ID_MAX = 1 << 24,     /* chosen: tables are by id; the trace's go to 26 924 */
    RAG_TOKENS_MAX = 1 << 20, /* of a part; the trace's have 512 at most */
};
struct rag_part {
    enum rag_kind kind;
    uint32_t id; /* of its kind */
    uint32_t n_tok;
};
struct rag_request {
    double at_s; /* since the trace began */
    size_t n_parts;
    const struct rag_part *part; /* the trace's, in the order of the prompt */
};
struct rag_trace {
    struct buf requests, parts;
    struct rag_request *request; /* [n] in order of time */
    size_t n;
};
/* -EINVAL: a line that is none, by name; rag_trace_fini() all the same. */
int rag_trace_read(const char *folder, struct rag_trace *ret, struct err *err);
void rag_trace_fini(struct rag_trace *t);

enum rag_way {
    /* Exact prefixes of whole parts: of the prompt as sent; with the system's blocks from the third
     * on, the volatile ones, behind the passages. */
    RAG_PREFIX,
    RAG_MOVED,
    /* The same, and passages reordered: by ContextPilot's live index (arXiv 2511.03475; one request
     * at a time and told of evictions, as contextpilot/server/live_index.py of its repository has
     * it); by a search for the longest cached path made of the request's passages. */
    RAG_PILOT,
    RAG_SEARCH,
    /* No cache, what no reordering exceeds: each request beside the best of all earlier ones that
     * begin with the same two blocks, all passages that both have in front. */
    RAG_BOUND,
    /* Windows of so many tokens: kept at its multiples, found at any offset, from the left and
     * without overlap (256: LMCache's blend). */
    RAG_GRID,
    /* Parts by their content, wherever they stand (kvblend); the passages alone. */
    RAG_CHUNKS,
    RAG_PASSAGES,
};
struct rag_cache_opts {
    enum rag_way way;
    uint32_t window;      /* RAG_GRID */
    uint64_t room_tokens; /* 0: unlimited */
    enum evict_policy policy;
};
struct rag_cache;
int rag_cache_create(const struct rag_cache_opts *o, struct rag_cache **ret);
void rag_cache_destroy(struct rag_cache *c);
/* found [n_parts]: how many tokens of each part are there; then the request's are kept. The trace
 * must outlive the cache. */
int rag_cache_ask(struct rag_cache *c, const struct rag_request *q, uint32_t *found);

/* rag_replay.c: an hour of it asked of a worker; a row for each mode. */
int rag_replay(const struct rag_trace *t, const struct opts *opts, json_t *meta, json_t *rows,
               struct err *err);

#endif
