/* The sums of a group's ranks, by NCCL, which is loaded when a group is made, and stays: nothing
 * else needs it. Its ABI is stable in what is used here (version 2); one thread calls for all
 * ranks, between ncclGroupStart() and ncclGroupEnd(), on their streams. */
#include "kernels/cuda/team.h"

#include "base/mem.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>

enum { NCCL_FLOAT32 = 7, NCCL_SUM = 0 };
typedef struct ncclComm *nccl_comm;
typedef int nccl_init_fn(nccl_comm *comm, int n, const int *devices);
typedef int nccl_destroy_fn(nccl_comm comm);
typedef int nccl_group_fn(void);
typedef int nccl_sum_fn(const void *from, void *to, size_t n, int type, int op, nccl_comm comm,
                        struct gpu_stream *stream);
typedef const char *nccl_why_fn(int code);

struct kn_team {
    void *lib;
    nccl_init_fn *init;
    nccl_destroy_fn *destroy;
    nccl_group_fn *start, *end;
    nccl_sum_fn *sum;
    nccl_why_fn *why;
    unsigned n;
    nccl_comm comm[KN_RANKS_MAX];
    struct cu *cu[KN_RANKS_MAX];
};

static int find_call(struct kn_team *t, const char *name, void **ret, struct err *err)
{
    *ret = dlsym(t->lib, name);
    return *ret ? 0 : err_set(err, -ENOTSUP, "several GPUs: NCCL has no %s", name);
}

static int load(struct kn_team *t, struct err *err)
{
    const char *path = getenv("KVBLEND_NCCL");
    t->lib = dlopen(path && *path ? path : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!t->lib)
        return err_set(err, -ENOTSUP,
                       "several GPUs as one device need NCCL (KVBLEND_NCCL says where): %.90s",
                       dlerror());
    int r = find_call(t, "ncclCommInitAll", (void **)&t->init, err);
    if (r == 0) r = find_call(t, "ncclCommDestroy", (void **)&t->destroy, err);
    if (r == 0) r = find_call(t, "ncclGroupStart", (void **)&t->start, err);
    if (r == 0) r = find_call(t, "ncclGroupEnd", (void **)&t->end, err);
    if (r == 0) r = find_call(t, "ncclAllReduce", (void **)&t->sum, err);
    return r < 0 ? r : find_call(t, "ncclGetErrorString", (void **)&t->why, err);
}

int team_create(struct cu *const *cu, const int *index, unsigned n, struct kn_team **ret,
                struct err *err)
{
    struct kn_team *t = mem_zalloc(sizeof *t);
    if (!t) return err_set(err, -ENOMEM, "out of memory");
    int r = load(t, err), code = 0;
    for (unsigned i = 0; i < n; i++)
        t->cu[i] = cu[i];
    if (r == 0 && (code = t->init(t->comm, (int)n, index)) != 0)
        r = err_set(err, -ENODEV, "several GPUs: NCCL: %.100s", t->why(code));
    t->n = r == 0 ? n : 0;
    if (r < 0)
        team_destroy(t);
    else
        *ret = t;
    return r;
}

void team_destroy(struct kn_team *t)
{
    if (!t) return;
    for (unsigned i = 0; i < t->n; i++)
        (void)t->destroy(t->comm[i]);
    mem_free(t);
}

int team_sum(struct kn_team *t, float *const *x, size_t n)
{
    int code = t->start();
    for (unsigned i = 0; code == 0 && i < t->n; i++) {
        cu_use(t->cu[i]);
        code = t->sum(x[i], x[i], n, NCCL_FLOAT32, NCCL_SUM, t->comm[i], cu_stream(t->cu[i]));
    }
    const int end = t->end();
    return code || end ? -EIO : 0;
}
