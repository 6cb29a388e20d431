/* wait: condition variables whose deadlines are clock_ns(); the wall clock as records store it.
 *
 * Internal to tiers/. Thread: any. */
#ifndef TIERS_WAIT_H
#define TIERS_WAIT_H

#include "base/clock.h"

#include <pthread.h>
#include <time.h>

static inline uint64_t wall_ms(void)
{
    return (uint64_t)(clock_wall_s() * 1e3);
}

static inline int wait_init(pthread_cond_t *c) /* 0, or an errno */
{
    pthread_condattr_t a;
    int r = pthread_condattr_init(&a);
    if (r != 0) return r;
    (void)pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    r = pthread_cond_init(c, &a);
    (void)pthread_condattr_destroy(&a);
    return r;
}

/* until_ns 0: for ever. 0, or ETIMEDOUT. */
static inline int wait_until(pthread_cond_t *c, pthread_mutex_t *m, uint64_t until_ns)
{
    struct timespec t = {(time_t)(until_ns / 1000000000u), (long)(until_ns % 1000000000u)};
    return until_ns ? pthread_cond_timedwait(c, m, &t) : pthread_cond_wait(c, m);
}

#endif
