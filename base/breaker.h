/* breaker: stops asking a peer that fails, and finds out when it is back.
 *
 * closed → open when, of the last 20 results, more than half failed (and at least 5 did), or at
 * once after 3 timeouts (or run_max failures of any kind) in a row; open for 1 s, doubled at each
 * failed probe up to 60 s, with ±20 % jitter → half-open: one probe is let through; its success
 * closes, its failure opens again. A relapse within the 20 results after closing doubles the time
 * as a failed probe does, so that a peer that answers probes only does not flap. A probe that is
 * not reported within 60 s is lost and another one goes. What began before the last probe decides
 * nothing, however late it ends; nor does what is reported while it is open.
 * "Busy" (our own queue full) and misses are not failures: do not report them.
 * The rules are the tiers' and may be set after breaker_init(): backoff_max_ns where a probe costs
 * little (a remote peer's takes no memory worth naming, a device's that hangs keeps a whole
 * record's), so that it is found again sooner. Pure: time and seed are parameters, nothing is
 * allocated. Thread: the owner's lock. */
#ifndef BASE_BREAKER_H
#define BASE_BREAKER_H

#include "base/rng.h"

#include <stdbool.h>
#include <stdint.h>

#define BREAKER_CHEAP_NS 8000000000u /* chosen: with the jitter within 10 s of recovery */
enum breaker_state { BREAKER_CLOSED, BREAKER_OPEN, BREAKER_HALF_OPEN };
enum breaker_result { BREAKER_OK, BREAKER_FAILED, BREAKER_TIMEOUT };
struct breaker {
    enum breaker_state state;
    uint32_t window; /* last results, one bit each, 1 = failed */
    uint8_t n;
    bool probing;           /* half-open: the one probe is out */
    uint32_t timeouts, run; /* in a row: timeouts; failures of any kind */
    uint64_t open_until_ns, backoff_ns;
    struct rng rng;
    uint64_t since_ns; /* the last probe's start: what began before has nothing to say */
    struct {           /* rules */
        uint32_t failed_min, failed_pct; /* of the last 20: opens when both are reached */
        uint32_t timeouts_max, run_max;  /* in a row; 0: no such rule */
        uint64_t backoff_first_ns, backoff_max_ns;
    } rule;
    uint64_t n_opened; /* for metrics */
};
void breaker_init(struct breaker *b, uint64_t seed);
/* May an op start? Half-open lets one through and wants its report. */
bool breaker_allow(struct breaker *b, uint64_t now_ns);
/* Time until breaker_allow() would say yes, as far as is known; 0: now. Changes nothing. */
uint64_t breaker_wait_ns(const struct breaker *b, uint64_t now_ns);
/* began_ns: when the op was allowed, or later. */
void breaker_report(struct breaker *b, enum breaker_result r, uint64_t began_ns, uint64_t now_ns);
/* The op ended without telling anything about the peer (cancelled): if it was the probe, another
 * one may go. */
void breaker_forget(struct breaker *b, uint64_t began_ns);
const char *breaker_state_name(enum breaker_state s);

#endif
