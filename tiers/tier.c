/* What all tiers share: checks of an op, figures, names. */
#include "tiers/tier.h"

#include "base/assert.h"
#include "base/clock.h"

#include <errno.h>

int tier_op_check(const struct tier_op *op, bool write)
{
    const uint32_t n = op->layout->n_parts;
    ASSERT(op->on_done && (write || op->on_part));
    if (op->part_lo >= op->part_hi || op->part_hi > n) return -EINVAL;
    if ((unsigned)op->prio >= TIER_PRIO_COUNT) return -EINVAL;
    return write && (op->part_lo != 0 || op->part_hi != n) ? -EINVAL : 0;
}

int tier_op_open(const struct tier_op *op, struct record_view *ret)
{
    if (!op->part[0]) return -EINVAL;
    int r = record_open(op->part[0], op->layout->header_bytes, ret);
    if (r < 0) return r;
    const struct record_layout *l = &ret->layout;
    bool same = tier_key_same(&ret->desc.key, &op->key) && l->n_parts == op->layout->n_parts &&
                l->record_bytes == op->layout->record_bytes;
    return same ? 0 : -EBADMSG;
}

void tier_stat_count(struct tier_stat *s, bool write, int status, uint64_t bytes, uint64_t begun_ns,
                     uint64_t first_ns)
{
    uint64_t took_ns = clock_ns() - begun_ns;
    s->errors += status == -EIO;
    s->timeouts += status == -ETIMEDOUT;
    if (status < 0) return;
    if (write) {
        s->writes++;
        s->write_bytes += bytes;
        s->write_ns += took_ns;
    } else {
        s->reads++;
        s->read_bytes += bytes;
        s->read_ns += took_ns;
        if (first_ns) s->first_ns += first_ns - begun_ns;
    }
}

const char *tier_reject_name(enum tier_reject r)
{
    static const char *const name[] = {"full", "quota", "size", "budget", "once", "busy"};
    static_assert(sizeof name / sizeof *name == TIER_REJECT_COUNT, "a name per reason");
    return (unsigned)r < TIER_REJECT_COUNT ? name[r] : "unknown";
}
