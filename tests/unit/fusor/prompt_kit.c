#include "tests/unit/fusor/prompt_kit.h"

#include "base/mem.h"
#include "tests/test.h"

static const uint32_t chunk_len[4] = {37, 64, 20, 90};

void add_tokens(struct prompt *p, uint64_t seed, uint32_t n)
{
    ASSERT_TRUE(p->n + n <= T_MAX);
    kit_tokens(p->k, seed, p->tok + p->n, n);
    p->n += n;
}

static void add_range(struct prompt *p, uint32_t tok0, uint32_t n, bool exact, struct kit_chunk *c)
{
    p->range[p->n_range] = (struct fus_range){.tok0 = tok0, .n = n, .exact = exact};
    p->of_range[p->n_range++] = c;
}

static void add_chunk(struct prompt *p, unsigned i)
{
    const uint32_t n = chunk_len[i];
    if (!p->have[i]) {
        kit_tokens(p->k, 100 + i, p->chunk_tok[i], n);
        kit_chunk_init(&p->chunk[i], p->k->cfg, n);
        kit_build(p->k, p->tok[0], p->chunk_tok[i], &p->chunk[i]);
        p->have[i] = true;
    }
    add_range(p, p->n, n, false, &p->chunk[i]);
    p->range[p->n_range - 1].at_built = fus_at_built_position(p->tok[0], p->tok, p->n);
    memcpy(p->tok + p->n, p->chunk_tok[i], n * sizeof(*p->tok));
    p->n += n;
}

static void add_prefix(struct prompt *p)
{
    const uint32_t n = 23;
    ASSERT_EQ(p->n, 0);
    add_tokens(p, 11, n);
    kit_chunk_init(&p->prefix, p->k->cfg, n);
    kit_build(p->k, -1, p->tok, &p->prefix);
    p->have_prefix = true;
    add_range(p, 0, n, true, &p->prefix);
}

void prompt_init(struct prompt *p, struct kit *k, const char *parts)
{
    memset(p, 0, sizeof(*p));
    p->k = k;
    for (const char *c = parts; *c; c++) {
        const uint64_t seed = (uint64_t)(c - parts) * 17 + 5;
        switch (*c) {
        case 'S':
            add_tokens(p, 3, 1);
            break;
        case 'g':
            add_tokens(p, seed, 3);
            break;
        case 'q':
            add_tokens(p, seed, 11);
            break;
        case 'm':
            add_range(p, p->n, 19, false, NULL);
            add_tokens(p, seed, 19);
            break;
        case 'p':
            add_prefix(p);
            break;
        default:
            add_chunk(p, (unsigned)(*c - 'A'));
        }
    }
}

void prompt_fini(struct prompt *p)
{
    for (unsigned i = 0; i < 4; i++) {
        if (!p->have[i]) continue;
        ASSERT_EQ(p->chunk[i].released, p->chunk[i].uses);
        kit_chunk_fini(&p->chunk[i]);
    }
    if (!p->have_prefix) return;
    ASSERT_EQ(p->prefix.released, p->prefix.uses);
    kit_chunk_fini(&p->prefix);
}

struct fus_plan plan_of(const struct prompt *p, enum pol_strategy s, float ratio)
{
    return (struct fus_plan){.tok = p->tok,
                             .n_tok = p->n,
                             .range = p->range,
                             .n_range = p->n_range,
                             .strategy = s,
                             .ratio = ratio};
}

void use_sources(struct prompt *p)
{
    for (size_t i = 0; i < p->n_range; i++)
        p->range[i].src = p->of_range[i] ? kit_source(p->of_range[i]) : (struct kv_source){0};
}

void forget_sources(struct prompt *p)
{
    for (size_t i = 0; i < p->n_range; i++)
        if (p->of_range[i]) p->of_range[i]->uses--;
}

int run_on(struct fus_session *s, struct prompt *p, const struct fus_plan *plan, struct result *res)
{
    struct fus_prefill *f = NULL;
    size_t rows = 0;
    use_sources(p);
    int r = fus_prefill_begin(s, plan, &f);
    if (r < 0) {
        forget_sources(p);
        return r;
    }
    r = fus_prefill_steps(f);
    if (r == 0) {
        const float *l = fus_prefill_logits(f, &rows);
        memcpy(res->logits, l + (rows - 1) * p->k->cfg->V, p->k->cfg->V * sizeof(*l));
        const int32_t *sel = fus_prefill_selected(f, &res->n_sel);
        if (res->n_sel) memcpy(res->sel, sel, res->n_sel * sizeof(*sel));
        res->report = *fus_prefill_report(f);
        ASSERT_EQ(fus_session_len(s), p->n);
        const struct fus_report *t = &res->report;
        ASSERT_EQ(t->n_prefix + t->n_reused + t->n_recomputed + t->n_computed, p->n);
        if (plan->strategy == POL_HKVD) /* the mean of sets that shrink */
            ASSERT_TRUE(t->n_recomputed <= res->n_sel && res->n_sel <= 2 * t->n_recomputed);
        else
            ASSERT_EQ(t->n_recomputed, res->n_sel);
    }
    fus_prefill_end(f);
    return r;
}

void run_plan(struct prompt *p, const struct fus_plan *plan, struct result *res)
{
    struct fus_session *s = NULL;
    ASSERT_OK(fus_session_create(p->k->c, p->n, &s));
    ASSERT_OK(run_on(s, p, plan, res));
    fus_session_destroy(s);
}

void run(struct prompt *p, enum pol_strategy s, float ratio, struct result *res)
{
    const struct fus_plan plan = plan_of(p, s, ratio);
    run_plan(p, &plan, res);
}

void same_row(const struct kit *k, const float *a, const float *b)
{
    if (kn_info(fus_core_dev(k->c))->gemm_invariant) ASSERT_MEMEQ(a, b, k->cfg->V * sizeof(float));
    for (unsigned i = 0; i < k->cfg->V; i++)
        ASSERT_NEAR(a[i], b[i], 1e-3);
}

void same_logits(const struct kit *k, const struct result *a, const struct result *b)
{
    same_row(k, a->logits, b->logits);
}

double max_diff(const struct kit *k, const float *a, const double *b)
{
    double d = 0;
    for (unsigned i = 0; i < k->cfg->V; i++)
        d = fmax(d, fabs((double)a[i] - b[i]));
    return d;
}
