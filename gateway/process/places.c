#include "gateway/process/places.h"

#include "base/buf.h"

#include <dirent.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* ---- the sockets' folder ---- */

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
    return r < 0 ? r : make_dir(buf_cstr(out), err);
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
    if (r < 0) return r;
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
    return r < 0 ? r : make_dir(buf_cstr(out), err);
}

/* ---- the model and the worker program ---- */

static bool is_model(const char *dir, const char *name)
{
    size_t n = strlen(name);
    if (name[0] == '.') return false;
    if (n > 5 && strcasecmp(name + n - 5, ".gguf") == 0) return true;
    char path[PATH_MAX];
    (void)snprintf(path, sizeof path, "%s/%s/config.json", dir, name);
    return access(path, R_OK) == 0;
}

static int models_dir(struct buf *out)
{
    const char *dir = getenv("KVBLEND_MODELS"), *cache = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    int r;
    if (dir && *dir)
        r = buf_adds(out, dir);
    else if (cache && *cache)
        r = buf_addf(out, "%s/kvblend/models", cache);
    else
        r = buf_addf(out, "%s/.cache/kvblend/models", home && *home ? home : "/root");
    return r;
}

int gw_find_model(struct buf *out, struct err *err)
{
    struct buf dir = BUF_INIT;
    char best[NAME_MAX + 1] = "";
    int r = models_dir(&dir);
    if (r < 0) goto out;
    DIR *d = opendir(buf_cstr(&dir));
    for (struct dirent *e; d && (e = readdir(d));)
        if (is_model(buf_cstr(&dir), e->d_name) && (!*best || strcmp(e->d_name, best) < 0))
            memcpy(best, e->d_name, strlen(e->d_name) + 1);
    if (d) (void)closedir(d);
    if (!*best)
        r = err_set(err, -ENOENT,
                    "no model is named and %.60s has none: `kvblend pull NAME` gets one, "
                    "KVBLEND_MODEL=NAME (model:, --model) names it",
                    buf_cstr(&dir));
    else
        r = buf_addf(out, "%s/%s", buf_cstr(&dir), best);
out:
    buf_fini(&dir);
    return r;
}

int gw_find_worker(struct buf *out, struct err *err)
{
    static const char *const places[] = {"kvblend-worker", "../worker/kvblend-worker"};
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0) return err_set(err, -errno, "cannot find this program's own folder");
    self[n] = '\0';
    char *slash = strrchr(self, '/');
    if (slash) *slash = '\0';
    for (size_t i = 0; i < 2; i++) {
        buf_clear(out);
        if (buf_addf(out, "%s/%s", self, places[i]) < 0) return -ENOMEM;
        if (access(buf_cstr(out), X_OK) == 0) return 0;
    }
    buf_clear(out);
    return err_set(err, -ENOENT,
                   "kvblend-worker is not beside %s/kvblend; name it with --worker-bin", self);
}
