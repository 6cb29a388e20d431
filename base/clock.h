/* clock: monotonic and wall time. Thread: any. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

uint64_t clock_ns(void);        /* monotonic */
uint64_t clock_thread_ns(void); /* of the processor, that the caller's thread has had */
/* The same as of the kernel's last tick, up to 10 ms ago: for timeouts, at a quarter of the price.
 */
uint64_t clock_coarse_ns(void);
double clock_wall_s(void); /* seconds since the epoch */
static inline double clock_ms_since(uint64_t t0_ns)
{
    return (double)(clock_ns() - t0_ns) / 1e6;
}

#endif
