/* gpu_host: kernels/gpu.h on the host, for tests and for machines without a device.
 *
 * It shows the mistakes that a device would punish rather than hiding them (gpu_host.c). All of
 * gpu.h works on what gpu_host_open() gives. Thread: as gpu.h; the rest of this file: any. */
#ifndef TESTS_DOUBLES_GPU_HOST_H
#define TESTS_DOUBLES_GPU_HOST_H

#include "kernels/gpu.h"

int gpu_host_open(int index, struct gpu **ret, struct err *err);   /* -ENODEV: index 0 is all */
uint8_t *gpu_host_view(struct gpu *g, const void *device_pointer); /* the same bytes */
void gpu_host_pause(struct gpu *g, bool paused); /* no stream starts its next item */
void gpu_host_lose(struct gpu *g);               /* the device fails now */

#endif
