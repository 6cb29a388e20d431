/* module: what needs CUDA's libraries is in a library apart, loaded when it is asked for, so that
 * nothing else links with them. Looked for in KVBLEND_KERNELS_DIR, then where it is installed; it
 * stays loaded. Thread: any. */
#ifndef KERNELS_MODULE_H
#define KERNELS_MODULE_H

#include "base/err.h"

/* The function `name` of libkn_KIND.so ("cuda", "hostcuda"). -ENOTSUP. */
int kn_module_find(const char *kind, const char *name, void **ret, struct err *err);

#endif
