/* What this process may have of the machine: affinity and control groups (version 2) say less than
 * there is, in a container above all. Thread: any. */
#ifndef BASE_MACHINE_H
#define BASE_MACHINE_H

#include <stdint.h>

uint64_t machine_bytes(void); /* of RAM */

/* Cores: those that it may run on, or fewer where a quota of time is less, to the nearest; at
 * least 1. More threads than the quota has cores would stop for the rest of each period, and with
 * them all that wait for them. */
unsigned machine_cpus(void);

/* Read below this folder instead of / ("": no more); not copied. Tests only. */
void machine_root(const char *folder);

#endif
