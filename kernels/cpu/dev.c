/* The device: threads, kernels, scratch. */
#include "kernels/cpu/cpu.h"
#include "base/mem.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

static unsigned cores_allowed(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    int n = CPU_COUNT(&set);
    return n > 0 ? (unsigned)n : 1;
}

/* Forced by name, or the own kernel of the arithmetic asked for until kn_dev_tune() decides. */
static int choose_gemm(struct kn_dev *d, const char *name, struct err *err)
{
    bool any = !name || !*name || strcmp(name, "auto") == 0;
    char list[160] = "";
    for (int i = 0; i < GEMM_KINDS; i++) {
        enum kn_gemm_kind kind = (enum kn_gemm_kind)i;
        bool fits =
            d->arith == KN_ARITH_AUTO || kn_gemm_is_bf16(kind) == (d->arith == KN_ARITH_BF16);
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
    return err_set(err, -EINVAL, "GEMM \"%s\" is not available here (available: %s)", name, list);
}

int kn_dev_create(const struct kn_dev_opts *o, struct kn_dev **ret_dev, struct err *err)
{
    struct kn_dev *d = mem_zalloc(sizeof *d);
    if (!d) return err_set(err, -ENOMEM, "out of memory");
    d->n_threads = o->n_threads ? o->n_threads : cores_allowed();
    if (d->n_threads > 1024) d->n_threads = 1024;
    d->arith = o->arith;
    d->allow_bf16 = o->allow_bf16;
    int r = kn_isa_pick(o->isa, &d->isa, err);
    if (r < 0) goto fail;
    d->simd = kn_isa_table(d->isa);
    d->has_bf16 = d->isa == KN_ISA_AVX512_BF16;
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
    kn_dev_destroy(d);
    return r;
}

void kn_dev_destroy(struct kn_dev *d)
{
    if (!d) return;
    pool_destroy(d->pool);
    for (unsigned i = 0; d->streams && i < d->n_threads; i++)
        for (unsigned s = 0; s < KN_SLOTS_ALL; s++)
            mem_free(d->streams[i].slot[s]);
    mem_free(d->streams);
    mem_free(d->cache_dir);
    mem_free(d);
}

unsigned kn_dev_threads(const struct kn_dev *d)
{
    return d->n_threads;
}
const char *kn_dev_isa(const struct kn_dev *d)
{
    return d->simd->name;
}
const char *kn_dev_gemm(const struct kn_dev *d)
{
    return kn_gemm_name(d->gemm);
}
bool kn_gemm_invariant(const struct kn_dev *d)
{
    return d->gemm == GEMM_OWN_F32 || d->gemm == GEMM_OWN_BF16;
}

static const char *const dtype_names[] = {"f32", "f16", "bf16", "q8"};
enum { DTYPES = sizeof dtype_names / sizeof *dtype_names };

const char *kn_dtype_name(enum kn_dtype t)
{
    return (unsigned)t < DTYPES ? dtype_names[t] : "unknown";
}

int kn_dtype_parse(const char *name, int dflt)
{
    for (int t = 0; t < DTYPES; t++)
        if (strcmp(name, dtype_names[t]) == 0) return t;
    return dflt;
}

void *kn_scratch(struct kn_stream *st, unsigned slot, size_t size_bytes)
{
    if (slot >= KN_SLOTS_ALL) return NULL;
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
