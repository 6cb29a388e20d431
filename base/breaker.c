#include "base/breaker.h"

enum { WINDOW = 20, FAILED_MIN = 5, FAILED_PCT = 51, TIMEOUTS_MAX = 3 };
/* chosen: research/tiers.md E8. A probe without a report within the longest back-off is lost;
 * without that rule one forgotten report would keep the tier shut for ever. */
static const uint64_t backoff_first_ns = 1000000000u, backoff_max_ns = 60000000000u;

void breaker_init(struct breaker *b, uint64_t seed)
{
    *b = (struct breaker){.state = BREAKER_CLOSED, .rng.state = seed};
    b->rule.failed_min = FAILED_MIN;
    b->rule.failed_pct = FAILED_PCT;
    b->rule.timeouts_max = TIMEOUTS_MAX;
    b->rule.backoff_first_ns = backoff_first_ns;
    b->rule.backoff_max_ns = backoff_max_ns;
}

static uint64_t jittered(struct breaker *b, uint64_t ns) /* ns * [0.8, 1.2] */
{
    return (uint64_t)((double)ns * (0.8 + 0.4 * rng_unit(&b->rng)));
}

static void trip(struct breaker *b, uint64_t now_ns)
{
    b->backoff_ns = b->backoff_ns ? 2 * b->backoff_ns : b->rule.backoff_first_ns;
    if (b->backoff_ns > b->rule.backoff_max_ns) b->backoff_ns = b->rule.backoff_max_ns;
    b->open_until_ns = now_ns + jittered(b, b->backoff_ns);
    b->state = BREAKER_OPEN;
    b->probing = false;
    b->n_opened++;
}

bool breaker_allow(struct breaker *b, uint64_t now_ns)
{
    if (b->state == BREAKER_CLOSED) return true;
    bool waiting = b->state == BREAKER_OPEN || b->probing;
    if (waiting && now_ns < b->open_until_ns) return false;
    b->state = BREAKER_HALF_OPEN;
    b->probing = true;
    b->since_ns = now_ns;
    b->open_until_ns = now_ns + backoff_max_ns;
    return true;
}

uint64_t breaker_wait_ns(const struct breaker *b, uint64_t now_ns)
{
    bool waiting = b->state == BREAKER_OPEN || b->probing;
    return waiting && now_ns < b->open_until_ns ? b->open_until_ns - now_ns : 0;
}

static void count_outcome(struct breaker *b, enum breaker_result r, uint64_t now_ns)
{
    b->window = (b->window << 1 | (r != BREAKER_OK)) & ((1u << WINDOW) - 1);
    if (b->n < WINDOW) b->n++;
    b->timeouts = r == BREAKER_TIMEOUT ? b->timeouts + 1 : 0;
    b->run = r != BREAKER_OK ? b->run + 1 : 0;
    uint32_t failed = (uint32_t)__builtin_popcount(b->window);
    bool in_a_row = (b->rule.timeouts_max && b->timeouts >= b->rule.timeouts_max) ||
                    (b->rule.run_max && b->run >= b->rule.run_max);
    if (in_a_row || (failed >= b->rule.failed_min && 100 * failed >= b->rule.failed_pct * b->n)) {
        trip(b, now_ns);
    } else if (b->n == WINDOW) {
        b->backoff_ns = 0; /* a whole window without a relapse: the next trouble is a new one */
    }
}

void breaker_report(struct breaker *b, enum breaker_result r, uint64_t began_ns, uint64_t now_ns)
{
    if (began_ns < b->since_ns) return;
    if (b->state == BREAKER_CLOSED) {
        count_outcome(b, r, now_ns);
    } else if (b->state == BREAKER_HALF_OPEN && b->probing) {
        if (r != BREAKER_OK) {
            trip(b, now_ns);
            return;
        }
        b->state = BREAKER_CLOSED;
        b->probing = false;
        b->window = 0;
        b->n = 0;
        b->timeouts = b->run = 0;
    }
    /* Open: an op that began before; it has nothing new to say. */
}

void breaker_forget(struct breaker *b, uint64_t began_ns)
{
    if (began_ns >= b->since_ns) b->probing = false;
}

const char *breaker_state_name(enum breaker_state s)
{
    static const char *const name[] = {"closed", "open", "half-open"};
    return (unsigned)s < 3 ? name[s] : "?";
}
