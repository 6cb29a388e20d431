/* A worker's drive that reads no faster than SLOW_NVME_BYTES_PER_S of the environment says. Linked
 * into a worker with --wrap=tier_nvme_create, so that the worker itself knows nothing of it. */
#include "base/log.h"
#include "tests/doubles/fault.h"
#include "tiers/nvme/nvme.h"

#include <stdlib.h>

int __real_tier_nvme_create(const struct tier_nvme_opts *o, struct tier **ret, struct err *err);
int __wrap_tier_nvme_create(const struct tier_nvme_opts *o, struct tier **ret, struct err *err);

int __wrap_tier_nvme_create(const struct tier_nvme_opts *o, struct tier **ret, struct err *err)
{
    const char *rate = getenv("SLOW_NVME_BYTES_PER_S");
    const struct tier_fault_opts slow = {.read_bytes_per_s = rate ? strtoull(rate, NULL, 10) : 0};
    struct tier *drive;
    int rc = __real_tier_nvme_create(o, &drive, err);
    if (rc < 0) return rc;
    rc = tier_fault_create(drive, &slow, ret);
    if (rc < 0) {
        drive->ops->destroy(drive);
        return err_set(err, rc, "no slow drive");
    }
    log_event(LOG_WARN, "slow_nvme", "read_bytes_per_s=%llu",
              (unsigned long long)slow.read_bytes_per_s);
    return 0;
}
