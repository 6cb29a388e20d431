/* kvblend-bench mrc: the miss-ratio curve that a worker keeps of a sample (tiers/mrc.h), beside the
 * exact one of the same trace: the stack distance of every look-up, counted offline.
 *
 * A trace is RAGPulse's folder or a file of Mooncake's; a record is a part of a prompt, or a block
 * of 512 tokens, and takes a byte a token. */
#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "tiers/mrc.h"
#include "tools/bench/bench.h"
#include "tools/bench/rag.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { BLOCK_TOKENS = 512, SIZES = 400 };

struct look_up {
    uint64_t id;
    uint32_t n_tok;
};

/* ---- the trace as look-ups; each request from its end, as a worker does it ---- */

static int read_rag(const char *folder, struct buf *out, struct err *err)
{
    struct rag_trace t;
    int r = rag_trace_read(folder, &t, err);
    for (size_t i = 0; r == 0 && i < t.n; i++)
        for (size_t k = t.request[i].n_parts; r == 0 && k-- > 0;) {
            const struct rag_part *p = &t.request[i].part[k];
            const struct look_up l = {(uint64_t)p->kind << 32 | p->id, p->n_tok};
            r = buf_add(out, &l, sizeof l);
        }
    rag_trace_fini(&t);
    return r;
}

static int read_blocks(const char *path, struct buf *out, struct err *err)
{
    struct buf text = BUF_INIT;
    int r = bench_read_text(path, &text, err);
    unsigned n = 0;
    for (char *next, *line = r == 0 ? (char *)buf_cstr(&text) : NULL; r == 0 && line; line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = '\0';
        n++;
        if (line[strspn(line, " \t\r")] == '\0') continue;
        json_t *o = json_loads(line, 0, NULL), *ids = json_object_get(o, "hash_ids");
        bool good = json_is_array(ids);
        for (size_t k = json_array_size(ids); r == 0 && good && k-- > 0;) {
            const json_t *id = json_array_get(ids, k);
            const struct look_up l = {(uint64_t)json_integer_value(id), BLOCK_TOKENS};
            good = json_is_integer(id);
            r = buf_add(out, &l, sizeof l);
        }
        if (!good) r = err_set(err, -EINVAL, "%.100s:%u: no line with \"hash_ids\"", path, n);
        json_decref(o);
    }
    buf_fini(&text);
    return r;
}

/* ---- the exact curve ---- */

struct exact {
    uint64_t tokens;
    struct buf found; /* struct hit */
};
struct hit {
    uint64_t distance, n_tok;
};

static int by_id(const void *a, const void *b)
{
    const struct look_up *const *x = a, *const *y = b;
    if ((*x)->id != (*y)->id) return (*x)->id < (*y)->id ? -1 : 1;
    return *x < *y ? -1 : *x > *y;
}

static int by_distance(const void *a, const void *b)
{
    const struct hit *x = a, *y = b;
    return x->distance < y->distance ? -1 : x->distance > y->distance;
}

/* before [n]: one more than the place of the same record's last look-up, 0: there is none. */
static int link_look_ups(const struct look_up *l, size_t n, size_t *before)
{
    const struct look_up **sorted = mem_alloc(n * sizeof *sorted);
    if (!sorted) return -ENOMEM;
    for (size_t i = 0; i < n; i++)
        sorted[i] = &l[i];
    qsort(sorted, n, sizeof *sorted, by_id);
    for (size_t i = 0; i < n; i++) {
        const bool again = i > 0 && sorted[i]->id == sorted[i - 1]->id;
        before[sorted[i] - l] = again ? (size_t)(sorted[i - 1] - l) + 1 : 0;
    }
    mem_free(sorted);
    return 0;
}

static void add(uint64_t *tree, size_t n, size_t at, uint64_t v)
{
    for (size_t i = at; i <= n; i += i & -i)
        tree[i] += v;
}

static uint64_t sum(const uint64_t *tree, size_t at)
{
    uint64_t s = 0;
    for (size_t i = at; i > 0; i -= i & -i)
        s += tree[i];
    return s;
}

/* A record counts in the tree where it was looked up last. */
static int count_exactly(const struct look_up *l, size_t n, struct exact *ret)
{
    uint64_t *tree = mem_zalloc((n + 1) * sizeof *tree);
    size_t *before = mem_alloc(n * sizeof *before);
    int r = tree && before ? link_look_ups(l, n, before) : -ENOMEM;
    for (size_t i = 0; r == 0 && i < n; i++) {
        ret->tokens += l[i].n_tok;
        if (before[i]) {
            const struct hit h = {sum(tree, i) - sum(tree, before[i]) + l[i].n_tok, l[i].n_tok};
            r = buf_add(&ret->found, &h, sizeof h);
            add(tree, n, before[i], -(uint64_t)l[i].n_tok);
        }
        add(tree, n, i + 1, l[i].n_tok);
    }
    mem_free(tree);
    mem_free(before);
    if (r == 0)
        qsort(ret->found.data, ret->found.len / sizeof(struct hit), sizeof(struct hit),
              by_distance);
    return r;
}

/* ---- beside the sample's ---- */

static const struct bench_column columns[] = {{"sample", "sample", 8, 0},
                                              {"rate", "rate", 8, 4},
                                              {"largest", "error_max", 8, 4},
                                              {"mean", "error_mean", 8, 4},
                                              {"ns each", "ns_look_up", 8, 0},
                                              {"distinct", "distinct_error", 9, 4},
                                              {0}};

static int follow_trace(const struct look_up *l, size_t n, uint32_t sample, uint64_t seed,
                        struct mrc **ret, double *ret_ns)
{
    int r = mrc_create(sample, 0, ret);
    const uint64_t begin_ns = clock_ns();
    for (size_t i = 0; r == 0 && i < n; i++) {
        struct rng mix = {l[i].id ^ seed};
        const struct tier_key key = {rng_next(&mix), rng_next(&mix)};
        mrc_look_up(*ret, &key, l[i].n_tok, l[i].n_tok);
    }
    *ret_ns = (double)(clock_ns() - begin_ns) / (double)n;
    return r;
}

/* At sizes that grow by equal factors from a thousandth of all distinct tokens to all of them. */
static void report_errors(const struct exact *e, uint64_t distinct, struct mrc *m, double ns,
                          json_t *rows)
{
    const struct hit *h = (const void *)e->found.data;
    const size_t n = e->found.len / sizeof *h;
    struct mrc_stats s;
    double most = 0, all = 0;
    uint64_t found = 0;
    size_t at = 0;
    for (unsigned i = 0; i <= SIZES; i++) {
        const double size = (double)distinct * pow(1000, (double)i / SIZES - 1);
        for (; at < n && (double)h[at].distance <= size; at++)
            found += h[at].n_tok;
        const double error = fabs(mrc_found(m, (uint64_t)size) - (double)found / (double)e->tokens);
        most = fmax(most, error);
        all += error;
    }
    mrc_get_stats(m, &s);
    json_t *row =
        json_pack("{s:I, s:o, s:o, s:o, s:o, s:o}", "sample", (json_int_t)s.n_sampled, "rate",
                  bench_number(s.rate), "error_max", bench_number(most), "error_mean",
                  bench_number(all / (SIZES + 1)), "ns_look_up", bench_number(ns), "distinct_error",
                  bench_number(s.distinct_bytes / (double)distinct - 1));
    bench_print_row(columns, row);
    json_array_append_new(rows, row);
}

static uint64_t distinct_tokens(const struct exact *e)
{
    uint64_t again = 0;
    const struct hit *h = (const void *)e->found.data;
    for (size_t i = 0; i < e->found.len / sizeof *h; i++)
        again += h[i].n_tok;
    return e->tokens - again;
}

static int measure(const struct buf *look_ups, const struct opts *opts, json_t *rows,
                   struct err *err)
{
    const struct look_up *l = (const void *)look_ups->data;
    const size_t n = look_ups->len / sizeof *l;
    struct exact e = {.found = BUF_INIT};
    int r = n > 0 ? count_exactly(l, n, &e) : err_set(err, -EINVAL, "the trace is empty");
    if (r == 0) bench_print_head(columns);
    for (int64_t i = 0; r == 0 && i < opt_int(opts, "seeds"); i++) {
        struct mrc *m = NULL;
        double ns;
        r = follow_trace(l, n, (uint32_t)opt_int(opts, "sample"), (uint64_t)i * RNG_STEP, &m, &ns);
        if (r == 0) report_errors(&e, distinct_tokens(&e), m, ns, rows);
        mrc_destroy(m);
    }
    buf_fini(&e.found);
    return r;
}

static int measure_mrc(const struct opts *opts, struct err *err)
{
    const char *path = opt_str(opts, "trace");
    struct buf look_ups = BUF_INIT;
    struct stat st;
    if (!*path) return err_set(err, -EINVAL, "--trace PATH is needed");
    int r = stat(path, &st) == 0 && S_ISDIR(st.st_mode) ? read_rag(path, &look_ups, err)
                                                        : read_blocks(path, &look_ups, err);
    json_t *meta = bench_meta(), *rows = json_array();
    if (r == 0) r = measure(&look_ups, opts, rows, err);
    if (r == 0) r = bench_write_json(opts, meta, rows, err);
    json_decref(meta);
    json_decref(rows);
    buf_fini(&look_ups);
    return r;
}

static const struct opt_def measure_mrc_options[] = {
    {"trace", OPT_STR, NULL, 0, 0, NULL, "folder of a RAGPulse trace, or file of Mooncake's"},
    {"sample", OPT_INT, "8192", 1, 1 << 24, NULL, "records that are followed at most"},
    {"seeds", OPT_INT, "5", 1, 1000, NULL, "samples to draw, one after the other"},
    {0}};

const struct bench_sub bench_mrc = {
    .name = "mrc",
    .about = "the online miss-ratio curve beside the exact one of a trace",
    .shared = "",
    .options = measure_mrc_options,
    .run = measure_mrc};
