/* kvblend-bench soak: does the speed-up last? Many requests over a document set larger than RAM.
 *
 * Each request draws `chunks` documents in a new order, asks a new question, and is blended with
 * chunks from the store as the worker does it; what is missing is computed by the request and built
 * in isolation after it. All documents are built once before the first request, so that the first
 * batch, with which later ones are compared, is no cold one. Every few requests the same prompt
 * also runs as a full prefill just before; a batch's speed-up is the median of these pairs. Its
 * throughput ratio, what a busy machine gets done in the same time, also pays for the builds of
 * what the batch's requests missed. Every few hundred requests the blended logits are compared, bit
 * for bit, with those over freshly built chunks in a store of their own. A batch is a row of the
 * report. Fails when a cap was exceeded, an answer was wrong or memory grew. */
#include "tools/bench/bench.h"
#include "tools/bench/places.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    DOCUMENTS_DEFAULT = 200,
    FULL_EVERY = 20, /* chosen: 25 full prefills in a batch of 500 cost about a quarter of it */
    CHECK_EVERY = 200,
    RSS_GROWTH_MAX = 8 << 20
};

struct totals {                         /* over a batch */
    double *blend_ms, *full_ms, *ratio; /* [batch]; ratio: of the requests that ran both ways */
    size_t n_blend, n_full;
    double build_ms;                                    /* of what the requests missed */
    uint64_t chunks, missed, from[STORE_TIERS_MAX + 1]; /* from: RAM first */
};
struct soak {
    struct bench *b;
    struct places places;
    struct store *fresh; /* where reference answers take their chunks from */
    struct tok_ids sample;
    int32_t *doc;    /* [n_docs, chunk_tokens] */
    double *popular; /* [n_docs], cumulated */
    uint64_t *order; /* [requests], a hash of each request's documents in their order */
    size_t n_docs, n_chunks, n_requests, batch;
    uint32_t chunk_tokens, query_tokens;
    struct rng rng;
    float ratio;
    bool gate;
    double ms_per_token; /* of a full prefill */
    struct totals t;
    uint64_t checked, wrong, over_cap, failed_ranges, build_refused;
    uint64_t rss_first, rss_middle, rss_last;
    double first_kept, last_kept, least_kept; /* throughput ratios of batches */
};

/* ---- what a request asks ---- */

/* Documents are windows of the sample text; their first two tokens make each unlike the others. */
static void make_documents(struct soak *s, double zipf)
{
    size_t n = s->sample.n;
    double sum = 0;
    for (size_t i = 0; i < s->n_docs; i++) {
        int32_t *tok = s->doc + i * s->chunk_tokens;
        for (size_t j = 0; j < s->chunk_tokens; j++)
            tok[j] = s->sample.id[(i * 97 + j) % n];
        tok[0] = s->sample.id[i % n];
        if (s->chunk_tokens > 1) tok[1] = s->sample.id[i / n % n];
        if (s->chunk_tokens > 2) tok[2] = (int32_t)(i % s->b->cfg->V);
        sum += pow((double)(i + 1), -zipf);
        s->popular[i] = sum;
    }
    for (size_t i = 0; i < s->n_docs; i++)
        s->popular[i] /= sum;
}

static size_t draw_document(struct soak *s)
{
    double u = rng_unit(&s->rng);
    size_t lo = 0, hi = s->n_docs - 1;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (s->popular[mid] > u)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

static bool drawn(const size_t *doc, size_t n, size_t what)
{
    for (size_t i = 0; i < n; i++)
        if (doc[i] == what) return true;
    return false;
}

/* The next request's prompt, into p->tok. */
static void draw_prompt(struct soak *s, struct bench_prompt *p, size_t request)
{
    size_t doc[BENCH_CHUNKS_MAX], head = s->b->sink >= 0;
    uint64_t hash = 0xcbf29ce484222325ull;
    if (head) p->tok[0] = s->b->sink;
    for (size_t i = 0; i < s->n_chunks; i++) {
        do {
            doc[i] = draw_document(s);
        } while (drawn(doc, i, doc[i]));
        hash = (hash ^ doc[i]) * 0x100000001b3ull;
        p->chunk[i].tok0 = (uint32_t)(head + i * s->chunk_tokens);
        p->chunk[i].n = s->chunk_tokens;
        memcpy(p->tok + p->chunk[i].tok0, s->doc + doc[i] * s->chunk_tokens,
               s->chunk_tokens * sizeof *p->tok);
    }
    s->order[request] = hash;
    p->n_chunks = s->n_chunks;
    p->suffix0 = (uint32_t)(head + s->n_chunks * s->chunk_tokens);
    p->n_tok = p->suffix0 + s->query_tokens;
    size_t at = rng_next(&s->rng) % s->sample.n;
    for (uint32_t i = 0; i < s->query_tokens; i++)
        p->tok[p->suffix0 + i] = s->sample.id[(at + i * 3) % s->sample.n];
}

/* ---- what is watched ---- */

static uint64_t rss_bytes(void)
{
    unsigned long long all, resident = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (!f) return 0;
    if (fscanf(f, "%llu %llu", &all, &resident) != 2) resident = 0;
    (void)fclose(f);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static int open_files(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = -3; /* ".", ".." and this folder */
    if (!d) return -1;
    while (readdir(d))
        n++;
    (void)closedir(d);
    return n;
}

/* Every cap, after every request. */
static void watch_caps(struct soak *s)
{
    struct store_stats st;
    store_get_stats(s->b->store, &st);
    s->over_cap += st.used_bytes > st.budget_bytes;
    for (size_t i = 0; i < store_n_tiers(s->b->store); i++) {
        struct store_tier_stats ts;
        store_get_tier_stats(s->b->store, i, &ts);
        if (!ts.shared) s->over_cap += ts.tier.used_bytes > ts.tier.capacity_bytes;
    }
}

static void count_sources(struct soak *s, const struct bench_result *res)
{
    for (size_t i = 0; i < s->n_chunks; i++) {
        size_t at = 0;
        s->t.chunks++;
        if (!res->tier[i]) {
            s->t.missed++;
            continue;
        }
        for (size_t k = 0; k < store_n_tiers(s->b->store); k++) {
            struct store_tier_stats ts;
            store_get_tier_stats(s->b->store, k, &ts);
            if (strcmp(res->tier[i], ts.name) == 0) at = k + 1;
        }
        s->t.from[at]++;
    }
    s->failed_ranges += res->report.n_failed_ranges;
}

/* ---- a request ---- */

/* The same request over freshly built chunks must give the same bits. */
static int check_answer(struct soak *s, const struct bench_prompt *p,
                        const struct bench_result *got)
{
    bool skip[BENCH_CHUNKS_MAX];
    struct bench_run run = {.strategy = POL_QUERY, .ratio = s->ratio, .skip = skip};
    struct bench_result want;
    struct store *store = s->b->store;
    size_t V = s->b->cfg->V;
    int r = 0;
    if (got->report.n_failed_ranges) return 0; /* what was computed instead is not in the report */
    (void)store_clear(s->fresh, NULL, NULL, true);
    s->b->store = s->fresh;
    for (size_t i = 0; i < p->n_chunks && r >= 0; i++) {
        skip[i] = got->tier[i] == NULL;
        r = bench_build_chunk(s->b, p->tok + p->chunk[i].tok0, p->chunk[i].n);
    }
    if (r >= 0) r = bench_prefill(s->b, p, &run, 0, &want);
    s->b->store = store;
    if (r < 0) return r;
    s->checked++;
    s->wrong += got->n_rows != want.n_rows ||
                memcmp(got->logits, want.logits, V * want.n_rows * sizeof *want.logits) != 0;
    bench_result_fini(&want);
    return 0;
}

static int run_full(struct soak *s, const struct bench_prompt *p)
{
    struct bench_run run = {.strategy = POL_FULL, .ratio = 1};
    struct bench_result res;
    int r = bench_prefill(s->b, p, &run, 0, &res);
    if (r < 0) return r;
    double ms = res.ttft_ms / p->n_tok, was = s->ms_per_token;
    s->ms_per_token = was > 0 ? was + 0.2 * (ms - was) : ms;
    if (s->gate) s->b->ms_per_token = s->ms_per_token;
    s->t.full_ms[s->t.n_full++] = res.ttft_ms;
    bench_result_fini(&res);
    return 0;
}

static int run_request(struct soak *s, struct bench_prompt *p, size_t request)
{
    struct bench_run run = {.strategy = POL_QUERY, .ratio = s->ratio};
    struct bench_result res;
    draw_prompt(s, p, request);
    int r = request % FULL_EVERY == 0 ? run_full(s, p) : 0;
    if (r == 0) r = bench_prefill(s->b, p, &run, 0, &res);
    if (r < 0) return r;
    s->t.blend_ms[s->t.n_blend++] = res.ttft_ms;
    if (request % FULL_EVERY == 0)
        s->t.ratio[s->t.n_full - 1] = s->t.full_ms[s->t.n_full - 1] / res.ttft_ms;
    count_sources(s, &res);
    if (request % CHECK_EVERY == 0) r = check_answer(s, p, &res);
    const uint64_t since = clock_ns();
    for (size_t i = 0; i < p->n_chunks && r >= 0; i++) {
        if (res.tier[i]) continue;
        r = bench_build_chunk(s->b, p->tok + p->chunk[i].tok0, p->chunk[i].n);
        if (r == -ENOSPC) {
            s->build_refused++;
            r = 0;
        }
    }
    s->t.build_ms += clock_ms_since(since);
    bench_result_fini(&res);
    watch_caps(s);
    return r < 0 ? r : 0;
}

/* ---- report ---- */

static double share(uint64_t part, uint64_t of)
{
    return of ? (double)part / (double)of : 0;
}

static void report_batch(struct soak *s, size_t batch)
{
    struct totals *t = &s->t;
    double blend = bench_quantile(t->blend_ms, t->n_blend, 0.5);
    double p95 = bench_quantile(t->blend_ms, t->n_blend, 0.95);
    double full = bench_quantile(t->full_ms, t->n_full, 0.5);
    double ratio = bench_quantile(t->ratio, t->n_full, 0.5);
    const double built_ms = t->build_ms / (double)t->n_blend; /* by a request */
    const double throughput = 1 / (1 / ratio + built_ms / full);
    uint64_t rss = rss_bytes();
    struct store_stats st;
    store_get_stats(s->b->store, &st);
    json_t *j =
        json_pack("{s:I, s:I, s:f, s:f, s:o, s:o, s:o, s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:i}",
                  "batch", (json_int_t)batch, "requests", (json_int_t)t->n_blend, "blend_ms_median",
                  blend, "blend_ms_p95", p95, "full_ms_median", bench_number(full), "ratio",
                  bench_number(ratio), "throughput_ratio", bench_number(throughput), "build_ms",
                  built_ms, "share_missed", share(t->missed, t->chunks), "share_ram",
                  share(t->from[0], t->chunks), "rss_bytes", (json_int_t)rss, "ram_used_bytes",
                  (json_int_t)st.used_bytes, "ram_budget_bytes", (json_int_t)st.budget_bytes,
                  "ram_evictions", (json_int_t)st.evictions, "open_files", open_files());
    (void)printf("%5zu %9.2f %9.2f %9.2f %7.2fx %9.2fx %8.1f %7.3f", batch, blend, p95, full, ratio,
                 throughput, (double)rss / 1048576, share(t->from[0], t->chunks));
    for (size_t i = 0; i < store_n_tiers(s->b->store); i++) {
        struct store_tier_stats ts;
        char key[40];
        store_get_tier_stats(s->b->store, i, &ts);
        (void)snprintf(key, sizeof key, "share_%s", ts.name);
        json_object_set_new(j, key, json_real(share(t->from[i + 1], t->chunks)));
        (void)snprintf(key, sizeof key, "%s_used_bytes", ts.name);
        json_object_set_new(j, key, json_integer((json_int_t)ts.tier.used_bytes));
        (void)snprintf(key, sizeof key, "%s_capacity_bytes", ts.name);
        json_object_set_new(j, key, json_integer((json_int_t)ts.tier.capacity_bytes));
        (void)printf(" %s %.3f", ts.name, share(t->from[i + 1], t->chunks));
    }
    (void)printf(" miss %.3f\n", share(t->missed, t->chunks));
    (void)fflush(stdout);
    json_array_append_new(s->b->rows, j);
    if (batch == 0) {
        s->first_kept = s->least_kept = throughput;
        s->rss_first = rss;
    }
    if (!isnan(throughput)) s->last_kept = throughput;
    if (throughput < s->least_kept) s->least_kept = throughput;
    s->rss_last = rss;
    t->n_blend = t->n_full = 0;
    t->build_ms = 0;
    t->chunks = t->missed = 0;
    memset(t->from, 0, sizeof t->from);
}

static int by_hash(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static int conclude(struct soak *s, struct err *err)
{
    int64_t growth = (int64_t)s->rss_last - (int64_t)s->rss_middle;
    double kept = s->last_kept / s->first_kept, least = s->least_kept / s->first_kept;
    size_t repeated = 0;
    qsort(s->order, s->n_requests, sizeof *s->order, by_hash);
    for (size_t i = 1; i < s->n_requests; i++)
        repeated += s->order[i] == s->order[i - 1];
    json_t *own = json_pack(
        "{s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}",
        "first_batch_throughput_ratio", bench_number(s->first_kept), "last_batch_throughput_ratio",
        bench_number(s->last_kept), "kept", bench_number(kept), "kept_least", bench_number(least),
        "rss_growth_bytes", (json_int_t)growth, "requests", (json_int_t)s->n_requests, "documents",
        (json_int_t)s->n_docs, "chunks", (json_int_t)s->n_chunks, "chunk_tokens",
        (json_int_t)s->chunk_tokens, "repeated_orderings", (json_int_t)repeated, "answers_checked",
        (json_int_t)s->checked, "answers_wrong", (json_int_t)s->wrong, "caps_exceeded",
        (json_int_t)s->over_cap, "failed_ranges", (json_int_t)s->failed_ranges, "builds_refused",
        (json_int_t)s->build_refused);
    json_object_update(s->b->meta, own);
    json_decref(own);
    (void)printf("throughput ratio kept: %.3f of the first batch's, %.3f in the worst batch; "
                 "memory since the middle: %+.1f MiB; "
                 "%llu answers checked, %llu wrong; caps exceeded: %llu\n",
                 kept, least, (double)growth / 1048576, (unsigned long long)s->checked,
                 (unsigned long long)s->wrong, (unsigned long long)s->over_cap);
    if (s->wrong) return err_set(err, -EBADMSG, "answers differ from the reference");
    if (s->over_cap) return err_set(err, -ENOSPC, "a cap was exceeded");
    if (growth > RSS_GROWTH_MAX) return err_set(err, -ENOMEM, "memory grew");
    return 0;
}

/* ---- the run ---- */

/* RAM, and the slower tiers that options name, written as the worker writes them. */
static int open_store(struct soak *s, const struct opts *opts, struct err *err)
{
    static const char *const name[] = {"nvme", "redis"};
    struct store_tier_opts tier[STORE_TIERS_MAX] = {0};
    struct tier_ident id = bench_ident(s->b);
    struct record_desc d = {
        .dtype = id.dtype, .L = id.L, .G = id.G, .K = id.K, .n_tokens = s->chunk_tokens};
    struct record_layout l;
    size_t n = 0;
    int r = record_layout(&d, &l);
    if (r == 0)
        r = bench_store_create(s->b, s->n_chunks * 2 * l.record_bytes + (8u << 20), NULL, 0,
                               &s->fresh, err);
    for (size_t i = 0; i < sizeof name / sizeof *name && r >= 0; i++) {
        char text[256];
        struct place_want want = {name[i], &id, s->n_docs * l.record_bytes * 2 + (64u << 20),
                                  l.record_bytes};
        if (!opt_given(opts, name[i]) && !strstr(opt_str(opts, "tiers"), name[i])) continue;
        r = place_open(&s->places, &want, &tier[n].tier, text, err);
        if (r == 0) (void)fprintf(stderr, "%s: %s\n", name[i], text);
        if (r > 0) tier[n++].write = STORE_WRITE_BEHIND;
    }
    if (r < 0) goto fail;
    json_object_set_new(s->b->meta, "documents_bytes",
                        json_integer((json_int_t)(s->n_docs * l.record_bytes)));
    store_destroy(s->b->store);
    s->b->store = NULL;
    r = bench_store_create(s->b, opt_size(opts, "ram"), tier, n, &s->b->store, err);
    if (r == 0) return 0;
fail:
    for (size_t i = 0; i < n; i++)
        tier[i].tier->ops->destroy(tier[i].tier);
    return r;
}

static int warm(struct soak *s, struct err *err)
{
    for (size_t i = 0; i < s->n_docs; i++) {
        int r = bench_build_chunk(s->b, s->doc + i * s->chunk_tokens, s->chunk_tokens);
        if (r < 0) return err_set(err, r, "document %zu cannot be built: %s", i, err_name(r));
        bench_progress("document", i + 1, s->n_docs);
        /* A record that RAM drops before a slower tier took it is lost: as slow as the tiers. */
        if (i % 8 == 7) (void)store_flush(s->b->store, clock_ns() + 30000000000ull);
    }
    (void)store_flush(s->b->store, clock_ns() + 30000000000ull);
    return 0;
}

static int run_all(struct soak *s, struct err *err)
{
    struct bench_prompt p = {0};
    int r = warm(s, err);
    p.tok = mem_alloc((1 + s->n_chunks * s->chunk_tokens + s->query_tokens) * sizeof *p.tok);
    if (!p.tok) return -ENOMEM;
    (void)printf("%5s %9s %9s %9s %8s %10s %8s %7s\n", "batch", "blend ms", "p95", "full ms",
                 "speedup", "throughput", "RSS MiB", "ram");
    for (size_t i = 0; i < s->n_requests && r == 0; i++) {
        r = run_request(s, &p, i);
        if (i == s->n_requests / 2) s->rss_middle = rss_bytes();
        if (r == 0 && ((i + 1) % s->batch == 0 || i + 1 == s->n_requests))
            report_batch(s, i / s->batch);
    }
    mem_free(p.tok);
    if (r < 0 && err->code == 0) (void)err_set(err, r, "a request failed: %s", err_name(r));
    return r;
}

static int take_options(struct soak *s, const struct opts *opts, struct err *err)
{
    int64_t n_docs = DOCUMENTS_DEFAULT;
    if (opt_given(opts, "documents") &&
        (opt_parse_int(opt_str(opts, "documents"), &n_docs) < 0 || n_docs < 1 || n_docs > 1 << 24))
        return err_set(err, -EINVAL, "--documents: for soak, how many");
    s->n_docs = (size_t)n_docs;
    s->n_chunks = (size_t)opt_int(opts, "chunks");
    s->chunk_tokens = (uint32_t)opt_int(opts, "chunk-tokens");
    s->query_tokens = (uint32_t)opt_int(opts, "query-tokens");
    s->n_requests = (size_t)opt_int(opts, "requests");
    s->batch = (size_t)opt_int(opts, "batch");
    s->ratio = 0.15f;
    s->gate = opt_bool(opts, "gate");
    s->rng.state = 1;
    if (s->n_docs < s->n_chunks)
        return err_set(err, -EINVAL, "--documents: fewer than chunks of a prompt");
    uint64_t total = s->n_chunks * (uint64_t)s->chunk_tokens + s->query_tokens + 1;
    if (total > fus_core_ctx_max(s->b->core))
        return err_set(err, -ERANGE, "the prompt would have %llu tokens, the context holds %u",
                       (unsigned long long)total, fus_core_ctx_max(s->b->core));
    return 0;
}

int bench_soak(struct bench *b, const struct opts *opts, struct err *err)
{
    struct soak s = {.b = b};
    places_init(&s.places, opts);
    int r = take_options(&s, opts, err);
    if (r == 0) r = bench_sample_tokens(b, "etc/demo", &s.sample, err);
    if (r < 0) return r;
    s.doc = mem_alloc(s.n_docs * s.chunk_tokens * sizeof *s.doc);
    s.popular = mem_alloc(s.n_docs * sizeof *s.popular);
    s.order = mem_zalloc(s.n_requests * sizeof *s.order);
    s.t.blend_ms = mem_alloc(s.batch * sizeof(double));
    s.t.full_ms = mem_alloc(s.batch * sizeof(double));
    s.t.ratio = mem_alloc(s.batch * sizeof(double));
    r = s.doc && s.popular && s.order && s.t.blend_ms && s.t.full_ms && s.t.ratio ? 0 : -ENOMEM;
    if (r == 0) make_documents(&s, opt_double(opts, "zipf"));
    if (r == 0) r = open_store(&s, opts, err);
    if (r == 0) r = run_all(&s, err);
    if (r == 0) {
        struct err why = {0};
        int verdict = conclude(&s, &why);
        r = bench_write_json(opts, b->meta, b->rows, err);
        if (r == 0 && verdict < 0) r = err_set(err, verdict, "%s", why.msg);
    }
    store_destroy(s.fresh);
    store_destroy(b->store); /* before the places that its tiers live in */
    b->store = NULL;
    places_fini(&s.places);
    tok_ids_fini(&s.sample);
    mem_free(s.doc);
    mem_free(s.popular);
    mem_free(s.order);
    mem_free(s.t.blend_ms);
    mem_free(s.t.full_ms);
    mem_free(s.t.ratio);
    return r;
}
