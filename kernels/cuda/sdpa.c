/* What is asked of cuDNN: one graph of operations that it knows as attention and makes one kernel
 * of (cuDNN's documentation, "Fused Flash Attention fprop"; the operations and their order are
 * those of NVIDIA's own front end for versions below 9.21):
 *
 *   S = Q K^T, scaled; keys beyond the last one and those behind a row's position get -inf;
 *   P = softmax(S) as max, sub, exp, sum, div; O = P V
 *
 * Q and O are ragged: a kernel that knows where a sequence ends does not write behind it. K and V
 * are gathered from pages, not read there: an offset in a container of pages passes 2^31 values
 * from 4 GiB of pages on, which no test without a GPU shows, and copies of what was just written
 * cost two reads of the second-level cache, 6 % of the attention at 3104 keys. The single operation
 * SDPA_FWD has no causal mask before 9.21. Constants are of cuDNN's stable C interface, version 9.
 */
#include "kernels/cuda/sdpa.h"

#include "base/assert.h"
#include "base/mem.h"

#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* cudnnDataType_t */
enum { F32 = 0, I32 = 4, BF16 = 9, BOOLEAN = 11 };
/* cudnnBackendAttributeType_t */
enum { T_HANDLE = 0, T_DATA_TYPE = 1, T_BOOLEAN = 2, T_INT64 = 3, T_DOUBLE = 5, T_POINTER = 6 };
enum { T_HEUR_MODE = 8, T_POINTWISE_MODE = 14, T_DESCRIPTOR = 15, T_REDUCTION = 18, T_CHAR = 24 };
/* cudnnBackendDescriptorType_t */
enum { D_POINTWISE = 0, D_ENGINE_CONFIG = 3, D_ENGINE_HEURISTIC = 4, D_PLAN = 5 };
enum { D_POINTWISE_OP = 13, D_GRAPH = 15, D_VARIANT = 16, D_TENSOR = 17, D_MATMUL = 18 };
enum { D_MATMUL_OP = 19, D_REDUCTION = 21, D_REDUCTION_OP = 22, D_DEVICE = 38 };
/* cudnnBackendAttributeName_t */
enum { A_POINTWISE_MODE = 0, A_POINTWISE_TYPE = 1, A_POINTWISE_AXIS = 9, A_HEURISTIC_MODE = 200 };
enum { A_HEURISTIC_GRAPH = 201, A_HEURISTIC_RESULTS = 202, A_HEURISTIC_DEVICE = 204 };
enum { A_PLAN_HANDLE = 400, A_PLAN_CONFIG = 401, A_PLAN_WORKSPACE = 402, A_PLAN_DEVICE = 407 };
enum { A_POINTWISE_OP_HOW = 750, A_POINTWISE_OP_X = 751, A_POINTWISE_OP_B = 752 };
enum { A_POINTWISE_OP_Y = 753, A_POINTWISE_OP_T = 758, A_GRAPH_HANDLE = 800, A_GRAPH_OPS = 801 };
enum { A_TENSOR_ALIGNMENT = 900, A_TENSOR_TYPE = 901, A_TENSOR_DIMS = 902, A_TENSOR_STRIDES = 903 };
enum { A_TENSOR_ID = 906, A_TENSOR_VIRTUAL = 907, A_TENSOR_BY_VALUE = 908, A_TENSOR_RAGGED = 913 };
enum { A_VARIANT_IDS = 1000, A_VARIANT_POINTERS = 1001, A_VARIANT_WORKSPACE = 1003 };
enum { A_MATMUL_TYPE = 1500, A_MATMUL_PADDING = 1503, A_MATMUL_OP_A = 1520, A_MATMUL_OP_B = 1521 };
enum { A_MATMUL_OP_C = 1522, A_MATMUL_OP_HOW = 1523, A_MATMUL_OP_M = 1525, A_MATMUL_OP_N = 1526 };
enum { A_MATMUL_OP_K = 1527, A_REDUCTION_HOW = 1600, A_REDUCTION_TYPE = 1601 };
enum { A_REDUCTION_OP_X = 1610, A_REDUCTION_OP_Y = 1611, A_REDUCTION_OP_HOW = 1612 };
enum { A_DEVICE_JSON = 2702 };
/* cudnnPointwiseMode_t */
enum { ADD = 0, MUL = 1, DIV = 6, SUB = 9, EXP = 13, LOG = 15, CMP_GE = 303, CMP_LT = 304 };
enum { AND = 400, INDEX = 501, SELECT = 601 };
enum { REDUCE_ADD = 0, REDUCE_MAX = 3, HEURISTIC_A = 3 };
enum { ROW_AXIS = 2, KEY_AXIS = 3, NO_AXIS = -1 };

/* 9.10.2: the first whose mask takes -inf and whose bf16 attention is not known to be wrong. */
enum { VERSION_MIN = 91002, VERSION_END = 100000 };

/* Tensors that have memory; all others are from N_IDS on. */
enum { ID_Q = 1, ID_K, ID_V, ID_O, ID_SCALE, ID_LEAST, ID_ROWS, ID_KEYS, ID_OFFSETS, N_IDS };

struct api {
    size_t (*version)(void);
    int (*create)(void **ret);
    int (*destroy)(void *handle);
    int (*set_stream)(void *handle, struct gpu_stream *st);
    int (*make)(int kind, void **ret);
    int (*drop)(void *d);
    int (*set)(void *d, int name, int type, int64_t n, const void *value);
    int (*get)(const void *d, int name, int type, int64_t n, int64_t *ret_n, void *ret);
    int (*finalize)(void *d);
    int (*execute)(void *handle, void *plan, void *variant);
};

enum { MADE_MAX = 96, OPS_MAX = 24, PLANS_MAX = 8 };
struct plan {
    size_t keys;
    void *made[MADE_MAX]; /* descriptors, as long as the plan */
    unsigned n_made;
    void *exec;
    int64_t workspace;
    bool refused; /* at run time: not tried again */
};
struct sdpa {
    void *lib, *handle;
    struct api api;
    struct cu *c;
    void *device; /* its descriptor, of tests */
    struct sdpa_shape shape;
    char name[32];
    struct plan *plan[PLANS_MAX];
    unsigned n_plans;
};

/* ---- the library ---- */

static int load(struct sdpa *s, const char *path)
{
    const struct {
        const char *name;
        void *at;
    } calls[] = {{"cudnnGetVersion", &s->api.version},
                 {"cudnnCreate", &s->api.create},
                 {"cudnnDestroy", &s->api.destroy},
                 {"cudnnSetStream", &s->api.set_stream},
                 {"cudnnBackendCreateDescriptor", &s->api.make},
                 {"cudnnBackendDestroyDescriptor", &s->api.drop},
                 {"cudnnBackendSetAttribute", &s->api.set},
                 {"cudnnBackendGetAttribute", &s->api.get},
                 {"cudnnBackendFinalize", &s->api.finalize},
                 {"cudnnBackendExecute", &s->api.execute}};
    s->lib = dlopen(path && *path ? path : "libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; s->lib && i < sizeof calls / sizeof *calls; i++)
        if (!(*(void **)calls[i].at = dlsym(s->lib, calls[i].name))) return -ENOTSUP;
    if (!s->lib) return -ENOTSUP;
    const size_t v = s->api.version();
    snprintf(s->name, sizeof s->name, "cudnn %zu.%zu.%zu", v / 10000, v / 100 % 100, v % 100);
    return v >= VERSION_MIN && v < VERSION_END ? 0 : -ENOTSUP;
}

static int describe_device(struct sdpa *s, const char *like)
{
    if (s->api.make(D_DEVICE, &s->device)) return -ENOTSUP;
    if (s->api.set(s->device, A_DEVICE_JSON, T_CHAR, (int64_t)strlen(like), like)) return -ENOTSUP;
    return s->api.finalize(s->device) ? -ENOTSUP : 0;
}

int sdpa_open(struct cu *c, const char *path, const char *like, const struct sdpa_shape *shape,
              struct sdpa **ret)
{
    struct sdpa *s = mem_zalloc(sizeof *s);
    if (!s) return -ENOMEM;
    s->c = c;
    s->shape = *shape;
    int r = load(s, path);
    if (r == 0 && !c) r = describe_device(s, like);
    if (r == 0 && c) {
        cu_use(c);
        if (s->api.create(&s->handle)) s->handle = NULL, r = -ENOTSUP;
        if (r == 0 && s->api.set_stream(s->handle, cu_stream(c))) r = -ENOTSUP;
    }
    if (r < 0)
        sdpa_close(s);
    else
        *ret = s;
    return r;
}

static void plan_destroy(const struct sdpa *s, struct plan *p)
{
    if (!p) return;
    while (p->n_made > 0)
        (void)s->api.drop(p->made[--p->n_made]);
    mem_free(p);
}

void sdpa_drop(struct sdpa *s)
{
    plan_destroy(s, s->plan[--s->n_plans]);
}

/* The library stays loaded: it has threads and exit handlers of its own. */
void sdpa_close(struct sdpa *s)
{
    if (!s) return;
    if (s->c) cu_use(s->c);
    while (s->n_plans > 0)
        sdpa_drop(s);
    if (s->device) (void)s->api.drop(s->device);
    if (s->handle) (void)s->api.destroy(s->handle);
    mem_free(s);
}

unsigned sdpa_plans(const struct sdpa *s)
{
    return s->n_plans;
}

const char *sdpa_name(const struct sdpa *s)
{
    return s->name;
}

/* ---- the graph ---- */

struct build { /* what goes wrong first stays in `status`, and all behind it does nothing */
    const struct sdpa *s;
    struct plan *p;
    int status;
    void *op[OPS_MAX];
    unsigned n_ops;
    int64_t next_id;
};

static void *make(struct build *b, int kind)
{
    void *d = NULL;
    ASSERT(b->p->n_made < MADE_MAX);
    if (b->status == 0) b->status = b->s->api.make(kind, &d);
    if (d) b->p->made[b->p->n_made++] = d;
    return d;
}

static void give(struct build *b, void *d, int name, int type, int64_t n, const void *value)
{
    if (b->status == 0) b->status = b->s->api.set(d, name, type, n, value);
}

static void set_descriptor(struct build *b, void *d, int name, void *value)
{
    if (value) give(b, d, name, T_DESCRIPTOR, 1, &value);
}

static void *made(struct build *b, void *d)
{
    if (b->status == 0) b->status = b->s->api.finalize(d);
    return d;
}

static void add_op(struct build *b, void *op)
{
    ASSERT(b->n_ops < OPS_MAX);
    b->op[b->n_ops++] = made(b, op);
}

/* id 0: it has no memory. */
static void *tensor(struct build *b, int64_t id, int type, const int64_t dims[4],
                    const int64_t strides[4], void *offsets)
{
    const int64_t alignment = 16, own = id ? id : b->next_id++;
    const bool yes = true;
    void *d = make(b, D_TENSOR);
    give(b, d, A_TENSOR_TYPE, T_DATA_TYPE, 1, &type);
    give(b, d, A_TENSOR_DIMS, T_INT64, 4, dims);
    give(b, d, A_TENSOR_STRIDES, T_INT64, 4, strides);
    give(b, d, A_TENSOR_ID, T_INT64, 1, &own);
    give(b, d, A_TENSOR_ALIGNMENT, T_INT64, 1, &alignment);
    if (id == 0) give(b, d, A_TENSOR_VIRTUAL, T_BOOLEAN, 1, &yes);
    if (id == ID_SCALE || id == ID_LEAST) give(b, d, A_TENSOR_BY_VALUE, T_BOOLEAN, 1, &yes);
    set_descriptor(b, d, A_TENSOR_RAGGED, offsets);
    return made(b, d);
}

/* n numbers. */
static void *numbers(struct build *b, int64_t id, int type, int64_t n)
{
    return tensor(b, id, type, (int64_t[]){n, 1, 1, 1}, (int64_t[]){1, 1, 1, 1}, NULL);
}

/* Without memory: a value a row and key; a value a row. */
static void *scores(struct build *b, int type)
{
    const int64_t H = b->s->shape.H, P = (int64_t)b->p->keys;
    return tensor(b, 0, type, (int64_t[]){1, H, P, P}, (int64_t[]){H * P * P, P * P, P, 1}, NULL);
}

static void *per_row(struct build *b)
{
    const int64_t H = b->s->shape.H, P = (int64_t)b->p->keys;
    return tensor(b, 0, F32, (int64_t[]){1, H, P, 1}, (int64_t[]){H * P, P, 1, 1}, NULL);
}

struct point { /* y = mode(x, b, t), in arithmetic of a type */
    int mode, type;
    void *x, *b, *t;
    int64_t axis;
};

static void *point(struct build *b, const struct point *a, void *y)
{
    void *how = make(b, D_POINTWISE);
    give(b, how, A_POINTWISE_MODE, T_POINTWISE_MODE, 1, &a->mode);
    give(b, how, A_POINTWISE_TYPE, T_DATA_TYPE, 1, &a->type);
    if (a->axis != NO_AXIS) give(b, how, A_POINTWISE_AXIS, T_INT64, 1, &a->axis);
    made(b, how);
    void *op = make(b, D_POINTWISE_OP);
    set_descriptor(b, op, A_POINTWISE_OP_HOW, how);
    set_descriptor(b, op, A_POINTWISE_OP_X, a->x);
    set_descriptor(b, op, A_POINTWISE_OP_B, a->b);
    set_descriptor(b, op, A_POINTWISE_OP_T, a->t);
    set_descriptor(b, op, A_POINTWISE_OP_Y, y);
    add_op(b, op);
    return y;
}

static void *one(struct build *b, int mode, int type, void *x, void *with, void *y)
{
    return point(b, &(struct point){mode, type, x, with, NULL, NO_AXIS}, y);
}

static void *index_of(struct build *b, void *x, int type, int64_t axis)
{
    return point(b, &(struct point){INDEX, type, x, NULL, NULL, axis}, scores(b, I32));
}

static void *shifted(struct build *b, int mode, void *x, void *by)
{
    return point(b, &(struct point){mode, I32, x, by, NULL, KEY_AXIS}, scores(b, I32));
}

static void *where(struct build *b, void *seen, void *x, void *least)
{
    return point(b, &(struct point){SELECT, F32, x, least, seen, NO_AXIS}, scores(b, F32));
}

static void *reduced(struct build *b, int how, void *x)
{
    const int type = F32;
    void *d = make(b, D_REDUCTION), *y = per_row(b);
    give(b, d, A_REDUCTION_HOW, T_REDUCTION, 1, &how);
    give(b, d, A_REDUCTION_TYPE, T_DATA_TYPE, 1, &type);
    made(b, d);
    void *op = make(b, D_REDUCTION_OP);
    set_descriptor(b, op, A_REDUCTION_OP_HOW, d);
    set_descriptor(b, op, A_REDUCTION_OP_X, x);
    set_descriptor(b, op, A_REDUCTION_OP_Y, y);
    add_op(b, op);
    return y;
}

struct product { /* c = x y, of which the device's memory says how much there is: */
    void *x, *y, *c;
    void *m, *n, *k; /* NULL: all */
};

static void multiply(struct build *b, const struct product *p)
{
    const int type = F32;
    const double padding = 0;
    void *how = make(b, D_MATMUL);
    give(b, how, A_MATMUL_TYPE, T_DATA_TYPE, 1, &type);
    if (p->n) give(b, how, A_MATMUL_PADDING, T_DOUBLE, 1, &padding);
    made(b, how);
    void *op = make(b, D_MATMUL_OP);
    set_descriptor(b, op, A_MATMUL_OP_HOW, how);
    set_descriptor(b, op, A_MATMUL_OP_A, p->x);
    set_descriptor(b, op, A_MATMUL_OP_B, p->y);
    set_descriptor(b, op, A_MATMUL_OP_C, p->c);
    set_descriptor(b, op, A_MATMUL_OP_M, p->m);
    set_descriptor(b, op, A_MATMUL_OP_N, p->n);
    set_descriptor(b, op, A_MATMUL_OP_K, p->k);
    add_op(b, op);
}

/* Rows and keys that are there; of these, a row the ones up to its own: the last row's is the last
 * key. */
static void *masked(struct build *b, void *s, void *rows, void *keys)
{
    void *const least = numbers(b, ID_LEAST, F32, 1);
    void *row = index_of(b, s, I32, ROW_AXIS), *key = index_of(b, s, I32, KEY_AXIS);
    void *in_rows = one(b, CMP_LT, BOOLEAN, row, rows, scores(b, BOOLEAN));
    void *in_keys = one(b, CMP_LT, BOOLEAN, key, keys, scores(b, BOOLEAN));
    s = where(b, one(b, AND, BOOLEAN, in_rows, in_keys, scores(b, BOOLEAN)), s, least);
    row = index_of(b, s, F32, ROW_AXIS), key = index_of(b, s, F32, KEY_AXIS);
    row = shifted(b, SUB, shifted(b, ADD, row, keys), rows);
    return where(b, one(b, CMP_GE, BOOLEAN, row, key, scores(b, BOOLEAN)), s, least);
}

/* The log-sum-exp has no reader and no memory; the library knows the graph by it. */
static void *softmax(struct build *b, void *s)
{
    void *top = reduced(b, REDUCE_MAX, s);
    void *e = one(b, EXP, F32, one(b, SUB, F32, s, top, scores(b, F32)), NULL, scores(b, F32));
    void *sum = reduced(b, REDUCE_ADD, e);
    one(b, ADD, F32, top, one(b, LOG, F32, sum, NULL, per_row(b)), per_row(b));
    return one(b, DIV, F32, e, sum, scores(b, BF16));
}

static void *attention(struct build *b)
{
    const int64_t H = b->s->shape.H, G = b->s->shape.G, K = b->s->shape.K;
    const int64_t P = (int64_t)b->p->keys, HK = H * K, GK = G * K;
    void *offsets = numbers(b, ID_OFFSETS, I32, 2);
    void *rows = numbers(b, ID_ROWS, I32, 1), *keys = numbers(b, ID_KEYS, I32, 1);
    const int64_t dims[] = {1, H, P, K}, strides[] = {P * HK, K, HK, 1};
    void *q = tensor(b, ID_Q, BF16, dims, strides, offsets);
    void *o = tensor(b, ID_O, BF16, dims, strides, offsets);
    void *k = tensor(b, ID_K, BF16, (int64_t[]){1, G, K, P}, (int64_t[]){P * GK, K, 1, GK}, NULL);
    void *v = tensor(b, ID_V, BF16, (int64_t[]){1, G, P, K}, (int64_t[]){P * GK, K, GK, 1}, NULL);
    void *s = scores(b, F32);
    multiply(b, &(struct product){q, k, s, rows, keys, NULL});
    s = one(b, MUL, F32, s, numbers(b, ID_SCALE, F32, 1), scores(b, F32));
    s = softmax(b, masked(b, s, rows, keys));
    multiply(b, &(struct product){s, v, o, rows, NULL, keys});
    void *graph = make(b, D_GRAPH);
    give(b, graph, A_GRAPH_OPS, T_DESCRIPTOR, b->n_ops, b->op);
    if (b->s->handle) give(b, graph, A_GRAPH_HANDLE, T_HANDLE, 1, &b->s->handle);
    return made(b, graph);
}

/* The library's first suggestion that makes a plan. */
static void choose_plan(struct build *b, void *graph)
{
    enum { SUGGESTIONS = 4 };
    const int mode = HEURISTIC_A;
    void *heuristic = make(b, D_ENGINE_HEURISTIC), *config[SUGGESTIONS];
    int64_t n = 0, one_value;
    for (int i = 0; i < SUGGESTIONS; i++)
        config[i] = make(b, D_ENGINE_CONFIG);
    set_descriptor(b, heuristic, A_HEURISTIC_GRAPH, graph);
    give(b, heuristic, A_HEURISTIC_MODE, T_HEUR_MODE, 1, &mode);
    set_descriptor(b, heuristic, A_HEURISTIC_DEVICE, b->s->device);
    made(b, heuristic);
    if (b->status == 0)
        b->status =
            b->s->api.get(heuristic, A_HEURISTIC_RESULTS, T_DESCRIPTOR, SUGGESTIONS, &n, config);
    for (int64_t i = 0; b->status == 0 && !b->p->exec && i < n && i < SUGGESTIONS; i++) {
        void *plan = make(b, D_PLAN);
        set_descriptor(b, plan, A_PLAN_CONFIG, config[i]);
        set_descriptor(b, plan, A_PLAN_DEVICE, b->s->device);
        if (b->s->handle) give(b, plan, A_PLAN_HANDLE, T_HANDLE, 1, &b->s->handle);
        if (b->status == 0 && b->s->api.finalize(plan) == 0) b->p->exec = plan;
    }
    if (b->status == 0 && b->p->exec)
        b->status =
            b->s->api.get(b->p->exec, A_PLAN_WORKSPACE, T_INT64, 1, &one_value, &b->p->workspace);
}

int sdpa_prepare(struct sdpa *s, size_t keys)
{
    ASSERT(s->n_plans < PLANS_MAX);
    ASSERT(s->n_plans == 0 || keys > s->plan[s->n_plans - 1]->keys);
    struct plan *p = mem_zalloc(sizeof *p);
    if (!p) return -ENOMEM;
    p->keys = keys;
    if (s->c) cu_use(s->c);
    struct build b = {.s = s, .p = p, .next_id = N_IDS};
    choose_plan(&b, attention(&b));
    if (b.status || !p->exec || p->workspace < 0) {
        plan_destroy(s, p);
        return -ENOTSUP;
    }
    s->plan[s->n_plans++] = p;
    return 0;
}

/* ---- running it ---- */

static struct plan *plan_for(const struct sdpa *s, size_t n_keys)
{
    for (unsigned i = 0; i < s->n_plans; i++)
        if (s->plan[i]->keys >= n_keys) return s->plan[i];
    return NULL;
}

/* Blocks of a plan that has many more rows than there are start for nothing: from a quarter on. */
bool sdpa_fits(const struct sdpa *s, const struct cu_attn *a, size_t n_keys)
{
    const struct plan *p = s && n_keys > 0 ? plan_for(s, n_keys) : NULL;
    if (!p || p->refused || 4 * a->m < p->keys || a->m > n_keys) return false;
    return a->H == s->shape.H && a->kv.G == s->shape.G && a->kv.K == s->shape.K &&
           cu_gather_fits(s->c, a, n_keys);
}

struct places {
    struct cu_gathered to;
    void *workspace;
    size_t bytes;
};

static struct places places_in(const struct sdpa *s, const struct plan *p, char *room)
{
    enum { ALIGNMENT = 256 };
    const size_t value = sizeof(uint16_t), q = p->keys * s->shape.H * s->shape.K * value,
                 k = p->keys * s->shape.G * s->shape.K * value;
    const size_t sizes[] = {sizeof(int32_t) * CU_GATHERED_NUMBERS, q, k, k, (size_t)p->workspace};
    size_t at[sizeof sizes / sizeof *sizes], end = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        at[i] = end;
        end += (sizes[i] + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    if (!room) return (struct places){.bytes = end + ALIGNMENT};
    room += -(uintptr_t)room % ALIGNMENT;
    return (struct places){{(int32_t *)(void *)(room + at[0]), (uint16_t *)(void *)(room + at[1]),
                            (uint16_t *)(void *)(room + at[2]), (uint16_t *)(void *)(room + at[3]),
                            p->keys},
                           room + at[4],
                           end + ALIGNMENT};
}

size_t sdpa_room(const struct sdpa *s, size_t n_keys)
{
    return places_in(s, plan_for(s, n_keys), NULL).bytes;
}

/* The library reads the two values before it returns. */
static int execute(const struct sdpa *s, const struct plan *p, const struct cu_attn *a,
                   const struct places *at)
{
    float scale = a->scale, least = -INFINITY;
    int64_t id[N_IDS - 1];
    void *const pointer[N_IDS - 1] = {at->to.q,
                                      at->to.k,
                                      at->to.v,
                                      a->out,
                                      &scale,
                                      &least,
                                      at->to.numbers + CU_GATHERED_ROWS,
                                      at->to.numbers + CU_GATHERED_KEYS,
                                      at->to.numbers + CU_GATHERED_OFFSETS};
    void *variant = NULL;
    for (int64_t i = 0; i < N_IDS - 1; i++)
        id[i] = i + 1;
    int e = s->api.make(D_VARIANT, &variant);
    if (e) return e;
    e = s->api.set(variant, A_VARIANT_IDS, T_INT64, N_IDS - 1, id);
    if (!e) e = s->api.set(variant, A_VARIANT_POINTERS, T_POINTER, N_IDS - 1, pointer);
    if (!e) e = s->api.set(variant, A_VARIANT_WORKSPACE, T_POINTER, 1, &at->workspace);
    if (!e) e = s->api.finalize(variant);
    if (!e) e = s->api.execute(s->handle, p->exec, variant);
    (void)s->api.drop(variant);
    return e;
}

int sdpa_run(struct sdpa *s, const struct cu_attn *a, size_t n_keys, void *room)
{
    struct plan *p = plan_for(s, n_keys);
    const struct places at = places_in(s, p, room);
    int r = cu_gather_heads(s->c, a, n_keys, &at.to);
    if (r < 0) return r;
    p->refused = execute(s, p, a, &at) != 0;
    return p->refused ? -ENOTSUP : 0;
}
