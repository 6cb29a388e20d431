/* sdpa: attention of a prefill's rows by cuDNN's fused kernels, which are loaded where they are
 * there: nothing else needs them.
 *
 * sdpa_open() → sdpa_prepare() for each number of keys → sdpa_fits(), sdpa_run() … → sdpa_close()
 * before the device goes. A plan is for up to so many keys; how many rows and keys a call has it
 * reads from the device's memory, so no request waits for one to be made (half a second of NVRTC).
 * sdpa_tune() opens and prepares: which plans are worth it, by timing, and whether their values are
 * ours. For rows that are the last m of a sequence, one after another, in bf16,
 * without window, cap, sink and log-sum-exp; all others are cu_attn()'s. Thread: as launch.h. */
#ifndef KERNELS_CUDA_SDPA_H
#define KERNELS_CUDA_SDPA_H

#include "kernels/cuda/rows.h"

#include <stdbool.h>

/* Chosen: at the first attention is a fiftieth of a prefill's operations (Mistral-7B), and room for
 * the last is 200 MB. */
enum { SDPA_KEYS_MIN = 1024, SDPA_KEYS_MAX = 16384 };

struct sdpa;
struct sdpa_shape {
    unsigned H, G, K;
};

/* path: NULL or "": libcudnn.so.9. -ENOTSUP: there is no library, it is too old, or it has no use
 * for this device. c NULL, for tests: a device that `like` describes, as the library's JSON. */
int sdpa_open(struct cu *c, const char *path, const char *like, const struct sdpa_shape *shape,
              struct sdpa **ret);
void sdpa_close(struct sdpa *s);             /* accepts NULL */
const char *sdpa_name(const struct sdpa *s); /* "cudnn 9.19.0" */
/* A plan for up to so many keys, a multiple of 64, more than the last one's. -ENOTSUP: the library
 * makes none. */
int sdpa_prepare(struct sdpa *s, size_t keys);
void sdpa_drop(struct sdpa *s); /* the last one */
unsigned sdpa_plans(const struct sdpa *s);
/* s may be NULL, and n_keys 0: neither fits. */
bool sdpa_fits(const struct sdpa *s, const struct cu_attn *a, size_t n_keys);
size_t sdpa_room(const struct sdpa *s, size_t n_keys); /* bytes, of the device, for sdpa_run() */
/* As cu_attn(), where sdpa_fits(). -ENOTSUP: the library refused; nothing was written. */
int sdpa_run(struct sdpa *s, const struct cu_attn *a, size_t n_keys, void *room);

struct sdpa_tuning {
    struct sdpa_shape shape;
    bool q8;               /* pages: in 8 bits */
    size_t keys_max;       /* of a sequence; 0: our own kernel does it all */
    const char *cache_dir; /* of what was timed; NULL: nothing is remembered */
};
/* *ret: what has a plan for each number of keys for which it is worth it, or as it was: there is
 * none. why: "", or what an operator should know of a library that is left out. The variable
 * KVBLEND_ATTN: "own", "cudnn" (where its values are ours, however slow), else what is faster;
 * KVBLEND_CUDNN: the library's path. No room to try it in is no error. */
int sdpa_tune(struct cu *c, const struct sdpa_tuning *t, struct sdpa **ret, char *why,
              size_t why_size);

#endif
