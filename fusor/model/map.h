/* map: a whole regular file mapped read-only, for the model loaders.
 *
 * map_open() → read through `data` → map_close(). The mapping is private and shared with the page
 * cache, so weights never exist twice in memory. A file that becomes shorter while it is in use can
 * be read no more, and the kernel answers with SIGBUS: map_guard() makes that a line of text and a
 * status. Copying the file, or forbidding others to write to it, is not to be had: it may be larger
 * than memory, and locks bind only who asks for them.
 * Thread: any after open; open and close from one at a time. */
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
/* Its pages leave the process until they are read again; the system keeps what they hold as long as
 * it has room. */
void map_drop_pages(const struct map *m);
/* Bytes of any mapping: the system begins to read what of them it does not hold. */
void map_read_ahead(const void *from, size_t bytes);

/* From now on reading beyond the end of a mapped file that was cut ends the process: one line on
 * stderr, behind `program`'s name (which stays valid), and this exit status. */
void map_guard(const char *program, int status);

/* The last 100 bytes of a path: a message keeps room for its cause. */
const char *map_path_tail(const char *path);

#endif
