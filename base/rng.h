/* rng: a small seeded generator (SplitMix64, Steele et al. 2014) for simulations, load and tests.
 *
 * Not for: secrets. The same seed gives the same numbers everywhere. Thread: one per state. */
#ifndef BASE_RNG_H
#define BASE_RNG_H

#include <math.h>
#include <stdint.h>

#define RNG_STEP 0x9e3779b97f4a7c15ull /* a state this much further is one number further */
#ifdef __CUDACC__                      /* kernels call these, too */
#define RNG_FN static inline __host__ __device__
#else
#define RNG_FN static inline
#endif
struct rng {
    uint64_t state;
};

RNG_FN uint64_t rng_next(struct rng *r)
{
    uint64_t z = r->state += RNG_STEP;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static inline double rng_unit(struct rng *r) /* [0, 1) */
{
    return (double)(rng_next(r) >> 11) * 0x1p-53;
}

static inline double rng_exp(struct rng *r, double mean) /* waiting times of a Poisson process */
{
    return -mean * log1p(-rng_unit(r));
}

/* Numbers by place: value i of a field is the same in every part that holds it. */
struct rng_field {
    uint64_t seed;
    float scale;
};

RNG_FN float rng_field_at(const struct rng_field *f, uint64_t i) /* uniform in [-scale, scale) */
{
    struct rng r = {f->seed + i * RNG_STEP};
    const int32_t steps = (int32_t)(rng_next(&r) >> 40) - (1 << 23); /* exact as a float */
    return (float)steps * (f->scale * 0x1p-23f);
}

#endif
