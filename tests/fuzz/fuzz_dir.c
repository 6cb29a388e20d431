#include "tests/fuzz/fuzz_dir.h"

#include "base/assert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct {
    char path[128];
} made[1 + FUZZ_DIR_FILES]; /* the folder, then its links */

static void remove_all(void)
{
    for (size_t i = FUZZ_DIR_FILES; i > 0; i--)
        (void)unlink(made[i].path);
    (void)rmdir(made[0].path);
}

void fuzz_dir_put(struct fuzz_dir *d, unsigned i, const char *name, const void *data, size_t len)
{
    if (!*d->path) {
        (void)snprintf(d->path, sizeof d->path, "/tmp/kvb-fuzz-XXXXXX");
        ASSERT(mkdtemp(d->path));
        (void)snprintf(made[0].path, sizeof made[0].path, "%s", d->path);
        (void)atexit(remove_all);
    }
    if (!*made[1 + i].path) {
        char target[40];
        d->fd[i] = memfd_create("fuzz", 0);
        (void)snprintf(target, sizeof target, "/proc/self/fd/%d", d->fd[i]);
        (void)snprintf(made[1 + i].path, sizeof made[1 + i].path, "%s/%s", d->path, name);
        ASSERT(d->fd[i] >= 0 && symlink(target, made[1 + i].path) == 0);
    }
    ASSERT(ftruncate(d->fd[i], 0) == 0);
    ASSERT(pwrite(d->fd[i], data, len, 0) == (ssize_t)len);
}
