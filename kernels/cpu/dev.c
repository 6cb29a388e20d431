/* The device: threads, kernels, scratch. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/pairs.h"
#include "base/assert.h"
#include "base/machine.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>

/* Forced by name, or the own kernel of the arithmetic asked for until kn_cpu_tune() decides. */
static int choose_gemm(struct kn_dev *d, const char *name, struct err *err)
{
    bool any = !name || !*name || strcmp(name, "auto") == 0;
    char list[160] = "";
    for (int i = 0; i < GEMM_KINDS; i++) {
        enum kn_gemm_kind kind = (enum kn_gemm_kind)i;
        static const enum kn_arith of[GEMM_KINDS] = {KN_ARITH_F32, KN_ARITH_BF16, KN_ARITH_AUTO};
        bool fits = d->arith == KN_ARITH_AUTO || d->arith == of[kind];
        if (!fits || !kn_gemm_available(d, kind)) continue;
        if (any || strcmp(name, kn_gemm_name(kind)) == 0) {
            d->gemm = kind;
            d->forced = !any;
            return 0;
        }
        size_t at = strlen(list);
        snprintf(list + at, sizeof list - at, "%s%s", at ? ", " : "", kn_gemm_name(kind));
    }
    if (any) return err_set(err, -ENOTSUP, "no bf16 GEMM on this machine: use --dtype auto or f32");
    const bool gone = strncmp(name, "openblas", 8) == 0 || strncmp(name, "onednn", 6) == 0;
    return err_set(err, -EINVAL, "GEMM \"%s\" is %s (available: %s)", name,
                   gone ? "gone: no library's is used any more" : "not available here", list);
}

static void destroy(struct kn_dev *d)
{
    pool_destroy(d->pool);
    for (unsigned i = 0; d->streams && i < d->head.info.n_threads; i++)
        for (unsigned s = 0; s < KN_SLOTS_ALL; s++)
            mem_free(d->streams[i].slot[s]);
    ASSERT(!d->mapped); /* a caller forgot its memory */
    kn_slab_unref(d->slab);
    mem_free(d->streams);
    mem_free(d->cache_dir);
    mem_free(d);
}

static int copy_bytes(struct kn_dev *d, void *dst, const void *src, size_t bytes)
{
    memcpy(dst, src, bytes);
    return 0;
}

/* Attention in 8 bits: beside weights in such, or where pages are to be and products may round. */
static const struct kn_attn_ops *in_8_bits(const struct kn_dev *d, bool pages)
{
    const bool rounds = d->allow_bf16 || d->arith == KN_ARITH_BF16;
    if (d->arith == KN_ARITH_F32 || !(d->int8 || (pages && rounds))) return NULL;
    return kn_isa_attn8(d->isa);
}

/* Else it rounds to bf16, or to whole numbers of 16 bits, where products do; beside 8 bits to the
 * latter. */
const struct kn_attn_ops *kn_cpu_attn_ops(const struct kn_dev *d)
{
    if (d->attn8) return d->attn8;
#if defined(__x86_64__)
    if (d->gemm == GEMM_OWN_BF16) return &kn_attn_bf16;
#endif
    const bool whole = d->gemm == GEMM_OWN_INT16 || (d->int8 && d->arith != KN_ARITH_F32);
    return whole && d->int16 && !d->kv_q8 ? &d->int16->attn : &d->simd->attn;
}

/* What a thread does in 10 to 40 ms, as measured on two of them; as many do that in this time, so
 * that threads wait for each other at the end of few sections. */
static double step_flops(const struct kn_dev *d)
{
    const bool shorter = d->gemm == GEMM_OWN_BF16 || d->gemm == GEMM_OWN_INT16;
    double each = 4e9;
    if (kn_cpu_tiles(d))
        each = 16e9;
    else if ((d->int8 && !d->bytes) || (shorter && d->isa >= KN_ISA_AVX512))
        each = 8e9;
    return each * d->head.info.n_threads;
}

/* Where rows are shared out each thread unpacks all weights for its own, where columns are each a
 * part of them: measured, until 256 rows are a thread's. Tiles take no more than a block of pairs;
 * weights that were rounded to 8 bits at the start need no unpacking. */
static size_t wide_rows_large(const struct kn_dev *d)
{
    if (d->int8 && !d->bytes) return d->head.info.wide_rows_max;
    return kn_cpu_tiles(d) ? KN_PAIRS_ROWS : 256 * (size_t)d->head.info.n_threads;
}

/* What hangs on the choice of the GEMM. */
static void settle_info(struct kn_dev *d)
{
    d->head.info.gemm = d->int8 ? "own-int8" : kn_gemm_name(d->gemm);
    const enum kn_dtype kv = d->kv_q8 ? KN_Q8 : kn_cpu_attn_ops(d)->type;
    d->head.info.kv = kv;
    d->head.info.kv_value_bytes = kv == KN_Q8 ? 1 : kv == KN_F32 ? 4 : 2;
    d->head.info.wide_rows_large = wide_rows_large(d);
    d->head.info.step_flops = step_flops(d);
}

static int tune(struct kn_dev *d, const struct kn_tuning *t)
{
    int r = kn_cpu_tune(d, t);
    settle_info(d);
    return r;
}

static const struct kn_dev_ops dev_ops = {.destroy = destroy,
                                          .tune = tune,
                                          .mem_alloc = kn_cpu_mem_alloc,
                                          .mem_free = kn_cpu_mem_free,
                                          .mem_copy = copy_bytes,
                                          .scratch = kn_cpu_scratch};

int kn_cpu_create(const struct kn_dev_opts *o, struct kn_dev **ret_dev, struct err *err)
{
    struct kn_dev *d = mem_zalloc(sizeof *d);
    if (!d) return err_set(err, -ENOMEM, "out of memory");
    struct kn_info *info = &d->head.info;
    d->head.ops =
        (struct kn_ops){&dev_ops, &kn_cpu_mat_ops, &kn_cpu_run_ops, &kn_cpu_row_ops, NULL};
    *info = (struct kn_info){
        .device = "cpu", .attn = "own", .is_host = true, .n_ranks = 1, .gemm_invariant = true};
    kn_cpu_model(d->model, sizeof d->model);
    info->model = d->model;
    info->wide_rows_max = 48; /* chosen: blocks of more fill the register tile on every thread */
    info->n_threads = o->n_threads ? o->n_threads : machine_cpus();
    if (info->n_threads > 1024) info->n_threads = 1024;
    d->arith = o->arith;
    d->allow_bf16 = o->allow_bf16;
    int r = kn_isa_pick(o->isa, &d->isa, err);
    if (r < 0) goto fail;
    info->isa = kn_isa_name(d->isa);
    d->simd = kn_isa_table(d->isa);
    d->has_bf16 = d->isa >= KN_ISA_AVX512_BF16;
    d->int16 = kn_isa_int16(d->isa);
    d->rows16 = kn_isa_rows16(d->isa);
    d->int8 = o->weights == KN_WEIGHTS_INT8;
    d->bytes = d->int8 && !kn_isa_int8(d->isa);
    if (d->bytes && !kn_isa_bytes(d->isa)) {
        r = err_set(err, -ENOTSUP,
                    "weights in int8 need AVX2, with AVX-512 its VNNI or, on Arm, dotprod");
        goto fail;
    }
    d->attn8 = in_8_bits(d, o->kv_q8);
    d->kv_q8 = o->kv_q8 && !d->attn8;
    r = choose_gemm(d, o->gemm, err);
    if (r < 0) goto fail;
    settle_info(d);
    r = -ENOMEM;
    if (o->cache_dir && !(d->cache_dir = mem_strdup(o->cache_dir))) goto fail_memory;
    if (!(d->streams = mem_zalloc(d->head.info.n_threads * sizeof *d->streams))) goto fail_memory;
    for (unsigned i = 0; i < d->head.info.n_threads; i++)
        d->streams[i] = (struct kn_stream){.dev = d, .index = i};
    r = pool_create(d, &d->pool);
    if (r < 0) goto fail_memory;
    *ret_dev = d;
    return 0;
fail_memory:
    (void)err_set(err, r, "cannot start %u compute threads: %s", d->head.info.n_threads,
                  err_name(r));
fail:
    destroy(d);
    return r;
}
