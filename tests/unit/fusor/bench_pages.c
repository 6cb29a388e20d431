/* Pages in 8 bits beside a device's own, and weights in 8 bits, for docs/benchmarks.md: what they
 * change, and what time they take.
 *   bench_pages kl MODEL TEXT [isa]       every position of the first pieces of a text, to f32
 *   bench_pages steps MODEL TEXT [isa]    the same by decode steps, of 256 tokens of each piece
 *   bench_pages time MODEL TOKENS [isa]   a full prefill, and decode steps behind so many tokens
 * Sequences of the latter have stored KV of random values, each its own pages. Both run all
 * arithmetics in turns, in one process. */
#include "fusor/core/prefill.h"
#include "fusor/text/tok.h"

#include "base/clock.h"
#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SESSIONS = 8,
    ROUNDS = 9,
    STEPS = 4,
    PIECES = 8,
    PIECE = 768,
    PIECE_STEPS = 256,
    QUESTION = 32,
    WAYS = 6
};

static const struct {
    const char *name;
    enum kn_arith arith;
    bool kv_q8;
    enum kn_weights weights;
    const char *gemm;
} ways[WAYS] = {{"f32", KN_ARITH_F32, false, KN_WEIGHTS_AUTO},
                {"f32, q8 pages", KN_ARITH_F32, true, KN_WEIGHTS_AUTO},
                {"bf16", KN_ARITH_BF16, false, KN_WEIGHTS_AUTO},
                {"bf16, q8 pages", KN_ARITH_BF16, true, KN_WEIGHTS_AUTO},
                {"int8", KN_ARITH_BF16, false, KN_WEIGHTS_INT8},
                {"int16", KN_ARITH_AUTO, false, KN_WEIGHTS_AUTO, "own-int16"}};

static struct model *model;
static struct fus_core *core[WAYS]; /* NULL: this CPU has no such arithmetic */

static void give_up(const char *what)
{
    (void)fprintf(stderr, "bench_pages: %s\n", what);
    exit(1);
}

static void open_cores(const char *path, const char *isa, size_t n_tok)
{
    struct err e = {0};
    if (model_open(path, &model, &e) < 0) give_up(e.msg);
    const struct model_cfg *g = model_config(model);
    for (int w = 0; w < WAYS; w++) {
        const size_t heads = 2 * g->G * g->L, room = heads * 4 * g->K; /* as f32: enough for all */
        const struct fus_core_opts o = {.dev = {.isa = isa,
                                                .arith = ways[w].arith,
                                                .kv_q8 = ways[w].kv_q8,
                                                .gemm = ways[w].gemm,
                                                .weights = ways[w].weights},
                                        .kv_bytes = (n_tok + 2 * KN_PAGE) * room};
        if (fus_core_create(model, &o, &core[w], &e) < 0) (void)fprintf(stderr, "%s\n", e.msg);
        if (core[w])
            printf("%-16s %s, %s, %zu bytes of KV a token\n", ways[w].name,
                   kn_info(fus_core_dev(core[w]))->isa, kn_info(fus_core_dev(core[w]))->gemm,
                   heads * kn_row_bytes(kn_info(fus_core_dev(core[w]))->kv, 1, g->K));
    }
}

/* ---- what changes ---- */

static float *read_tokens(const char *path, struct tok_ids *ids)
{
    struct err e = {0};
    struct tok *t = NULL;
    FILE *f = fopen(path, "re");
    enum { BYTES = 1 << 16 };
    char *text = mem_alloc(BYTES);
    if (!f || !text) give_up("no such text");
    const struct tok_piece piece = {text, fread(text, 1, BYTES, f), false};
    if (tok_open(model, &t, &e) < 0 || tok_encode(t, &piece, 1, 0, ids) < 0) give_up(e.msg);
    if (ids->n < PIECES * PIECE) give_up("the text is too short");
    tok_close(t);
    mem_free(text);
    (void)fclose(f);
    return mem_alloc((size_t)PIECE * model_config(model)->V * sizeof(float));
}

/* log p of every token of a row, in place. */
static void log_softmax(float *x, size_t n)
{
    double top = -INFINITY, sum = 0;
    for (size_t i = 0; i < n; i++)
        top = fmax(top, (double)x[i]);
    for (size_t i = 0; i < n; i++)
        sum += exp((double)x[i] - top);
    for (size_t i = 0; i < n; i++)
        x[i] -= (float)(top + log(sum));
}

/* Of way w, where the piece's rows of f32 are `ref`, or to be `ref`. */
struct change {
    double kl, kl_max, nll;
    size_t same, n;
};

static size_t best_of(const float *x, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

static void run(struct fus_core *c, const struct fus_plan *p, size_t n_more, struct fus_session **s,
                struct fus_prefill **f)
{
    if (fus_session_create(c, p->n_tok + n_more, s) < 0) give_up("no memory");
    if (fus_prefill_begin(*s, p, f) < 0 || fus_prefill_steps(*f) < 0) give_up("a prompt failed");
}

/* A row of way w, of which x is a copy; next: what the text goes on with, or -1. */
static void judge_row(int w, float *x, float *ref, int32_t next, struct change *c)
{
    const size_t V = model_config(model)->V;
    double kl = 0;
    log_softmax(x, V);
    if (w == 0) memcpy(ref, x, V * sizeof *x);
    for (size_t v = 0; v < V; v++)
        kl += exp((double)ref[v]) * ((double)ref[v] - (double)x[v]);
    c->kl += kl;
    c->kl_max = fmax(c->kl_max, kl);
    c->same += best_of(ref, V) == best_of(x, V);
    c->n++;
    if (next >= 0) c->nll -= (double)x[next];
}

/* All positions but the first, by a prefill or by decode steps. */
static void judge_piece(int w, const int32_t *tok, bool by_steps, float *ref, struct change *c)
{
    const size_t V = model_config(model)->V;
    const uint32_t n = by_steps ? PIECE_STEPS : PIECE;
    const struct fus_plan p = {.tok = tok, .n_tok = by_steps ? 1 : n, .logits_from = !by_steps};
    struct fus_session *s;
    struct fus_prefill *f;
    size_t rows = 0;
    float *x = mem_alloc(V * sizeof *x);
    run(core[w], &p, by_steps ? n : 0, &s, &f);
    const float *logits = fus_prefill_logits(f, &rows);
    for (uint32_t i = 1; x && i < n; i++, ref += V) {
        if (by_steps) {
            if (fus_decode(core[w], &s, tok + i, 1, NULL, x) < 0) give_up("a step failed");
        } else {
            memcpy(x, logits + (i - 1) * V, V * sizeof *x);
        }
        judge_row(w, x, ref, i + 1 < n ? tok[i + 1] : -1, c);
    }
    mem_free(x);
    fus_prefill_end(f);
    fus_session_destroy(s);
}

static void judge(const char *text, bool by_steps)
{
    struct tok_ids ids = {0};
    struct change c[WAYS] = {0};
    float *ref = read_tokens(text, &ids);
    for (size_t p = 0; ref && p < PIECES; p++)
        for (int w = 0; w < WAYS; w++)
            if (core[w]) judge_piece(w, ids.id + p * PIECE, by_steps, ref, &c[w]);
    for (int w = 0; w < WAYS; w++)
        if (core[w])
            printf("%-16s KL %.5f, largest %.3f, same token %.4f, perplexity %.3f\n", ways[w].name,
                   c[w].kl / (double)c[w].n, c[w].kl_max, (double)c[w].same / (double)c[w].n,
                   exp(c[w].nll / (double)(c[w].n - PIECES)));
    mem_free(ref);
    tok_ids_fini(&ids);
}

/* ---- what time it takes ---- */

static uint16_t *stored; /* [n, G, K] f16, the same of every layer */

static int stored_layer(void *ctx, unsigned layer, struct kv_layer *ret)
{
    *ret = (struct kv_layer){.k = stored, .v = stored, .dtype = KN_F16};
    return 0;
}

static void stored_release(void *ctx)
{
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct timed {
    struct fus_session *s[SESSIONS];
    double prefill_ms[ROUNDS], one_ms[ROUNDS], all_ms[ROUNDS];
};

/* Sequences of n tokens, all but the question from stored rows. */
static void fill(int w, const int32_t *tok, uint32_t n, struct timed *t)
{
    static const struct kv_source_ops ops = {.layer = stored_layer, .release = stored_release};
    const struct fus_range range = {.tok0 = 1, .n = n - QUESTION, .src = {&ops, NULL}};
    const struct fus_plan p = {.tok = tok,
                               .n_tok = n,
                               .range = &range,
                               .n_range = 1,
                               .strategy = POL_REUSE,
                               .logits_from = n - 1};
    struct fus_prefill *f;
    for (int i = 0; i < SESSIONS; i++) {
        run(core[w], &p, ROUNDS * STEPS * 2, &t->s[i], &f);
        fus_prefill_end(f);
    }
}

/* Long ones take as long as all else. */
static int prefills(uint32_t n)
{
    return n < 1000 ? ROUNDS : n < 4000 ? 3 : 1;
}

static void time_round(int w, const int32_t *tok, uint32_t n, float *logits, struct timed *t,
                       int round)
{
    const struct fus_plan p = {.tok = tok, .n_tok = n, .logits_from = n - 1};
    struct fus_session *s;
    struct fus_prefill *f;
    uint64_t t0 = clock_ns();
    if (round < prefills(n)) {
        run(core[w], &p, 0, &s, &f);
        t->prefill_ms[round] = clock_ms_since(t0);
        fus_prefill_end(f);
        fus_session_destroy(s);
    }
    t0 = clock_ns();
    for (int i = 0; i < STEPS; i++)
        if (fus_decode(core[w], t->s, tok, 1, NULL, logits) < 0) give_up("a step failed");
    t->one_ms[round] = clock_ms_since(t0) / STEPS;
    t0 = clock_ns();
    for (int i = 0; i < STEPS; i++)
        if (fus_decode(core[w], t->s, tok, SESSIONS, NULL, logits) < 0) give_up("a step failed");
    t->all_ms[round] = clock_ms_since(t0) / STEPS;
}

static void print_ms(const char *what, double *ms, size_t n)
{
    qsort(ms, n, sizeof *ms, by_size);
    printf(", %s %.2f (best %.2f)", what, ms[n / 2], ms[0]);
}

static void measure(uint32_t n)
{
    const struct model_cfg *g = model_config(model);
    const size_t values = (size_t)n * g->G * g->K;
    struct timed t[WAYS] = {0};
    int32_t *tok = mem_alloc((n + SESSIONS) * sizeof *tok);
    float *logits = mem_alloc(SESSIONS * g->V * sizeof *logits);
    stored = mem_alloc(values * sizeof *stored);
    if (!tok || !logits || !stored) give_up("no memory");
    for (size_t i = 0; i < n + SESSIONS; i++)
        tok[i] = (int32_t)(i * 37 % (g->V / 2) + 5);
    for (size_t i = 0; i < values; i++) /* f16 of magnitudes from 1/8 to 2 */
        stored[i] = (uint16_t)(0x3000u + i * 40503u % 0x1000u + i % 2 * 0x8000u);
    for (int w = 0; w < WAYS; w++)
        if (core[w]) fill(w, tok, n, &t[w]);
    for (int round = 0; round < ROUNDS; round++)
        for (int w = 0; w < WAYS; w++)
            if (core[w]) time_round(w, tok, n, logits, &t[w], round);
    for (int w = 0; w < WAYS; w++) {
        if (!core[w]) continue;
        printf("%-16s %u tokens", ways[w].name, n);
        print_ms("prefill", t[w].prefill_ms, (size_t)prefills(n));
        print_ms("a step of 1", t[w].one_ms, ROUNDS);
        print_ms("of 8", t[w].all_ms, ROUNDS);
        printf(" ms\n");
        for (int i = 0; i < SESSIONS; i++)
            fus_session_destroy(t[w].s[i]);
    }
    mem_free(tok);
    mem_free(logits);
    mem_free(stored);
}

int main(int argc, char **argv)
{
    if (argc < 4) give_up("kl|steps MODEL TEXT [isa], or time MODEL TOKENS [isa]");
    const bool steps = strcmp(argv[1], "steps") == 0, kl = steps || strcmp(argv[1], "kl") == 0;
    const size_t n = kl ? PIECE : strtoul(argv[3], NULL, 10);
    open_cores(argv[2], argc > 4 ? argv[4] : NULL, kl ? n : (SESSIONS + 1) * (n + 2 * KN_PAGE));
    if (kl)
        judge(argv[3], steps);
    else
        measure((uint32_t)n);
    for (int w = 0; w < WAYS; w++)
        fus_core_destroy(core[w]);
    model_close(model);
    return 0;
}
