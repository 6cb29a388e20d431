/* clock: monotonic and wall time. Thread: any. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

uint64_t clock_ns(void);   /* monotonic */
double clock_wall_s(void); /* seconds since the epoch */
static inline double clock_ms_since(uint64_t t0_ns)
{
    return (double)(clock_ns() - t0_ns) / 1e6;
}

#endif
