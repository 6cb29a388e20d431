/* fault: a tier that wraps another one and makes it slow, full, wrong or silent.
 *
 * For tests and for kvblend-bench, which also emulates slower devices with it. Faults are drawn per
 * op from a seed, so that the same ops in the same order meet the same faults:
 *   delay      an op reaches the inner tier so much later
 *   rate       a device that moves so many bytes per second, a direction at a time; parts are
 *              served one after another, by priority, then in order of submission
 *   busy       refused at once, -EAGAIN
 *   eio, nospc the op (the write) ends so, and the inner tier never hears of it
 *   cut        a read ends early with -EIO: some parts whole, then one that is half there and never
 *              reported
 *   flip_read  one bit of one delivered part is wrong; flip_write: of one part that is written
 *   drop       no answer until it is healed (then -EIO) or destroyed
 *   hang       nothing happens until it is healed; then the op goes on as if it had come late
 * Everything else is passed on to the inner tier. Callbacks run on the tier's own thread, those of
 * destroy() inside destroy(). Thread: any, as tier.h. */
#ifndef TESTS_DOUBLES_FAULT_H
#define TESTS_DOUBLES_FAULT_H

#include "tiers/tier.h"

struct tier_fault_opts { /* all zero: no fault */
    uint64_t seed;
    double delay_ms, delay_random_ms;             /* fixed + uniform in [0, random) */
    uint64_t read_bytes_per_s, write_bytes_per_s; /* 0 = as fast as the inner tier */
    double busy, eio, nospc, cut, flip_read, flip_write, drop, hang; /* probability per op */
};
struct tier_fault_stat { /* ops that met the fault */
    uint64_t ops, busy, eio, nospc, cut, flip_read, flip_write, drop, hang;
    uint64_t held; /* now: dropped or hanging */
};

/* `inner` is taken (destroyed with the tier) after success. -EINVAL a probability outside 0…1 or a
 * delay below 0, -ENOMEM, -EAGAIN no thread. */
int tier_fault_create(struct tier *inner, const struct tier_fault_opts *o, struct tier **ret);
/* Live. Ops under way: what hangs goes on when `hang` is 0 now, what was dropped ends when `drop`
 * is, what is delayed starts when both delays are; a new rate holds at once. The seed starts anew
 * if it differs. */
int tier_fault_set(struct tier *t, const struct tier_fault_opts *o);
void tier_fault_get_stat(struct tier *t, struct tier_fault_stat *ret);

#endif
