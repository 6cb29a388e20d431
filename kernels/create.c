/* Which backend a device is of. */
#include "kernels/kn_int.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What needs CUDA's libraries is in a library apart, loaded when it is asked for, so that nothing
 * else links with them; it stays loaded. */
static int create_apart(const struct kn_dev_opts *o, const char *kind, int index,
                        struct kn_dev **ret_dev, struct err *err)
{
    typedef int (*create_fn)(const struct kn_dev_opts *, const char *, int, struct kn_dev **,
                             struct err *);
    create_fn create;
    const char *dir = getenv("KVBLEND_KERNELS_DIR");
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/libkn_%s.so", dir && *dir ? dir : KN_MODULE_DIR, kind);
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        return err_set(err, -ENOTSUP, "device \"%s\" is not available: %.150s", kind, dlerror());
    *(void **)&create = dlsym(lib, "kn_cuda_create");
    if (!create) return err_set(err, -ENOTSUP, "%.200s is no backend", path);
    return create(o, kind, index, ret_dev, err);
}

/* The device's options, with weights of 16 bits said as arithmetic. Beside weights in 8 bits the
 * CPU has what is fastest for all else, as with weights of 16. */
static int plain_weights(struct kn_dev_opts *o, bool cpu, struct err *err)
{
    if (cpu && o->weights == KN_WEIGHTS_FP8)
        return err_set(err, -ENOTSUP, "weights in fp8 need a GPU (the CPU has f32, bf16 and int8)");
    if (cpu && o->weights == KN_WEIGHTS_INT8 && o->arith == KN_ARITH_BF16) {
        o->arith = KN_ARITH_AUTO;
        o->allow_bf16 = true;
    }
    if (o->weights != KN_WEIGHTS_BF16) return 0;
    if (o->arith == KN_ARITH_F32)
        return err_set(err, -EINVAL, "weights in bf16 contradict arithmetic in f32");
    o->arith = KN_ARITH_BF16;
    o->weights = KN_WEIGHTS_AUTO;
    return 0;
}

/* The numbers behind "cuda:": 3, or 0+1 for a group; how many, 0 when it says nothing else. */
static unsigned parse_ranks(const char *s, int number[KN_RANKS_MAX])
{
    unsigned n = 0;
    for (int len = 0; n < KN_RANKS_MAX; n++, s += len + 1) {
        if (*s < '0' || *s > '9' || sscanf(s, "%3d%n", &number[n], &len) != 1) return 0;
        for (unsigned i = 0; i < n; i++)
            if (number[i] == number[n]) return 0;
        if (!s[len]) return n + 1;
        if (s[len] != '+') return 0;
    }
    return 0;
}

static int create_ranks(const struct kn_dev_opts *o, const char *kind, const int *number,
                        unsigned n, struct kn_dev **ret_dev, struct err *err)
{
    struct kn_dev *rank[KN_RANKS_MAX] = {NULL};
    int r = 0;
    for (unsigned i = 0; r == 0 && i < n; i++)
        r = create_apart(o, kind, number[i], &rank[i], err);
    if (r == 0 && n == 1) *ret_dev = rank[0];
    if (r == 0 && n > 1) return kn_group_create(rank, n, ret_dev, err);
    for (unsigned i = 0; r < 0 && i < n; i++)
        kn_dev_destroy(rank[i]);
    return r;
}

static int create(const struct kn_dev_opts *opts, struct kn_dev **ret_dev, struct err *err)
{
    struct kn_dev_opts o = *opts;
    const char *name = o.device && *o.device ? o.device : "cpu";
    const bool cpu = strcmp(name, "cpu") == 0;
    const char *kind = strncmp(name, "host", 4) == 0 ? "hostcuda" : "cuda";
    const size_t len = strlen(kind);
    int number[KN_RANKS_MAX] = {0}, r = plain_weights(&o, cpu, err);
    unsigned n = 0;
    if (r < 0) return r;
    if (cpu) return kn_cpu_create(&o, ret_dev, err);
    if (strcmp(name, kind) == 0) n = 1;
    if (strncmp(name, kind, len) == 0 && name[len] == ':') n = parse_ranks(name + len + 1, number);
    if (n) return create_ranks(&o, kind, number, n, ret_dev, err);
    return err_set(err, -EINVAL,
                   "device \"%.60s\" is unknown (known: cpu, cuda, cuda:N, and cuda:N+M+… of %d "
                   "different GPUs at most)",
                   name, KN_RANKS_MAX);
}

int kn_dev_create(const struct kn_dev_opts *o, struct kn_dev **ret_dev, struct err *err)
{
    struct kn_dev *d = NULL;
    int r = create(o, &d, err);
    if (r == 0 && o->tune.n_shapes) {
        const struct kn_dev_head *head = (const void *)d;
        r = o->tune.rows ? head->ops.dev->tune(d, &o->tune) : -EINVAL;
        if (r < 0)
            (void)err_set(err, r, "matrix multiplication could not be set up (%s)", err_name(r));
    }
    if (r < 0)
        kn_dev_destroy(d);
    else
        *ret_dev = d;
    return r;
}
