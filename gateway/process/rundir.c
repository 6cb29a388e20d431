#include "gateway/process/rundir.h"

#include "base/buf.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static int make_dir(const char *path, struct err *err)
{
    struct stat st;
    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        return err_set(err, -errno, "cannot make the folder %s: %s", path, strerror(errno));
    if (lstat(path, &st) < 0) return err_set(err, -errno, "%s: %s", path, strerror(errno));
    if (!S_ISDIR(st.st_mode) || st.st_uid != getuid())
        return err_set(err, -EPERM, "%s is not a folder of this user; remove it", path);
    if ((st.st_mode & 077) != 0 && chmod(path, 0700) < 0)
        return err_set(err, -errno, "%s: %s", path, strerror(errno));
    return 0;
}

int gw_rundir_make(struct buf *out, struct err *err)
{
    const char *xdg = getenv("XDG_RUNTIME_DIR");
    struct stat st;
    bool usable =
        xdg && *xdg == '/' && stat(xdg, &st) == 0 && S_ISDIR(st.st_mode) && access(xdg, W_OK) == 0;
    int r = usable ? buf_addf(out, "%s/kvblend", xdg)
                   : buf_addf(out, "/tmp/kvblend-%u", (unsigned)getuid());
    if (r < 0 || !buf_cstr(out)) return -ENOMEM;
    return make_dir(buf_cstr(out), err);
}

/* Does somebody accept connections there? */
static bool is_served(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof a.sun_path) return false;
    memcpy(a.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return false;
    bool served = connect(fd, (struct sockaddr *)&a, sizeof a) == 0;
    (void)close(fd);
    return served;
}

int gw_rundir_admin(const char *dir, struct buf *out)
{
    struct buf path = BUF_INIT;
    int r = buf_addf(&path, "%s/admin.sock", dir);
    if (r < 0 || !buf_cstr(&path)) return -ENOMEM;
    bool taken = is_served(buf_cstr(&path));
    if (!taken) (void)unlink(buf_cstr(&path));
    buf_fini(&path);
    r = taken ? buf_addf(out, "unix:%s/admin-%d.sock", dir, (int)getpid())
              : buf_addf(out, "unix:%s/admin.sock", dir);
    return r < 0 ? r : taken;
}

int gw_rundir_private(const char *dir, struct buf *out, struct err *err)
{
    int r = buf_addf(out, "%s/%d", dir, (int)getpid());
    if (r < 0 || !buf_cstr(out)) return -ENOMEM;
    return make_dir(buf_cstr(out), err);
}
