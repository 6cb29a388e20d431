/* What all tiers share: names. */
#include "tiers/tier.h"

#include "base/assert.h"

const char *tier_reject_name(enum tier_reject r)
{
    static const char *const name[] = {"full", "quota", "size", "budget", "once", "busy"};
    static_assert(sizeof name / sizeof *name == TIER_REJECT_COUNT, "a name per reason");
    return (unsigned)r < TIER_REJECT_COUNT ? name[r] : "unknown";
}
