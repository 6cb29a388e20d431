/* cuDNN's backend interface as kernels/cuda/sdpa.c uses it: a graph of operations that is really
 * computed as its descriptors say, one operation after the other, every tensor by its dimensions
 * and strides. So a wrong stride, mask or length gives wrong numbers here.
 *
 * As unkind as the library may be: O behind the last row is overwritten where O is not ragged, and
 * keys behind the last one are read, times 0. What the library does with graphs that it does not
 * know as attention only the real one can say (tests/unit/kernels/test_cudnn.c). hostcuda_cudnn()
 * makes it old, wrong, slow or refuse. Thread: as hostcuda.h. */
#include "tests/doubles/hostcuda/hostcuda.h"

#include <map>
#include <memory>
#include <set>

#define EXPORT extern "C" __attribute__((visibility("default")))

using namespace hostcuda;

enum { SUCCESS = 0, BAD_PARAM = 2000, NOT_SUPPORTED = 3000, EXECUTION_FAILED = 5000 };
enum { F32 = 0, I32 = 4, BF16 = 9, BOOLEAN = 11 };
enum { POINTWISE_OP = 13, TENSOR = 17, MATMUL_OP = 19, REDUCTION_OP = 22 };
enum { HEURISTIC_RESULTS = 202, PLAN_CONFIG = 401, PLAN_WORKSPACE = 402, GRAPH_OPS = 801 };
enum { TYPE_DESCRIPTOR = 15 };

/* What hostcuda_cudnn() asks for. */
enum { HONEST, OLD, REFUSES_PLANS, REFUSES_TO_RUN, IS_WRONG, SEES_TOO_MUCH, IS_SLOW };
static unsigned behaviour;
static unsigned long n_ran;
EXPORT void hostcuda_cudnn(unsigned how)
{
    behaviour = how;
}

EXPORT unsigned long hostcuda_cudnn_ran()
{
    return n_ran;
}

struct Descriptor {
    int kind;
    bool done;
    std::map<int, std::vector<char>> value;

    const char *bytes(int name) const
    {
        const auto at = value.find(name);
        if (at == value.end()) misuse("cuDNN: an attribute that nobody has set");
        return at->second.data();
    }
    template <class T> T one(int name) const
    {
        T x;
        memcpy(&x, bytes(name), sizeof x);
        return x;
    }
    template <class T> T one(int name, T otherwise) const
    {
        return value.count(name) ? one<T>(name) : otherwise;
    }
    template <class T> std::vector<T> all(int name) const
    {
        std::vector<T> x(value.at(name).size() / sizeof(T));
        memcpy(x.data(), bytes(name), x.size() * sizeof(T));
        return x;
    }
    const Descriptor *part(int name) const
    {
        return one<const Descriptor *>(name, nullptr);
    }
};
static std::set<Descriptor *> alive;

static size_t bytes_of(int type)
{
    return type == F32 || type == I32 ? 4 : type == BF16 ? 2 : 1;
}

/* ---- tensors while a graph runs ---- */

typedef int64_t Place[4];
struct Values {
    int type;
    std::vector<int64_t> dims, strides;
    char *at;                /* NULL: it has no memory */
    std::vector<float> held; /* then, without gaps */
    int64_t base;            /* of a ragged one, values */
    bool ragged;

    int64_t offset(const Place &i) const
    {
        int64_t at_value = base;
        for (int d = 0; d < 4; d++)
            at_value += (dims[d] == 1 ? 0 : i[d]) * strides[d];
        return at_value;
    }
    float get(const Place &i) const
    {
        const int64_t o = offset(i);
        if (!at) return held[size_t(o)];
        int32_t word = 0;
        float f;
        memcpy(&word, at + o * int64_t(bytes_of(type)), bytes_of(type));
        if (type == I32) return float(word);
        const uint32_t u = type == BF16 ? uint32_t(word) << 16 : uint32_t(word);
        memcpy(&f, &u, 4);
        return f;
    }
    void put(const Place &i, float x)
    {
        uint32_t u;
        memcpy(&u, &x, 4);
        if (type == BF16) u = (u + 0x7fffu + (u >> 16 & 1u)) & 0xffff0000u;
        memcpy(&x, &u, 4);
        if (!at) {
            held[size_t(offset(i))] = x;
            return;
        }
        if (type == BF16) u >>= 16;
        memcpy(at + offset(i) * int64_t(bytes_of(type)), &u, bytes_of(type));
    }
};

struct Run {
    std::map<int64_t, char *> memory; /* by id */
    std::map<int64_t, float> by_value;
    std::map<const Descriptor *, std::unique_ptr<Values>> tensors;
    unsigned how;

    Values &of(const Descriptor *t)
    {
        auto &x = tensors[t];
        if (x) return *x;
        const int64_t id = t->one<int64_t>(906);
        x = std::make_unique<Values>();
        x->type = t->one<int>(901);
        x->dims = t->all<int64_t>(902), x->strides = t->all<int64_t>(903);
        x->at = nullptr, x->base = 0, x->ragged = false;
        int64_t n = 1;
        for (int64_t d : x->dims)
            n *= d;
        if (by_value.count(id))
            x->held.assign(1, by_value[id]);
        else if (t->one<bool>(907, false))
            x->held.resize(size_t(n));
        else if (!(x->at = memory.count(id) ? memory[id] : nullptr))
            misuse("cuDNN: a tensor without memory");
        if (const Descriptor *offsets = t->part(913)) {
            x->base = int64_t(of(offsets).get({0, 0, 0, 0}));
            x->ragged = true;
        }
        return *x;
    }
    int64_t count(const Descriptor *t, int64_t otherwise)
    {
        return t ? int64_t(of(t).get({0, 0, 0, 0})) : otherwise;
    }
};

template <class F> static void each_place(const std::vector<int64_t> &dims, F f)
{
    Place i;
    for (i[0] = 0; i[0] < dims[0]; i[0]++)
        for (i[1] = 0; i[1] < dims[1]; i[1]++)
            for (i[2] = 0; i[2] < dims[2]; i[2]++)
                for (i[3] = 0; i[3] < dims[3]; i[3]++)
                    f(i);
}

static float pointwise(const Run &r, int mode, float x, float b, float t)
{
    switch (mode) {
    case 0:
        return x + b;
    case 1:
        return x * b;
    case 6:
        return x / b;
    case 9:
        return x - b;
    case 13:
        return expf(x);
    case 15:
        return logf(x);
    case 303:
        return x + (r.how == SEES_TOO_MUCH ? 1 : 0) >= b;
    case 304:
        return x < b;
    case 400:
        return x != 0 && b != 0;
    case 601:
        return t != 0 ? x : b;
    }
    misuse("cuDNN: an operation on values that is not there");
}

static void run_pointwise(Run &r, const Descriptor *op)
{
    enum { INDEX = 501 };
    const Descriptor *how = op->part(750), *b = op->part(752), *t = op->part(758);
    const int mode = how->one<int>(0);
    const int64_t axis = how->one<int64_t>(9, -1);
    Values &y = r.of(op->part(753));
    const Values *xs = &r.of(op->part(751)), *bs = b ? &r.of(b) : nullptr,
                 *ts = t ? &r.of(t) : nullptr;
    each_place(y.dims, [&](const Place &i) {
        y.put(i, mode == INDEX
                     ? float(i[axis])
                     : pointwise(r, mode, xs->get(i), bs ? bs->get(i) : 0, ts ? ts->get(i) : 0));
    });
}

static void run_reduction(Run &r, const Descriptor *op)
{
    enum { MOST = 3 };
    const bool most = op->part(1612)->one<int>(1600) == MOST;
    Values &y = r.of(op->part(1611)), &x = r.of(op->part(1610));
    each_place(y.dims, [&](const Place &i) {
        float sum = most ? -INFINITY : 0;
        Place j = {i[0], i[1], i[2], 0};
        for (j[3] = 0; j[3] < x.dims[3]; j[3]++)
            sum = most ? fmaxf(sum, x.get(j)) : sum + x.get(j);
        y.put(i, sum);
    });
}

static void run_product(Run &r, const Descriptor *op)
{
    Values &a = r.of(op->part(1520)), &b = r.of(op->part(1521)), &c = r.of(op->part(1522));
    const int64_t m = r.count(op->part(1525), c.dims[2]), n = r.count(op->part(1526), c.dims[3]),
                  k = r.count(op->part(1527), a.dims[3]), group = a.dims[1] / b.dims[1];
    if (a.dims[3] != b.dims[2] || a.dims[1] % b.dims[1]) misuse("cuDNN: a product of other shapes");
    each_place(c.dims, [&](const Place &i) {
        if (i[2] >= m && c.at && c.ragged) return;
        float sum = 0;
        for (int64_t d = 0; i[2] < m && i[3] < n && d < a.dims[3]; d++) {
            const float y = b.get({i[0], i[1] / group, d, i[3]});
            sum += d < k || b.at ? a.get({i[0], i[1], i[2], d}) * y : 0;
        }
        c.put(i, r.how == IS_WRONG && c.at ? sum * 1.05f : sum);
    });
}

/* ---- the interface ---- */

EXPORT size_t cudnnGetVersion()
{
    return behaviour == OLD ? 90900 : 91900;
}

EXPORT int cudnnCreate(void **handle)
{
    *handle = new cudaStream_t(nullptr);
    return SUCCESS;
}

EXPORT int cudnnDestroy(void *handle)
{
    delete static_cast<cudaStream_t *>(handle);
    return SUCCESS;
}

EXPORT int cudnnSetStream(void *handle, cudaStream_t s)
{
    *static_cast<cudaStream_t *>(handle) = s;
    return SUCCESS;
}

EXPORT int cudnnBackendCreateDescriptor(int kind, void **ret)
{
    auto *d = new Descriptor{kind, false, {}};
    alive.insert(d);
    *ret = d;
    return SUCCESS;
}

EXPORT int cudnnBackendDestroyDescriptor(void *d)
{
    if (!alive.erase(static_cast<Descriptor *>(d))) misuse("cuDNN: a descriptor dropped twice");
    delete static_cast<Descriptor *>(d);
    return SUCCESS;
}

EXPORT int cudnnBackendSetAttribute(void *to, int name, int type, int64_t n, const void *value)
{
    /* by type: a handle, enumerations, a bool, 64 bits, … */
    static const size_t bytes[] = {8, 4, 1, 8, 4, 8, 8};
    auto *d = static_cast<Descriptor *>(to);
    const size_t size = type == TYPE_DESCRIPTOR ? 8 : type < 7 ? bytes[type] : 4;
    if (d->done || n < 1) return BAD_PARAM;
    for (int64_t i = 0; type == TYPE_DESCRIPTOR && i < n; i++) {
        const auto *part = static_cast<Descriptor *const *>(value)[i];
        if (!alive.count(const_cast<Descriptor *>(part)) || !part->done) return BAD_PARAM;
    }
    const char *from = static_cast<const char *>(value);
    d->value[name].assign(from, from + size_t(n) * size);
    return SUCCESS;
}

/* One suggestion, which needs some workspace. */
EXPORT int cudnnBackendGetAttribute(const void *of, int name, int, int64_t n, int64_t *ret_n,
                                    void *ret)
{
    const auto *d = static_cast<const Descriptor *>(of);
    if (!d->done || n < 1) return BAD_PARAM;
    *ret_n = 1;
    if (name == HEURISTIC_RESULTS) {
        Descriptor *config = *static_cast<Descriptor **>(ret);
        config->value[GRAPH_OPS] = d->part(201)->value.at(GRAPH_OPS);
        config->done = true;
        return SUCCESS;
    }
    const int64_t workspace = 300;
    if (name != PLAN_WORKSPACE) return BAD_PARAM;
    memcpy(ret, &workspace, sizeof workspace);
    return SUCCESS;
}

static bool is_whole(const Descriptor *t)
{
    return t->all<int64_t>(902).size() == 4 && t->all<int64_t>(903).size() == 4;
}

EXPORT int cudnnBackendFinalize(void *of)
{
    enum { PLAN = 5 };
    auto *d = static_cast<Descriptor *>(of);
    if (d->kind == PLAN && behaviour == REFUSES_PLANS) return NOT_SUPPORTED;
    if (d->kind == TENSOR && !is_whole(d)) return BAD_PARAM;
    d->done = true;
    return SUCCESS;
}

static void run_graph(Run &r, const Descriptor *config)
{
    for (const auto *op : config->all<const Descriptor *>(GRAPH_OPS))
        switch (op->kind) {
        case POINTWISE_OP:
            run_pointwise(r, op);
            break;
        case MATMUL_OP:
            run_product(r, op);
            break;
        case REDUCTION_OP:
            run_reduction(r, op);
            break;
        default:
            misuse("cuDNN: an operation that is not there");
        }
    n_ran++;
}

/* Values that are no tensors' are read now, the device's memory when the stream gets here. */
EXPORT int cudnnBackendExecute(void *handle, void *plan, void *variant)
{
    const auto *config = static_cast<Descriptor *>(plan)->part(PLAN_CONFIG);
    const auto *given = static_cast<Descriptor *>(variant);
    const auto ids = given->all<int64_t>(1000);
    const auto pointers = given->all<char *>(1001);
    if (behaviour == REFUSES_TO_RUN) return EXECUTION_FAILED;
    if (!given->done || ids.size() != pointers.size()) return BAD_PARAM;
    check_argument("cuDNN", given->one<char *>(1003));
    std::set<int64_t> values;
    for (const auto *op : config->all<const Descriptor *>(GRAPH_OPS))
        for (int name : {751, 752, 758, 1520, 1521}) {
            const Descriptor *t = op->part(name);
            if (t && t->one<bool>(908, false)) values.insert(t->one<int64_t>(906));
        }
    auto run = std::make_shared<Run>();
    for (size_t i = 0; i < ids.size(); i++) {
        float x;
        if (values.count(ids[i])) {
            memcpy(&x, pointers[i], sizeof x);
            run->by_value[ids[i]] = x;
            continue;
        }
        if (reinterpret_cast<uintptr_t>(pointers[i]) % 16) return BAD_PARAM;
        check_argument("cuDNN", pointers[i]);
        run->memory[ids[i]] = pointers[i];
    }
    run->how = behaviour;
    const cudaStream_t s = *static_cast<cudaStream_t *>(handle);
    check_device(s);
    enqueue(s, [=] {
        count_launch(run->how == IS_SLOW ? 1000000 : 1);
        run_graph(*run, config);
    });
    return SUCCESS;
}
