/* map: a whole regular file mapped read-only, for the model loaders.
 *
 * map_open() → read through `data` → map_close(). The mapping is private and shared with the page
 * cache, so weights never exist twice in memory. Not for files that another process truncates while
 * they are in use (the kernel answers that with SIGBUS).
 * Thread: any after open. */
#ifndef FUSOR_MODEL_MAP_H
#define FUSOR_MODEL_MAP_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

struct map {
    const uint8_t *data; /* NULL when closed */
    size_t size_bytes;   /* > 0 after map_open() */
};

/* -ENOENT and other errors of open(2); -EINVAL not a regular file; -EBADMSG empty. */
int map_open(const char *path, struct map *ret, struct err *err);
void map_close(struct map *m); /* accepts a closed one */

/* The last 100 bytes of a path: a message keeps room for its cause. */
const char *map_path_tail(const char *path);

#endif
