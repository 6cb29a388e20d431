/* fuzz_engine: stands for nvme_engine.c in a fuzz target of the NVMe tier.
 *
 * A transfer is done when it is started and reported by the next poll: no ring and no pool of
 * threads to set up for each input, and one order of events for the same bytes. It serves one tier
 * at a time. Not for faults of a device; test_nvme_fault.c has those. */
#ifndef TESTS_FUZZ_FUZZ_ENGINE_H
#define TESTS_FUZZ_FUZZ_ENGINE_H

/* Waits until the tier's thread has nothing to do; the tier is open. Any thread but that one. */
void fuzz_engine_rest(void);

#endif
