/* The hub's folder on this machine: where it is, what it holds. */
#include "base/hub/hub_int.h"

#include <fcntl.h>
#include <fts.h>
#include <stdlib.h>
#include <unistd.h>

static const char *of_variable(const char *name)
{
    const char *v = getenv(name);
    return v && *v ? v : NULL;
}

int hub_cache_dir(struct buf *out, struct err *err)
{
    static const struct {
        const char *variable, *below;
    } places[] = {{"HF_HUB_CACHE", ""},
                  {"HUGGINGFACE_HUB_CACHE", ""},
                  {"HF_HOME", "/hub"},
                  {"XDG_CACHE_HOME", "/huggingface/hub"},
                  {"HOME", "/.cache/huggingface/hub"}};
    const char *home = of_variable("HOME");
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const char *dir = of_variable(places[i].variable);
        if (!dir) continue;
        const bool tilde = dir[0] == '~' && (dir[1] == '/' || !dir[1]) && home;
        if (tilde) (void)buf_adds(out, home);
        (void)buf_addf(out, "%s%s", dir + tilde, places[i].below);
        return buf_status(out);
    }
    return err_set(err, -ENOENT, "no folder for models: set HF_HOME");
}

int hub_repo_dir(const struct hub_name *name, struct buf *out, struct err *err)
{
    const size_t org = strcspn(name->repo, "/");
    int r = hub_cache_dir(out, err);
    if (r < 0) return r;
    (void)buf_addf(out, "/models--%.*s--%s", (int)org, name->repo, name->repo + org + 1);
    return buf_status(out);
}

/* The commit that the folder's refs say a revision is, else the revision itself. */
static int read_commit(const char *repo_dir, const struct hub_name *name, char ret[41])
{
    struct buf path = BUF_INIT;
    char text[64] = "";
    ssize_t n = -1;
    int r = buf_addf(&path, "%s/refs/%s", repo_dir, name->revision);
    const int fd = r == 0 ? open(buf_cstr(&path), O_RDONLY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        n = read(fd, text, sizeof text - 1);
        (void)close(fd);
    }
    buf_fini(&path);
    if (r < 0) return r;
    text[n > 0 ? n : 0] = '\0';
    text[strcspn(text, " \r\n")] = '\0';
    const char *commit = n > 0 ? text : name->revision;
    if (!hub_is_commit(commit)) return -ENOENT;
    memcpy(ret, commit, 41);
    return 0;
}

static int by_name(const FTSENT **a, const FTSENT **b)
{
    return strcmp((*a)->fts_name, (*b)->fts_name);
}

/* All files below a snapshot; links to blobs that are not there are none. */
static int list_snapshot(const char *dir, struct hub_files *f)
{
    enum { DEPTH_MAX = 8 };
    char *const roots[] = {(char *)dir, NULL};
    FTS *t = fts_open(roots, FTS_LOGICAL | FTS_NOCHDIR, by_name);
    int r = 0;
    if (!t) return -errno;
    for (FTSENT *e; r == 0 && (e = fts_read(t));) {
        if (e->fts_info == FTS_D && e->fts_level >= DEPTH_MAX) (void)fts_set(t, e, FTS_SKIP);
        if (e->fts_info == FTS_F) r = hub_files_add(f, e->fts_path + strlen(dir) + 1);
    }
    (void)fts_close(t);
    return r;
}

static int find_in(const char *dir, const struct hub_name *name, struct buf *out, struct err *err)
{
    char commit[41];
    struct hub_files files = {0};
    struct buf snapshot = BUF_INIT;
    const char *picked;
    int r = read_commit(dir, name, commit);
    if (r == 0) r = buf_addf(&snapshot, "%s/snapshots/%s", dir, commit);
    if (r == 0 && access(buf_cstr(&snapshot), R_OK | X_OK) != 0) r = -ENOENT;
    if (r == 0) r = list_snapshot(buf_cstr(&snapshot), &files);
    if (r == 0) r = hub_pick(name, &files, &picked, err);
    if (r == 0) r = buf_adds(out, buf_cstr(&snapshot));
    if (r == 0 && picked) r = buf_addf(out, "/%s", picked);
    hub_files_fini(&files);
    buf_fini(&snapshot);
    return r;
}

int hub_name_of(const char *model, struct hub_name *ret)
{
    return access(model, F_OK) == 0 ? 0 : hub_name_parse(model, ret);
}

int hub_find(const char *model, struct buf *out, struct err *err)
{
    struct hub_name name;
    struct buf dir = BUF_INIT;
    struct err why = {0};
    int r = hub_name_of(model, &name);
    if (r == 0) return buf_adds(out, model);
    if (r < 0)
        return err_set(
            err, r, "\"%.120s\" is no model's name: expected hf:ORG/NAME[:FILE or QUANT]", model);
    r = hub_repo_dir(&name, &dir, err);
    if (r == 0) r = find_in(buf_cstr(&dir), &name, out, &why);
    if (r == -ENOENT && !why.code)
        (void)err_set(&why, r, "no such file, and no such model in %.80s", buf_cstr(&dir));
    if (r == -ENOENT)
        (void)err_set(err, r, "%.*s; get it by: kvblend pull %.60s", (int)(sizeof why.msg - 90),
                      why.msg, model);
    else if (why.code)
        *err = why;
    buf_fini(&dir);
    return r;
}
