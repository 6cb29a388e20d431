#include "gateway/process/findmodel.h"

#include "base/buf.h"

#include <dirent.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is_model(const char *dir, const char *name)
{
    size_t n = strlen(name);
    if (name[0] == '.') return false;
    if (n > 5 && strcasecmp(name + n - 5, ".gguf") == 0) return true;
    struct buf path = BUF_INIT;
    bool found = buf_addf(&path, "%s/%s/config.json", dir, name) == 0 && buf_cstr(&path) &&
                 access(buf_cstr(&path), R_OK) == 0;
    buf_fini(&path);
    return found;
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
    return r == 0 && buf_cstr(out) ? 0 : -ENOMEM;
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
                    "no model was named and %.120s holds none: give --model PATH, or run "
                    "tools/get-model first",
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
        if (buf_addf(out, "%s/%s", self, places[i]) < 0 || !buf_cstr(out)) return -ENOMEM;
        if (access(buf_cstr(out), X_OK) == 0) return 0;
    }
    buf_clear(out);
    return err_set(err, -ENOENT,
                   "kvblend-worker is not beside %s/kvblend; name it with --worker-bin", self);
}
