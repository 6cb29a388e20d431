/* split: how an attention's keys are shared out among blocks, by how long they would take.
 *
 * A block has SPLIT_ROWS entries of a KV head (attn.h) and goes through the first parts of their
 * keys by itself; each part behind these has a block of its own, and what they leave is folded by a
 * second launch. With many first parts a launch takes as long as its longest block, with few it
 * writes and reads what parts come to. Rows of a blend ascend: the average block has half of the
 * longest one's keys.
 *
 * What is estimated: blocks start in `places` places, the longest first; those of the first parts,
 * then those of parts behind. Microseconds are an H100's (split.c), of which only ratios count.
 * Pure: no device, no state. Thread: any. */
#ifndef KERNELS_CUDA_SPLIT_H
#define KERNELS_CUDA_SPLIT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SPLIT_PART = 512 /* keys */, SPLIT_ROWS = 64 };

struct split {
    const int32_t *pos; /* [m] ascending, below n_keys, or NULL: evenly spread over n_keys */
    size_t m, n_keys;   /* > 0 */
    unsigned group, G, K;
    unsigned window; /* keys that a row sees; 0: all */
    size_t places;   /* blocks that the device runs at once */
};
struct split_us { /* of the launch, and of the one that folds parts apart, if there are any */
    double blocks, fold;
};
struct split_us split_estimate(const struct split *s, unsigned first); /* 1 to n_keys' parts */
/* What takes the least; the largest of equals, and at least `least`. */
unsigned split_first(const struct split *s, unsigned least);

#ifdef __cplusplus
}
#endif

#endif
