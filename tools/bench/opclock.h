/* opclock: where the threads of a CPU device spend their time, by kind of operation.
 *
 * A clock puts tables of its own in front of the device's (kernels/kn_int.h), so the product has no
 * clock in it: each operation, each block of rows and each item of a spread operation says what its
 * thread does from now on, and the thread's time until then goes to what it did before. So every
 * thread's time is counted once: all kinds together are the threads times the time between
 * opclock_begin() and opclock_end(), to the nanosecond. A kind's time has what is done inside its
 * operations, unpacking of weights in products included; an operation inside another has its own
 * kind. An operation that is not listed in opclock.c counts as OPCLOCK_REST.
 *
 * Life: create, name the weights, then begin and end any number of times, destroy. Thread: that of
 * kn_rows(), while nothing runs on the device. */
#ifndef TOOLS_BENCH_OPCLOCK_H
#define TOOLS_BENCH_OPCLOCK_H

#include "kernels/kn.h"

/* Products first: by the names of fus_core_each_weight(). */
#define OPCLOCK_KINDS(X)                                                                           \
    X(KV, "kv")                                                                                    \
    X(Q, "q")                                                                                      \
    X(O, "o")                                                                                      \
    X(GATE_UP, "gate_up")                                                                          \
    X(DOWN, "down")                                                                                \
    X(HEAD, "head")                                                                                \
    X(PRODUCT, "product") /* of weights without a name */                                          \
    X(GATED, "gated")     /* gate_up, activation and down, where they are one operation */         \
    X(EXPERTS, "experts") /* kn_moe() whole, but for its activation */                             \
    X(ATTENTION, "attention")                                                                      \
    X(MASS, "mass") /* attention that a key gets, to choose by */                                  \
    X(NORMS, "norms")                                                                              \
    X(ROPE, "rope")                                                                                \
    X(ACTIVATION, "activation")                                                                    \
    X(KV_PUT, "kv_put")       /* computed K and V to their pages */                                \
    X(KV_LOAD, "kv_load")     /* stored ones */                                                    \
    X(SELECTION, "selection") /* deviation, the largest scores, draws */                           \
    X(COPIES, "copies")                                                                            \
    X(REST, "rest")               /* in runs, outside of operations: embeddings, records */        \
    X(ALONE, "alone")             /* one thread, the caller, outside of runs */                    \
    X(IDLE, "idle")               /* the others meanwhile */                                       \
    X(WAIT_EQUAL, "wait_equal")   /* for the last block of a run of equal rows, */                 \
    X(WAIT_UNEVEN, "wait_uneven") /* of uneven ones: the attention's, */                           \
    X(WAIT_SPREAD, "wait_spread") /* for the last item of a spread operation, */                   \
    X(WAIT_SINGLE, "wait_single") /* for an operation that is not spread, in a run at once */

#define OPCLOCK_ENUM(kind, name) OPCLOCK_##kind,
enum opclock_kind {
    OPCLOCK_KINDS(OPCLOCK_ENUM) OPCLOCK_N,
    OPCLOCK_PRODUCTS = OPCLOCK_ATTENTION /* kinds below */
};
const char *opclock_name(enum opclock_kind kind);

struct opclock_account {
    unsigned n_threads;
    uint64_t wall_ns;
    uint64_t ns[OPCLOCK_N];  /* sum: n_threads * wall_ns */
    double flops[OPCLOCK_N]; /* of products and attention: two for each multiplication */
};

struct opclock;
typedef uint64_t (*opclock_now)(void); /* clock_ns(); never goes back, on any thread */
/* -ENOTSUP: the device is not the CPU, whose operations are over when they return. */
int opclock_create(struct kn_dev *dev, size_t n_weights_max, opclock_now now, struct opclock **ret);
void opclock_destroy(struct opclock *o); /* accepts NULL; not between begin and end */
/* Products with w are of the kind of that name, or OPCLOCK_PRODUCT. */
void opclock_weight(struct opclock *o, const char *name, const struct kn_mat *w);
void opclock_begin(struct opclock *o);
void opclock_end(struct opclock *o, struct opclock_account *ret);

#endif
