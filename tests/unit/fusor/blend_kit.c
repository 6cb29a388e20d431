/* blend_kit: see the header. */
#include "tests/unit/fusor/blend_kit.h"

#include "fusor/core/prefill_int.h"

#include "base/mem.h"
#include "tests/test.h"

#include <dirent.h>
#include <string.h>
#include <unistd.h>

void kit_chunk_init(struct kit_chunk *c, const struct model_cfg *cfg, uint32_t n)
{
    const size_t floats = (size_t)cfg->L * n * cfg->G * cfg->K;
    *c = (struct kit_chunk){.cfg = cfg, .n = n, .fail_layer = -1, .fail_rows_at = -1};
    c->k = mem_zalloc(floats * sizeof(float));
    c->v = mem_zalloc(floats * sizeof(float));
    c->rows_seen = mem_zalloc(cfg->L * sizeof(*c->rows_seen));
    ASSERT_TRUE(c->k && c->v && c->rows_seen);
}

void kit_chunk_fini(struct kit_chunk *c)
{
    mem_free(c->k);
    mem_free(c->v);
    mem_free(c->rows_seen);
    mem_free(c->coded);
}

static int sink_rows(void *ctx, const struct kv_rows *r)
{
    struct kit_chunk *c = ctx;
    const size_t GK = (size_t)c->cfg->G * c->cfg->K;
    if (r->layer == 0 || r->layer >= c->cfg->L || r->row0 + r->n > c->n) return -EINVAL;
    if ((int)r->layer == c->fail_rows_at) return -EIO;
    const size_t at = ((size_t)r->layer * c->n + r->row0) * GK;
    ASSERT_OK(kn_encode_rows(r->st, r->k, r->ld, r->n, GK, c->cfg->K, KN_F32, c->k + at, r->bad));
    ASSERT_OK(kn_encode_rows(r->st, r->v, r->ld, r->n, GK, c->cfg->K, KN_F32, c->v + at, r->bad));
    __atomic_fetch_add(&c->rows_seen[r->layer], (uint32_t)r->n, __ATOMIC_RELAXED);
    return 0;
}

static void sink_done(void *ctx, int status)
{
    struct kit_chunk *c = ctx;
    c->done++;
    c->status = status;
}

/* The layer's K and V in another dtype. */
static void code_layer(struct kit_chunk *c, unsigned layer, struct kv_layer *ret)
{
    const size_t GK = (size_t)c->cfg->G * c->cfg->K, at = (size_t)layer * c->n * GK;
    const size_t bytes = c->n * kn_row_bytes(c->dtype, c->cfg->G, c->cfg->K);
    if (!c->coded) c->coded = mem_zalloc(2 * bytes * c->cfg->L);
    ASSERT_TRUE(c->coded);
    uint8_t *k = c->coded + 2 * bytes * layer, *v = k + bytes;
    ASSERT_OK(kn_convert(c->k + at, KN_F32, c->n * GK, c->cfg->K, c->dtype, k));
    ASSERT_OK(kn_convert(c->v + at, KN_F32, c->n * GK, c->cfg->K, c->dtype, v));
    *ret = (struct kv_layer){.k = k, .v = v, .dtype = c->dtype};
}

static int source_layer(void *ctx, unsigned layer, struct kv_layer *ret)
{
    struct kit_chunk *c = ctx;
    const size_t at = (size_t)layer * c->n * c->cfg->G * c->cfg->K;
    if (layer == 0 || layer >= c->cfg->L) return -EINVAL;
    c->layers_asked |= 1u << layer;
    if (c->flag) c->calls[*c->flag]++;
    if (c->cancel_in_layer) atomic_store(c->cancel_in_layer, true);
    if ((int)layer == c->fail_layer) return -EIO;
    *ret = (struct kv_layer){.k = c->k + at, .v = c->v + at, .dtype = KN_F32};
    if (c->dtype != KN_F32) code_layer(c, layer, ret);
    return 0;
}

static void source_release(void *ctx)
{
    ((struct kit_chunk *)ctx)->released++;
}

static int source_ready(void *ctx, unsigned layer)
{
    struct kit_chunk *c = ctx;
    const int held = atomic_load(&c->held_layer);
    return held > 0 && (int)layer >= held ? 0 : (int)layer == c->fail_layer ? -EIO : 1;
}

static int source_sensitivity(void *ctx, float *ret)
{
    const struct kit_chunk *c = ctx;
    if (!c->score) return 0;
    memcpy(ret, c->score, c->n * sizeof(*ret));
    return 1;
}

static int source_side(void *ctx, unsigned layer, struct kv_layer *ret)
{
    const struct kit_chunk *c = ctx;
    if (layer != c->side_layer) return 0;
    *ret = (struct kv_layer){.k = c->k + (size_t)layer * c->n * c->cfg->G * c->cfg->K,
                             .dtype = KN_F32};
    return 1;
}

static const struct kv_sink_ops sink_ops = {.rows = sink_rows, .done = sink_done};
static const struct kv_source_ops source_ops = {.layer = source_layer,
                                                .release = source_release,
                                                .ready = source_ready,
                                                .sensitivity = source_sensitivity,
                                                .side = source_side};

struct kv_sink kit_sink(struct kit_chunk *c)
{
    return (struct kv_sink){&sink_ops, c};
}

struct kv_source kit_source(struct kit_chunk *c)
{
    c->uses++;
    return (struct kv_source){&source_ops, c};
}

static void only_file(const char *dir, char *ret, size_t size)
{
    DIR *h = opendir(dir);
    for (struct dirent *e; h && (e = readdir(h));)
        if (e->d_name[0] != '.') snprintf(ret, size, "%s/%s", dir, e->d_name);
    if (h) closedir(h);
}

/* What the tuning remembers in this file: from now on this GEMM is the fastest. */
static void say_fastest(const char *path, const char *gemm)
{
    char key[1024];
    FILE *f = fopen(path, "re");
    ASSERT_TRUE(f && fgets(key, sizeof key, f));
    fclose(f);
    f = fopen(path, "we");
    ASSERT_TRUE(f && fprintf(f, "%s%s 123456.50 *\n", key, gemm) > 0);
    ASSERT_OK(fclose(f));
}

/* Pages of 8 bits beside whatever arithmetic. */
static bool kit_q8(void)
{
    return getenv("KVBLEND_TEST_KV_Q8") != NULL;
}

/* As start-up chooses by itself where bf16 on this instruction set is measured the fastest. */
static int open_chosen(struct kit *k, const char *isa, uint64_t kv_bytes, struct err *err)
{
    char dir[] = "/tmp/fus-kit-XXXXXX", path[512] = "";
    ASSERT_TRUE(mkdtemp(dir) != NULL);
    const struct fus_core_opts co = {.dev = {.n_threads = 2,
                                             .isa = isa,
                                             .allow_bf16 = true,
                                             .kv_q8 = kit_q8(),
                                             .cache_dir = dir},
                                     .kv_bytes = kv_bytes};
    int r = fus_core_create(k->m, &co, &k->c, err);
    if (r == 0) {
        fus_core_destroy(k->c);
        only_file(dir, path, sizeof path);
        say_fastest(path, "own-bf16");
        r = fus_core_create(k->m, &co, &k->c, err);
        ASSERT_OK(unlink(path));
    }
    ASSERT_OK(rmdir(dir));
    if (r == 0) {
        ASSERT_STREQ(kn_info(fus_core_dev(k->c))->gemm, "own-bf16");
        ASSERT_EQ(kn_info(fus_core_dev(k->c))->kv, kit_q8() ? KN_Q8 : KN_BF16);
    }
    return r;
}

const struct tiny_opts kit_layers[KIT_LAYERS] = {
    {.L = 5,
     .window = 20,
     .local_every = 2,
     .norms = MODEL_NORMS_AROUND,
     .gelu = true,
     .attn_cap = 3,
     .logit_cap = 2,
     .embed_scale = 1.5f},
    {.L = 4, .window = 70, .local_every = 3, .local_base = 100, .qk_norm = true, .embed_scale = 5},
    {.L = 4, .window = 33},
    {.L = 4, .nope_every = 2, .n_rot = 8, .logit_scale = 0.25f},
    {.L = 4, .norms = MODEL_NORMS_BEHIND, .qk_norm_wide = true},
    {.L = 4, .layernorm = true, .qkv_bias = true, .n_rot = 4, .logit_scale = 0.5f},
};

static unsigned rounded_up(unsigned n, unsigned by)
{
    return (n + by - 1) / by * by;
}

/* As a group of GPUs ("hostcuda:0+1") can have it: shapes that its ranks divide. */
static void share_out(struct tiny_opts *o, const char *device)
{
    unsigned n = 1;
    for (const char *p = device; p && (p = strchr(p, '+')) != NULL; p++)
        n++;
    if (n == 1) return;
    const unsigned G = o->G ? o->G : 2, H = o->H ? o->H : 4;
    o->G = rounded_up(G, n);
    o->H = H / G * o->G;
    if (o->F) o->F = rounded_up(o->F, n);
    o->experts.F = rounded_up(o->experts.F, n);
    o->experts.shared_F = rounded_up(o->experts.shared_F, n);
    o->qk_norm_wide = false;
}

void kit_open(struct kit *k, const struct tiny_opts *o, uint64_t kv_tokens)
{
    struct err err = {0};
    struct tiny_opts mixed = *o;
    const char *experts = getenv("KVBLEND_TEST_EXPERTS");
    if (experts && strcmp(experts, "gpt-oss") == 0) { /* with all that gpt-oss has */
        mixed.experts = (struct model_experts){8, 3, 20, .renorm = true, .biases = true};
        mixed.sinks = mixed.clamped = mixed.qkv_bias = mixed.o_bias = true;
    } else if (experts && strcmp(experts, "llama4") == 0) { /* or Llama 4, in place of windows */
        mixed.experts = (struct model_experts){
            8, 1 + (o->nope_every > 0), 20, 12, .scales_input = true, .every = 2, .dense_F = 44};
        mixed.window = 0, mixed.chunk = o->window ? o->window : 100;
        mixed.local_every = o->local_every ? o->local_every : 4;
        mixed.nope_every = o->L == 2 ? 4 : 2; /* one below the asked layer; some rotate */
        mixed.temp_floor = 16, mixed.temp_scale = 0.5f;
        mixed.qk_unit = !o->qk_norm && !o->qk_norm_wide && !(o->yarn > 1);
    } else if (experts) { /* the same with experts, one of them shared */
        mixed.experts = (struct model_experts){8, 3, 20, 12, .renorm = o->qkv_bias};
    }
    share_out(&mixed, getenv("KVBLEND_TEST_DEVICE"));
    ASSERT_OK(tiny_model_create(&mixed, &k->m));
    k->cfg = model_config(k->m);
    const uint64_t page =
        kn_kv_layer_values(KN_F32, k->cfg->G, k->cfg->K) * k->cfg->L * sizeof(float);
    const char *isa = getenv("KVBLEND_TEST_PAGES"); /* pages of bf16, by this instruction set */
    if (isa) {
        int r = open_chosen(k, isa, page / 2 * (kv_tokens / KN_PAGE), &err);
        if (r == -ENOTSUP) { /* the whole program is about nothing else */
            printf("SKIP %s\n", err.msg);
            exit(77);
        }
        if (r < 0) test_fail(__FILE__, __LINE__, "core: %d %s", r, err.msg);
        return;
    }
    const char *device = getenv("KVBLEND_TEST_DEVICE");
    const char *weights = getenv("KVBLEND_TEST_WEIGHTS"); /* and then the arithmetic of bf16 */
    const char *gemm = getenv("KVBLEND_TEST_GEMM");
    const struct fus_core_opts co = {
        .dev = {.device = device,
                .n_threads = 2,
                .gemm = device ? NULL
                        : gemm ? gemm
                               : "own-f32",
                .arith = weights ? KN_ARITH_BF16
                         : gemm  ? KN_ARITH_AUTO
                                 : KN_ARITH_F32,
                .kv_q8 = kit_q8(),
                .weights = (enum kn_weights)kn_weights_parse(weights ? weights : "auto", 0)},
        .kv_bytes = page * (kv_tokens / KN_PAGE)};
    int r = fus_core_create(k->m, &co, &k->c, &err);
    if (r == -ENOTSUP && weights && !device) { /* likewise */
        printf("SKIP %s\n", err.msg);
        exit(77);
    }
    if (r < 0) test_fail(__FILE__, __LINE__, "core: %d %s", r, err.msg);
}

void kit_close(struct kit *k)
{
    fus_core_destroy(k->c);
    model_close(k->m);
}

void kit_tokens(const struct kit *k, uint64_t seed, int32_t *tok, size_t n)
{
    for (size_t i = 0; i < n; i++)
        tok[i] = (int32_t)(test_rand(&seed) % k->cfg->V);
}

void kit_build_plan(struct kit_chunk *c, int32_t sink_token, const int32_t *tok, int32_t *own,
                    struct fus_capture *capture, struct fus_plan *ret)
{
    const uint32_t head = sink_token >= 0;
    own[0] = sink_token;
    memcpy(own + head, tok, c->n * sizeof(*own));
    *capture = (struct fus_capture){.tok0 = head, .n = c->n, .sink = kit_sink(c)};
    *ret = (struct fus_plan){.tok = own,
                             .n_tok = head + c->n,
                             .capture = capture,
                             .n_capture = 1,
                             .logits_from = head + c->n,
                             .strategy = POL_FULL};
}

void kit_build(struct kit *k, int32_t sink_token, const int32_t *tok, struct kit_chunk *c)
{
    struct fus_session *s = NULL;
    struct fus_prefill *f = NULL;
    int32_t *own = mem_alloc((c->n + 1) * sizeof(*own));
    struct fus_capture capture;
    struct fus_plan plan;
    kit_build_plan(c, sink_token, tok, own, &capture, &plan);
    ASSERT_OK(fus_session_create(k->c, plan.n_tok, &s));
    ASSERT_OK(fus_prefill_begin(s, &plan, &f));
    ASSERT_OK(fus_prefill_steps(f));
    fus_prefill_end(f);
    fus_session_destroy(s);
    mem_free(own);
    ASSERT_EQ(c->done, 1);
    ASSERT_OK(c->status);
}
