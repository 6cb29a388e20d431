/* NCCL as kernels/cuda/team.c uses it: sums over devices, in their order, so that all get the same
 * bits, and whatever has not come yet at any of them shows. Misuse ends the process: on GPUs most of
 * it would wait for ever. */
#include "tests/doubles/hostcuda/hostcuda.h"

#include <memory>
#include <utility>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

using namespace hostcuda;

enum { SUCCESS = 0, INVALID_ARGUMENT = 4, FLOAT32 = 7, SUM = 0 };

struct Clique {
    std::vector<int> device;
};
struct ncclComm {
    std::shared_ptr<Clique> clique;
    size_t rank;
};
struct Call {
    ncclComm *comm;
    const float *from;
    float *to;
    size_t n;
    cudaStream_t stream;
};
static thread_local std::vector<Call> *calls; /* since ncclGroupStart(); NULL: outside */

EXPORT int ncclCommInitAll(ncclComm **comm, int n, const int *devices)
{
    auto clique = std::make_shared<Clique>();
    for (int i = 0; i < n; i++) {
        for (int d : clique->device)
            if (d == devices[i]) return INVALID_ARGUMENT;
        clique->device.push_back(devices[i]);
    }
    for (int i = 0; i < n; i++)
        comm[i] = new ncclComm{clique, size_t(i)};
    return SUCCESS;
}

EXPORT int ncclCommDestroy(ncclComm *comm)
{
    delete comm;
    return SUCCESS;
}

EXPORT const char *ncclGetErrorString(int code)
{
    return code == SUCCESS ? "no error" : "invalid argument";
}

EXPORT int ncclGroupStart()
{
    if (!calls) calls = new std::vector<Call>;
    return SUCCESS;
}

EXPORT int ncclAllReduce(const void *from, void *to, size_t n, int type, int op, ncclComm *comm,
                         cudaStream_t stream)
{
    if (!calls) misuse("one thread sums for several devices outside of a group of calls");
    if (type != FLOAT32 || op != SUM) return INVALID_ARGUMENT;
    const int own = comm->clique->device[comm->rank];
    if (device_of(from) != own || device_of(to) != own || device_of(stream) != own)
        misuse("a sum of another device's memory, or on its stream");
    calls->push_back({comm, static_cast<const float *>(from), static_cast<float *>(to), n, stream});
    return SUCCESS;
}

static void add_up(const std::vector<Call> &all)
{
    for (size_t i = 0; i < all[0].n; i++) {
        float sum = all[0].from[i];
        for (size_t r = 1; r < all.size(); r++)
            sum += all[r].from[i];
        for (const Call &c : all)
            c.to[i] = sum;
    }
}

EXPORT int ncclGroupEnd()
{
    const std::unique_ptr<std::vector<Call>> group(std::exchange(calls, nullptr));
    if (!group) return SUCCESS;
    const std::vector<Call> &all = *group;
    std::vector<cudaStream_t> streams;
    for (size_t i = 0; i < all.size(); i++) {
        if (all[i].comm->clique != all[0].comm->clique || all[i].comm->rank != i ||
            all[i].n != all[0].n)
            misuse("a sum that its devices do not ask for alike");
        streams.push_back(all[i].stream);
    }
    if (all.empty()) return SUCCESS;
    if (all.size() != all[0].comm->clique->device.size())
        misuse("a sum that not all of its devices take part in");
    meet(streams, [=] { add_up(all); });
    return SUCCESS;
}
