/* Several GPUs as one device, on the emulation: what a group computes is what one GPU does, but for
 * the order of sums; records go between them; what they cannot share is refused. */
#include "base/mem.h"
#include "fusor/core/core_int.h"
#include "kernels/cuda/team.h"
#include "tests/test.h"
#include "tests/unit/fusor/blend_kit.h"

#include <dlfcn.h>

enum { V = 96, CHUNK = 40, GLUE = 5, PROMPT = 1 + 2 * (CHUNK + GLUE) + 7, STEPS = 4 };
static const char *const groups[] = {"hostcuda:1+0", "hostcuda:0+1+2+3"};
enum { GROUPS = sizeof groups / sizeof *groups };

static void open_on(struct kit *k, const char *device, const struct tiny_opts *o)
{
    ASSERT_OK(setenv("KVBLEND_TEST_DEVICE", device, 1));
    kit_open(k, o, 64 * 16);
}

struct prompt {
    int32_t tok[PROMPT];
    struct kit_chunk chunk[2];
};

static void prompt_init(struct kit *k, struct prompt *p)
{
    kit_tokens(k, 5, p->tok, PROMPT);
    for (uint32_t i = 0; i < 2; i++) {
        kit_chunk_init(&p->chunk[i], k->cfg, CHUNK);
        kit_build(k, p->tok[0], p->tok + 1 + GLUE + i * (CHUNK + GLUE), &p->chunk[i]);
    }
}

static void prompt_fini(struct prompt *p)
{
    for (size_t i = 0; i < 2; i++)
        kit_chunk_fini(&p->chunk[i]);
}

/* Logits behind the prompt and behind each token that follows, of two sequences at once. */
static void answer(struct kit *k, struct prompt *p, enum pol_strategy how,
                   float logits[1 + STEPS][V])
{
    struct fus_range range[2];
    for (uint32_t i = 0; i < 2; i++)
        range[i] = (struct fus_range){
            .tok0 = 1 + GLUE + i * (CHUNK + GLUE), .n = CHUNK, .src = kit_source(&p->chunk[i])};
    const struct fus_plan plan = {.tok = p->tok,
                                  .n_tok = PROMPT,
                                  .range = range,
                                  .n_range = 2,
                                  .strategy = how,
                                  .ratio = 0.3f};
    struct fus_session *s[2] = {NULL};
    struct fus_prefill *f = NULL;
    size_t rows = 0;
    ASSERT_OK(fus_session_create(k->c, PROMPT + STEPS, &s[0]));
    ASSERT_OK(fus_prefill_begin(s[0], &plan, &f));
    ASSERT_OK(fus_prefill_steps(f));
    memcpy(logits[0], fus_prefill_logits(f, &rows), sizeof logits[0]);
    ASSERT_EQ(rows, 1);
    fus_prefill_end(f);
    ASSERT_OK(fus_session_fork(s[0], PROMPT + STEPS, &s[1]));
    for (int i = 0; i < STEPS; i++) {
        const int32_t next[2] = {7 + i, 7 + i};
        float both[2][V];
        ASSERT_OK(fus_decode(k->c, s, next, 2, NULL, both[0]));
        ASSERT_MEMEQ(both[0], both[1], sizeof both[0]);
        memcpy(logits[1 + i], both[0], sizeof both[0]);
    }
    fus_session_destroy(s[0]);
    fus_session_destroy(s[1]);
}

/* A sum of n products in another order is off by n roundings of 2^-24 of its absolute sum at most:
 * 160 products, and 2e-5 is twice as much. Where operands are bf16 such a rounding can move one of
 * them by 2^-8 of it, in each of four layers: 5e-2 is a few of these. */
static void check_near(const float *got, const float *want, size_t n, double within)
{
    double worst = 0, scale = 1e-6;
    for (size_t i = 0; i < n; i++) {
        worst = fmax(worst, fabs((double)got[i] - (double)want[i]));
        scale = fmax(scale, fabs((double)want[i]));
    }
    if (!(worst <= within * scale))
        test_fail(__FILE__, __LINE__, "off by %g of %g, %g allowed", worst, scale, within);
}

static const struct tiny_opts shapes[] = {
    {.L = 4, .H = 4, .G = 4, .F = 48}, /* GQA 1 */
    {.L = 4, .H = 8, .G = 4, .D = 64, .F = 160, .K = 16, .qkv_bias = true, .o_bias = true},
    {.L = 4, .H = 32, .G = 4, .K = 8, .F = 48, .qk_norm = true, .logit_cap = 2}, /* GQA 8 */
    {.L = 4, .H = 8, .G = 4, .F = 48, .window = 33, .norms = MODEL_NORMS_AROUND, .gelu = true},
    {.L = 4, .H = 8, .G = 4, .layernorm = true, .sinks = true, .F = 48},
    {.L = 4, .H = 8, .G = 4, .experts = {8, 3, 16, 32, true}}, /* with a shared one */
    {.L = 4,
     .H = 8,
     .G = 4,
     .qkv_bias = true,
     .clamped = true,
     .experts = {8, 3, 16, .renorm = true, .biases = true}},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* Every strategy, and decode steps that are run, recorded and played. */
static void check_shape(const struct tiny_opts *o, double within)
{
    static const enum pol_strategy how[] = {POL_FULL, POL_REUSE, POL_HKVD, POL_QUERY};
    float want[4][1 + STEPS][V], got[1 + STEPS][V];
    struct prompt p;
    struct kit k;
    open_on(&k, "hostcuda", o);
    prompt_init(&k, &p);
    for (size_t i = 0; i < 4; i++)
        answer(&k, &p, how[i], want[i]);
    prompt_fini(&p);
    kit_close(&k);
    for (size_t g = 0; g < GROUPS; g++) {
        open_on(&k, groups[g], o);
        ASSERT_EQ(kn_info(fus_core_dev(k.c))->n_ranks, g == 0 ? 2 : 4);
        prompt_init(&k, &p);
        for (size_t i = 0; i < 4; i++) {
            answer(&k, &p, how[i], got);
            check_near(got[0], want[i][0], (size_t)(1 + STEPS) * V, within);
        }
        ASSERT_TRUE(kn_replays(fus_core_dev(k.c)).n_played > 0);
        prompt_fini(&p);
        kit_close(&k);
    }
}

TEST(a_group_answers_as_one_gpu)
{
    for (size_t i = 0; i < SHAPES; i++)
        check_shape(&shapes[i], 2e-5);
}

TEST(a_group_with_pages_of_bf16_answers_as_one_gpu)
{
    ASSERT_OK(setenv("KVBLEND_TEST_WEIGHTS", "bf16", 1));
    for (size_t i = 1; i < SHAPES; i += 2)
        check_shape(&shapes[i], 5e-2);
    ASSERT_OK(unsetenv("KVBLEND_TEST_WEIGHTS"));
}

static const struct tiny_opts coded_shapes[] = {
    {.L = 4, .H = 8, .G = 4, .D = 64, .F = 256, .K = 16, .qkv_bias = true, .q4 = true},
    {.L = 4, .H = 16, .G = 4, .F = 128, .q4 = true, .norms = MODEL_NORMS_AROUND},
    {.L = 4, .H = 8, .G = 4, .K = 16, .experts = {8, 3, 128, 128, true}, .q4 = true},
};

TEST(a_group_shares_a_files_codes)
{
    ASSERT_OK(setenv("KVBLEND_TEST_WEIGHTS", "file", 1));
    for (size_t i = 0; i < sizeof coded_shapes / sizeof *coded_shapes; i++)
        check_shape(&coded_shapes[i], 5e-2);
    ASSERT_OK(unsetenv("KVBLEND_TEST_WEIGHTS"));
}

static void answer_on(const char *device, const char *weights, enum pol_strategy how,
                      float logits[1 + STEPS][V])
{
    struct prompt p;
    struct kit k;
    if (weights) ASSERT_OK(setenv("KVBLEND_TEST_WEIGHTS", weights, 1));
    open_on(&k, device, &shapes[1]);
    ASSERT_OK(unsetenv("KVBLEND_TEST_WEIGHTS"));
    prompt_init(&k, &p);
    answer(&k, &p, how, logits);
    prompt_fini(&p);
    kit_close(&k);
}

static double distance(float a[1 + STEPS][V], float b[1 + STEPS][V])
{
    double sum = 0;
    for (size_t r = 0; r < 1 + STEPS; r++)
        for (size_t i = 0; i < V; i++)
            sum += pow((double)a[r][i] - (double)b[r][i], 2);
    return sqrt(sum);
}

/* In front of o and down each rank rounds its own columns, by a scale of its own: a group is off in
 * another direction than one GPU, but by about as much (measured: 0.80 to 1.08 times). */
TEST(a_group_with_weights_of_8_bits_is_off_by_no_more_than_one_gpu)
{
    static const char *const weights[] = {"fp8", "int8"};
    static const enum pol_strategy how[] = {POL_FULL, POL_REUSE};
    for (size_t i = 0; i < 4; i++) {
        float exact[1 + STEPS][V], one[1 + STEPS][V], group[1 + STEPS][V];
        answer_on("hostcuda", NULL, how[i / 2], exact);
        answer_on("hostcuda", weights[i % 2], how[i / 2], one);
        const double most = 1.5 * distance(one, exact);
        for (size_t g = 0; g < GROUPS; g++) {
            answer_on(groups[g], weights[i % 2], how[i / 2], group);
            const double off = distance(group, exact);
            if (!(off <= most)) test_fail(__FILE__, __LINE__, "off by %g, %g allowed", off, most);
        }
    }
}

/* A function of the emulation's own. */
static void *hook(const char *name)
{
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/libkn_hostcuda.so", getenv("KVBLEND_KERNELS_DIR"));
    void *lib = dlopen(path, RTLD_NOW), *fn = lib ? dlsym(lib, name) : NULL;
    if (!fn) test_fail(__FILE__, __LINE__, "%s: no %s", path, name);
    return fn;
}

/* What each rank has of the heads goes through the library, in all layers but the last, which needs
 * one row. */
TEST(a_prefill_by_cudnn_is_one_by_our_kernel_on_one_gpu_and_on_every_rank)
{
    static const struct tiny_opts o = {
        .L = 4, .H = 8, .G = 4, .D = 64, .F = 160, .K = 16, .ctx_max = 128};
    static const char *const devices[] = {"hostcuda", "hostcuda:1+0", "hostcuda:0+1+2+3"};
    unsigned long (*ran)(void) = (unsigned long (*)(void))(uintptr_t)hook("hostcuda_cudnn_ran");
    char library[4096];
    (void)snprintf(library, sizeof library, "%s/libkn_hostcuda.so", getenv("KVBLEND_KERNELS_DIR"));
    ASSERT_OK(setenv("KVBLEND_CUDNN", library, 1));
    ASSERT_OK(setenv("KVBLEND_TEST_WEIGHTS", "bf16", 1));
    for (size_t i = 0; i < 3; i++) {
        float by[2][1 + STEPS][V];
        for (size_t way = 0; way < 2; way++) {
            struct prompt p;
            struct kit k;
            ASSERT_OK(setenv("KVBLEND_ATTN", way == 0 ? "own" : "cudnn", 1));
            open_on(&k, devices[i], &o);
            ASSERT_EQ(strncmp(kn_info(fus_core_dev(k.c))->attn, "cudnn", 5) == 0, way);
            prompt_init(&k, &p);
            const unsigned long before = ran();
            answer(&k, &p, POL_FULL, by[way]);
            ASSERT_EQ(ran() - before, way * (o.L - 1) * kn_info(fus_core_dev(k.c))->n_ranks);
            prompt_fini(&p);
            kit_close(&k);
        }
        check_near(by[1][0], by[0][0], (size_t)(1 + STEPS) * V, 5e-2);
    }
    ASSERT_OK(unsetenv("KVBLEND_TEST_WEIGHTS"));
    ASSERT_OK(unsetenv("KVBLEND_ATTN"));
    ASSERT_OK(unsetenv("KVBLEND_CUDNN"));
}

/* On GPUs that do not see each other's memory the first address of another's ends the process. */
TEST(no_rank_reads_anothers_memory)
{
    void (*mode)(const char *) = (void (*)(const char *))(uintptr_t)hook("hostcuda_mode");
    const struct tiny_opts o = {.L = 2, .F = 32};
    float logits[1 + STEPS][V];
    struct prompt p;
    struct kit k;
    mode("apart");
    open_on(&k, groups[0], &o);
    prompt_init(&k, &p);
    answer(&k, &p, POL_QUERY, logits);
    prompt_fini(&p);
    kit_close(&k);
    mode("");
}

/* What one wrote the other reads: they are the same rows. */
TEST(records_go_from_groups_to_single_gpus_and_back)
{
    const struct tiny_opts o = {.L = 4, .H = 8, .G = 4, .F = 48};
    static const char *const writer[] = {"hostcuda:0+1", "hostcuda"}, *const reader[] = {
                                                                          "hostcuda",
                                                                          "hostcuda:0+1+2+3"};
    float own[1 + STEPS][V], others[1 + STEPS][V];
    for (size_t i = 0; i < 2; i++) {
        struct prompt written, read;
        struct kit k;
        open_on(&k, writer[i], &o);
        prompt_init(&k, &written);
        kit_close(&k);
        open_on(&k, reader[i], &o);
        prompt_init(&k, &read);
        const size_t n = (size_t)(k.cfg->L - 1) * CHUNK * k.cfg->G * k.cfg->K,
                     from = (size_t)CHUNK * k.cfg->G * k.cfg->K;
        for (size_t c = 0; c < 2; c++) {
            written.chunk[c].cfg = k.cfg; /* its own went with its model */
            check_near(written.chunk[c].k + from, read.chunk[c].k + from, n, 2e-5);
            check_near(written.chunk[c].v + from, read.chunk[c].v + from, n, 2e-5);
        }
        answer(&k, &read, POL_HKVD, own);
        answer(&k, &written, POL_HKVD, others);
        check_near(others[0], own[0], (size_t)(1 + STEPS) * V, 2e-5);
        kit_close(&k);
        prompt_fini(&written);
        prompt_fini(&read);
    }
}

/* A rank has its share of what is large, and no more. */
TEST(ranks_share_weights_and_pages)
{
    const struct tiny_opts o = {.L = 2, .H = 8, .G = 4, .F = 48};
    size_t weights[2], of_head[2];
    uint64_t held[2];
    for (size_t i = 0; i < 2; i++) {
        struct kit k;
        open_on(&k, i == 0 ? "hostcuda" : groups[1], &o);
        const struct fus_layer *w = &k.c->layer[1];
        weights[i] = kn_mat_bytes(w->qkv.w) + kn_mat_bytes(w->o.w) + kn_mat_bytes(w->gu.w) +
                     kn_mat_bytes(w->down.w);
        of_head[i] = kn_mat_bytes(k.c->lm_head.w);
        held[i] = kn_dev_memory(fus_core_dev(k.c)).device_bytes;
        kit_close(&k);
    }
    ASSERT_EQ(weights[1], weights[0]);
    ASSERT_EQ(of_head[1], of_head[0]);
    ASSERT_TRUE(held[1] > held[0]); /* it counts all ranks: norms, tables, embeddings */
}

static int refused(const struct kn_dev_opts *dev, const struct tiny_opts *o, struct err *err)
{
    struct fus_core_opts co = {.dev = *dev};
    struct model *m = NULL;
    struct fus_core *c = NULL;
    co.dev.arith = dev->weights == KN_WEIGHTS_FILE ? KN_ARITH_BF16 : KN_ARITH_F32;
    ASSERT_OK(tiny_model_create(o, &m));
    const int r = fus_core_create(m, &co, &c, err);
    if (r == 0) fus_core_destroy(c);
    model_close(m);
    return r;
}

TEST(what_ranks_cannot_share_is_refused)
{
    static const struct {
        struct kn_dev_opts dev;
        struct tiny_opts o;
        int code;
        const char *why;
    } cases[] = {
        {{"hostcuda:0+1"}, {.H = 3, .G = 1}, -ENOTSUP, "KV heads 1"},
        {{"hostcuda:0+1+2+3"}, {.H = 4, .G = 2}, -ENOTSUP, "4 GPUs cannot share"},
        {{"hostcuda:0+1"}, {.F = 45}, -ENOTSUP, "feed-forward width 45"},
        {{"hostcuda:0+1"}, {.experts = {8, 3, 21}}, -ENOTSUP, "width of an expert 21"},
        {{"hostcuda:0+1"}, {.qk_norm_wide = true}, -ENOTSUP, "all heads as one vector"},
        {{"hostcuda:0+0"}, {.L = 2}, -EINVAL, "different GPUs"},
        {{"hostcuda:0+"}, {.L = 2}, -EINVAL, "is unknown"},
        {{"hostcuda:0+1+2+3+4+5+6+7+8"}, {.L = 2}, -EINVAL, "8 different"},
        {{"hostcuda:0+99"}, {.L = 2}, -ENODEV, "no CUDA device 99"},
        {{"hostcuda:0+1", .weights = KN_WEIGHTS_FILE},
         {.F = 96, .q4 = true},
         -ENOTSUP,
         "96 columns are not 32 for each"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err err = {0};
        ASSERT_ERR(refused(&cases[i].dev, &cases[i].o, &err), cases[i].code);
        if (!strstr(err.msg, cases[i].why))
            test_fail(__FILE__, __LINE__, "\"%s\" lacks \"%s\"", err.msg, cases[i].why);
    }
}

TEST(without_nccl_a_group_says_so)
{
    const struct kn_dev_opts dev = {.device = "hostcuda:0+1"};
    const struct tiny_opts o = {.L = 2};
    char *where = strdup(getenv("KVBLEND_NCCL"));
    struct err err = {0};
    ASSERT_OK(setenv("KVBLEND_NCCL", "/nowhere/libnccl.so", 1));
    ASSERT_ERR(refused(&dev, &o, &err), -ENOTSUP);
    ASSERT_TRUE(strstr(err.msg, "KVBLEND_NCCL") != NULL);
    ASSERT_OK(setenv("KVBLEND_NCCL", where, 1));
    ASSERT_OK(refused(&dev, &o, &err));
    free(where);
}

TEST(what_nccl_refuses_is_said)
{
    typeof(team_create) *create = (typeof(team_create) *)(uintptr_t)hook("team_create");
    struct cu *none[2] = {NULL}; /* it asks for nothing yet */
    const int twice[] = {1, 1};
    struct kn_team *t = NULL;
    struct err err = {0};
    ASSERT_ERR(create(none, twice, 2, &t, &err), -ENODEV);
    ASSERT_TRUE(!t && strstr(err.msg, "NCCL: invalid argument"));
}

struct leaving {
    float *x; /* [HEADS, K] */
    enum kn_dtype t;
    void *out;
    int *bad;
};
enum { HEADS = 4, K = 32 };

static int let_go(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    const struct leaving *l = arg;
    return kn_encode_rows(st, l->x, HEADS * K, 1, HEADS * K, K, l->t, l->out, l->bad);
}

/* Whichever rank has the head: behind the fence it is known, and the others' heads are there. */
TEST(any_rank_says_that_a_value_does_not_fit)
{
    const struct kn_dev_opts o = {.device = "hostcuda:0+1", .arith = KN_ARITH_F32};
    struct kn_dev *d = NULL;
    struct err err;
    ASSERT_OK(kn_dev_create(&o, &d, &err));
    int *bad = kn_mem_alloc(d, KN_MEM_SHARED, sizeof *bad);
    float *x = kn_mem_alloc(d, KN_MEM_HEADS, HEADS * K * sizeof *x);
    uint16_t *out = kn_mem_alloc(d, KN_MEM_HOST, HEADS * K * sizeof *out), want[HEADS * K];
    struct leaving l = {x, KN_F16, out, bad};
    for (int head = -1; head < HEADS; head++) {
        float own[HEADS * K];
        for (int i = 0; i < HEADS * K; i++)
            own[i] = (float)i;
        ASSERT_OK(kn_convert(own, KN_F32, HEADS * K, K, KN_F16, want));
        if (head >= 0) own[head * K + 7] = 1e6f;
        ASSERT_OK(kn_mem_copy(d, x, own, sizeof own));
        memset(out, 0, sizeof want);
        *bad = 0;
        kn_defer(d, true);
        ASSERT_OK(kn_wide(d, 1, NULL, let_go, &l));
        kn_defer(d, false);
        ASSERT_OK(kn_fence(d));
        ASSERT_EQ(*bad, head >= 0);
        for (int i = 0; i < HEADS * K; i++)
            if (i != head * K + 7) ASSERT_EQ(out[i], want[i]);
    }
    kn_mem_free(d, bad);
    kn_mem_free(d, x);
    kn_mem_free(d, out);
    kn_dev_destroy(d);
}

/* Addresses of page tables are in tables themselves, so they have one room. */
TEST(page_tables_find_room_until_there_is_none)
{
    enum { LARGE = 4 << 20, SMALL = 1000, SOME = 100 };
    const struct kn_dev_opts o = {.device = "hostcuda:0+1", .arith = KN_ARITH_F32};
    struct kn_dev *d = NULL;
    struct err err;
    void *large[5], *small[SOME];
    ASSERT_OK(kn_dev_create(&o, &d, &err));
    for (int turn = 0; turn < 2; turn++) {
        for (int i = 0; i < SOME; i++)
            ASSERT_TRUE((small[i] = kn_mem_alloc(d, KN_MEM_TABLE, SMALL)) != NULL);
        for (int i = 0; i < 3; i++)
            ASSERT_TRUE((large[i] = kn_mem_alloc(d, KN_MEM_TABLE, LARGE)) != NULL);
        ASSERT_TRUE(!kn_mem_alloc(d, KN_MEM_TABLE, LARGE));
        kn_mem_free(d, large[1]);
        ASSERT_TRUE(kn_mem_alloc(d, KN_MEM_TABLE, LARGE) == large[1]);
        for (int i = 0; i < SOME; i++)
            kn_mem_free(d, small[i]);
        for (int i = 0; i < 3; i++)
            kn_mem_free(d, large[i]);
    }
    kn_dev_destroy(d);
}

TEST(a_rank_that_is_lost_loses_the_group)
{
    void (*fail_after)(long) = (void (*)(long))(uintptr_t)hook("hostcuda_fail_after");
    const struct tiny_opts o = {.L = 2};
    struct fus_session *s = NULL;
    struct fus_prefill *f = NULL;
    struct kit k;
    int32_t tok[PROMPT];
    open_on(&k, groups[0], &o);
    kit_tokens(&k, 5, tok, PROMPT);
    const struct fus_plan plan = {.tok = tok, .n_tok = PROMPT};
    ASSERT_OK(fus_session_create(k.c, PROMPT, &s));
    ASSERT_OK(fus_prefill_begin(s, &plan, &f));
    fail_after(20);
    ASSERT_ERR(fus_prefill_steps(f), -EIO);
    ASSERT_TRUE(kn_dev_lost(fus_core_dev(k.c)));
    fail_after(-1);
    fus_prefill_end(f);
    fus_session_destroy(s);
    kit_close(&k);
}
