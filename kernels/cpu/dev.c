/* The device: threads, kernels, scratch. */
#include "kernels/cpu/cpu.h"
#include "base/assert.h"
#include "base/mem.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

static unsigned cores_allowed(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    int n = CPU_COUNT(&set);
    return n > 0 ? (unsigned)n : 1;
}

/* Forced by name, or the own kernel of the arithmetic asked for until kn_cpu_tune() decides. */
static int choose_gemm(struct kn_dev *d, const char *name, struct err *err)
{
    bool any = !name || !*name || strcmp(name, "auto") == 0;
    char list[160] = "";
    for (int i = 0; i < GEMM_KINDS; i++) {
        enum kn_gemm_kind kind = (enum kn_gemm_kind)i;
        bool fits =
            d->arith == KN_ARITH_AUTO || (kind == GEMM_OWN_BF16) == (d->arith == KN_ARITH_BF16);
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
    for (unsigned i = 0; d->streams && i < d->n_threads; i++)
        for (unsigned s = 0; s < KN_SLOTS_ALL; s++)
            mem_free(d->streams[i].slot[s]);
    ASSERT(!d->mapped); /* somebody forgot his memory */
    kn_slab_unref(d->slab);
    mem_free(d->streams);
    mem_free(d->cache_dir);
    mem_free(d);
}

static unsigned threads(const struct kn_dev *d)
{
    return d->n_threads;
}

static const char *device(const struct kn_dev *d)
{
    return "cpu";
}

static const char *isa(const struct kn_dev *d)
{
    return kn_isa_name(d->isa);
}

static const char *gemm_name(const struct kn_dev *d)
{
    return kn_gemm_name(d->gemm);
}

static struct kn_shape mat_shape(const struct kn_mat *w)
{
    return (struct kn_shape){w->n, w->k};
}

static size_t kv_value_bytes(const struct kn_dev *d)
{
    return kn_cpu_attn_ops(d)->value_bytes;
}

/* Operations are done when they return. */
static int sync_stream(struct kn_stream *st)
{
    return 0;
}

/* ---- memory ---- */

/* Chosen: malloc's own limit. From here on what is not touched costs nothing. */
enum { MAPPED_BYTES = 32 << 20 };

struct mapped {
    struct mapped *next;
    size_t bytes;
    void *p;
};

static void *map_block(struct kn_dev *d, size_t bytes)
{
    struct mapped *m = mem_alloc(sizeof *m);
    if (!m) return NULL;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (p == MAP_FAILED) {
        mem_free(m);
        return NULL;
    }
    /* Large pages spare the attention TLB misses; where they are off nothing changes. */
    (void)madvise(p, bytes, MADV_HUGEPAGE);
    *m = (struct mapped){d->mapped, bytes, p};
    d->mapped = m;
    return p;
}

static void *alloc_any(struct kn_dev *d, enum kn_mem kind, size_t bytes)
{
    if (bytes >= MAPPED_BYTES) return map_block(d, bytes);
    void *p = mem_aligned(64, bytes);
    if (p) memset(p, 0, bytes);
    return p;
}

static void free_any(struct kn_dev *d, void *p)
{
    for (struct mapped **at = &d->mapped; *at; at = &(*at)->next) {
        struct mapped *m = *at;
        if (m->p != p) continue;
        *at = m->next;
        (void)munmap(m->p, m->bytes);
        mem_free(m);
        return;
    }
    mem_free(p);
}

static int mem_move(struct kn_dev *d, void *dst, const void *src, size_t bytes)
{
    memcpy(dst, src, bytes);
    return 0;
}

void *kn_cpu_scratch(struct kn_stream *st, unsigned slot, size_t size_bytes)
{
    if (st->slot_size[slot] < size_bytes || !st->slot[slot]) {
        size_t want = (size_bytes + size_bytes / 4 + 4096) / 4096 * 4096;
        void *p = want > size_bytes ? mem_aligned(64, want) : NULL;
        if (!p) return NULL;
        mem_free(st->slot[slot]);
        st->slot[slot] = p;
        st->slot_size[slot] = want;
    }
    return st->slot[slot];
}

static const struct kn_ops ops = {
    .destroy = destroy,
    .is_host = true,
    .gemm_invariant = true,
    .threads = threads,
    .device = device,
    .isa = isa,
    .gemm_name = gemm_name,
    .tune = kn_cpu_tune,
    .mem_alloc = alloc_any,
    .mem_free = free_any,
    .mem_write = mem_move,
    .mem_copy = mem_move,
    .mat_create = kn_cpu_mat_create,
    .mat_fill = kn_cpu_mat_fill,
    .mat_create_coded = kn_cpu_mat_create_coded,
    .mat_fill_codes = kn_cpu_mat_fill_codes,
    .mat_done = kn_cpu_mat_done,
    .mat_destroy = kn_cpu_mat_destroy,
    .rows = kn_cpu_rows,
    .rows_uneven = kn_cpu_rows_uneven,
    .wide = kn_cpu_wide,
    .wide_rows_max = kn_cpu_wide_rows_max,
    .replay = kn_cpu_replay,
    .scratch = kn_cpu_scratch,
    .gemm = kn_cpu_gemm,
    .gather = kn_cpu_gather,
    .copy = kn_cpu_copy,
    .rmsnorm = kn_cpu_rmsnorm,
    .rmsnorm_heads = kn_cpu_rmsnorm_heads,
    .swiglu = kn_cpu_swiglu,
    .rope = kn_cpu_rope,
    .kv_put = kn_cpu_kv_put,
    .kv_load = kn_cpu_kv_load,
    .encode_rows = kn_cpu_encode_rows,
    .decode = kn_cpu_decode,
    .attn = kn_cpu_attn,
    .attn_mass = kn_cpu_attn_mass,
    .deviation = kn_cpu_deviation,
    .change = kn_cpu_change,
    .edit = kn_cpu_edit,
    .draw = kn_cpu_draw,
    .top = kn_cpu_top,
    .mat_shape = mat_shape,
    .mat_bytes = kn_cpu_mat_bytes,
    .sync = sync_stream,
    .kv_value_bytes = kv_value_bytes,
};

int kn_cpu_create(const struct kn_dev_opts *o, struct kn_dev **ret_dev, struct err *err)
{
    struct kn_dev *d = mem_zalloc(sizeof *d);
    if (!d) return err_set(err, -ENOMEM, "out of memory");
    d->head.ops = &ops;
    d->n_threads = o->n_threads ? o->n_threads : cores_allowed();
    if (d->n_threads > 1024) d->n_threads = 1024;
    d->arith = o->arith;
    d->allow_bf16 = o->allow_bf16;
    int r = kn_isa_pick(o->isa, &d->isa, err);
    if (r < 0) goto fail;
    d->simd = kn_isa_table(d->isa);
    d->has_bf16 = d->isa >= KN_ISA_AVX512_BF16;
    r = choose_gemm(d, o->gemm, err);
    if (r < 0) goto fail;
    r = -ENOMEM;
    if (o->cache_dir && !(d->cache_dir = mem_strdup(o->cache_dir))) goto fail_memory;
    if (!(d->streams = mem_zalloc(d->n_threads * sizeof *d->streams))) goto fail_memory;
    for (unsigned i = 0; i < d->n_threads; i++)
        d->streams[i] = (struct kn_stream){.dev = d, .index = i};
    r = pool_create(d, &d->pool);
    if (r < 0) goto fail_memory;
    *ret_dev = d;
    return 0;
fail_memory:
    (void)err_set(err, r, "cannot start %u compute threads: %s", d->n_threads, err_name(r));
fail:
    destroy(d);
    return r;
}
