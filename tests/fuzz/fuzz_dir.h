/* fuzz_dir: a folder whose files are in memory, for readers that take a path.
 *
 * Zeroed before; made by the first fuzz_dir_put(), removed when the process ends in order. The
 * files are links to descriptors, so that a run writes nothing to a disk. */
#ifndef TESTS_FUZZ_FUZZ_DIR_H
#define TESTS_FUZZ_FUZZ_DIR_H

#include <stddef.h>

enum { FUZZ_DIR_FILES = 3 };
struct fuzz_dir {
    char path[64];
    int fd[FUZZ_DIR_FILES];
};
/* The bytes are the file `name` now, which is number i of the folder. */
void fuzz_dir_put(struct fuzz_dir *d, unsigned i, const char *name, const void *data, size_t len);

#endif
