#include "fusor/model/map.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

const char *map_path_tail(const char *path)
{
    size_t len = strlen(path);
    return len > 100 ? path + len - 100 : path;
}

static int map_fd(int fd, const char *path, struct map *ret, struct err *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0) {
        int code = -errno;
        return err_set(err, code, "%s: cannot be examined: %s", path, strerror(-code));
    }
    if (!S_ISREG(st.st_mode)) return err_set(err, -EINVAL, "%s: is not a regular file", path);
    if (st.st_size <= 0) return err_set(err, -EBADMSG, "%s: is empty", path);
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) {
        int code = -errno;
        return err_set(err, code, "%s: cannot be mapped: %s", path, strerror(-code));
    }
    ret->data = p;
    ret->size_bytes = (size_t)st.st_size;
    return 0;
}

int map_open(const char *path, struct map *ret, struct err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        int code = -errno;
        return err_set(err, code, "%s: cannot be opened: %s", map_path_tail(path), strerror(-code));
    }
    int r = map_fd(fd, map_path_tail(path), ret, err);
    (void)close(fd);
    return r;
}

void map_close(struct map *m)
{
    if (!m || !m->data) return;
    (void)munmap((void *)(uintptr_t)m->data, m->size_bytes);
    m->data = NULL;
    m->size_bytes = 0;
}
