/* Design: the hub's list of a revision says names, sizes and hashes of all files at once: what is
 * there is known without asking for it, and each blob can be checked before it gets its name. The
 * list and every name in it come from outside: nothing of it becomes a path before it was judged.
 *
 * A blob is locked as the hub's library locks it (.locks/…/HASH.lock, flock), so that two
 * downloads of one file do not write into each other's. */
#include "base/hub/pull.h"

#include "base/hub/fetch.h"
#include "base/hub/hub_int.h"

#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum {
    LIST_BYTES_MAX = 64 << 20, /* chosen: a few hundred bytes for each of HUB_FILES_MAX files */
    SHA256_DIGITS = 64,
    SHA1_DIGITS = 40
};

struct entry {
    const char *path;
    uint64_t size;
    char hash[SHA256_DIGITS + 1]; /* SHA-256, or git's SHA-1 */
    bool wanted;
};

struct pull {
    const struct hub_pull *p;
    struct hub_name name;
    struct hub_http *http;
    struct hub_files files;
    struct entry *entry; /* [files.n] */
    char commit[41];
    const char *picked; /* NULL: the folder */
    struct buf cache, dir, locks;
    struct hub_progress at;
};

/* One blob on its way into its file. */
struct blob {
    struct pull *k;
    const struct entry *e;
    int fd;
    EVP_MD_CTX *md;
};

static int no_memory(struct err *err)
{
    return err_set(err, -ENOMEM, "out of memory");
}

static int cannot(const char *what, const char *path, int r, struct err *err)
{
    return err_set(err, r, "cannot %s %.150s: %s", what, path, strerror(-r));
}

/* ---- the list ---- */

static int list_again(void *ctx)
{
    buf_clear(ctx);
    return 0;
}

static int list_data(void *ctx, const char *p, size_t n)
{
    struct buf *b = ctx;
    return n > LIST_BYTES_MAX - b->len ? -EFBIG : buf_add(b, p, n);
}

static void add_escaped(struct buf *out, const char *s, const char *plain)
{
    static const char always[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    for (; *s; s++) {
        if (strchr(always, *s) || strchr(plain, *s))
            (void)buf_addc(out, *s);
        else
            (void)buf_addf(out, "%%%02X", (unsigned char)*s);
    }
}

static bool is_hex(const char *s, size_t n)
{
    return s && strlen(s) == n && strspn(s, "0123456789abcdef") == n;
}

/* One file of the list. -EBADMSG: no sensible path. One without size or hash is not wanted. */
static int read_entry(struct pull *k, const json_t *o)
{
    const char *path = json_string_value(json_object_get(o, "rfilename"));
    const json_t *lfs = json_object_get(o, "lfs"), *size = json_object_get(o, "size");
    const char *hash = json_string_value(lfs && !json_is_null(lfs) ? json_object_get(lfs, "sha256")
                                                                   : json_object_get(o, "blobId"));
    if (!path || !hub_path_is_safe(path)) return -EBADMSG;
    int r = hub_files_add(&k->files, path);
    if (r < 0) return r;
    struct entry *e = &k->entry[k->files.n - 1];
    *e = (struct entry){.path = k->files.path[k->files.n - 1]};
    if (!json_is_integer(size) || json_integer_value(size) < 0) return 0;
    e->size = (uint64_t)json_integer_value(size);
    if (is_hex(hash, SHA256_DIGITS) || is_hex(hash, SHA1_DIGITS))
        memcpy(e->hash, hash, strlen(hash) + 1);
    return 0;
}

static int read_list(struct pull *k, const json_t *list, struct err *err)
{
    const char *commit = json_string_value(json_object_get(list, "sha"));
    const json_t *files = json_object_get(list, "siblings");
    const size_t n = json_array_size(files);
    if (!commit || !hub_is_commit(commit) || n == 0)
        return err_set(err, -EBADMSG, "the hub's list of %s is none", k->name.repo);
    if (n > HUB_FILES_MAX)
        return err_set(err, -EBADMSG, "%s has more than %d files", k->name.repo, HUB_FILES_MAX);
    memcpy(k->commit, commit, sizeof k->commit);
    k->entry = mem_zalloc(n * sizeof *k->entry);
    if (!k->entry) return no_memory(err);
    for (size_t i = 0; i < n; i++) {
        const json_t *o = json_array_get(files, i);
        int r = read_entry(k, o);
        if (r == -EBADMSG)
            return err_set(err, r, "the hub lists a file of %s that is no path within it",
                           k->name.repo);
        if (r < 0) return no_memory(err);
    }
    return 0;
}

static int ask_list(struct pull *k, struct err *err)
{
    struct buf target = BUF_INIT, text = BUF_INIT;
    struct err why = {0};
    (void)buf_addf(&target, "/api/models/%s/revision/", k->name.repo);
    add_escaped(&target, k->name.revision, "");
    (void)buf_adds(&target, "?blobs=true");
    struct hub_get g = {.target = buf_cstr(&target),
                        .size = UINT64_MAX,
                        .again = list_again,
                        .data = list_data,
                        .ctx = &text};
    int r = buf_status(&target);
    if (r == 0) r = hub_get(k->http, &g, &why);
    if (r < 0) {
        (void)err_set(err, r, "%s: %s", k->name.repo, why.code ? why.msg : err_name(r));
    } else {
        json_t *list = json_loadb(text.data ? text.data : "", text.len, 0, NULL);
        r = read_list(k, list, err);
        json_decref(list);
    }
    buf_fini(&target);
    buf_fini(&text);
    return r;
}

/* Which of the files are downloaded; all of a file's parts must be there. */
static int choose_files(struct pull *k, struct err *err)
{
    int r = hub_pick(&k->name, &k->files, &k->picked, err);
    if (r < 0) return r;
    for (size_t i = 0; i < k->files.n; i++) {
        struct entry *e = &k->entry[i];
        e->wanted = hub_needs(k->picked, e->path);
        if (!e->wanted) continue;
        if (!*e->hash)
            return err_set(err, -EBADMSG, "the hub does not say size and hash of %.150s", e->path);
        if (e->size > UINT64_MAX / 2 - k->at.total)
            return err_set(err, -EBADMSG, "the hub's sizes of %s are none", k->name.repo);
        k->at.n++;
        k->at.total += e->size;
    }
    if (k->picked && k->at.n != hub_parts(k->picked))
        return err_set(err, -ENOENT, "the hub has %zu of the parts of %.150s", k->at.n, k->picked);
    return 0;
}

/* ---- folders and links ---- */

/* All folders that lead to the path's last part. */
static int make_dirs(const char *path, struct err *err)
{
    char *copy = mem_strdup(path);
    int r = copy ? 0 : -ENOMEM;
    for (char *p = copy; r == 0 && (p = strchr(p + 1, '/'));) {
        *p = '\0';
        if (mkdir(copy, 0777) < 0 && errno != EEXIST) r = cannot("make", copy, -errno, err);
        *p = '/';
    }
    mem_free(copy);
    return r;
}

/* snapshots/COMMIT/PATH → ../../blobs/HASH, up as far as PATH is deep. */
static int link_file(const struct pull *k, const struct entry *e, struct err *err)
{
    struct buf at = BUF_INIT, to = BUF_INIT;
    char now[256];
    (void)buf_addf(&at, "%s/snapshots/%s/%s", k->dir.data, k->commit, e->path);
    for (const char *p = e->path; (p = strchr(p, '/')); p++)
        (void)buf_adds(&to, "../");
    (void)buf_addf(&to, "../../blobs/%s", e->hash);
    int r = buf_status(&at) < 0 ? buf_status(&at) : buf_status(&to);
    const char *path = r == 0 ? buf_cstr(&at) : "", *target = r == 0 ? buf_cstr(&to) : "";
    if (r == 0) r = make_dirs(path, err);
    if (r == 0 && symlink(target, path) < 0) {
        const int why = errno;
        const ssize_t n = readlink(path, now, sizeof now);
        const bool same = n >= 0 && (size_t)n == to.len && memcmp(now, target, to.len) == 0;
        if (!same && (why != EEXIST || unlink(path) < 0 || symlink(target, path) < 0))
            r = cannot("link", path, -errno, err);
    }
    buf_fini(&at);
    buf_fini(&to);
    return r;
}

/* The file's text, as a whole or not at all. */
static int write_ref(const struct pull *k, struct err *err)
{
    struct buf path = BUF_INIT, draft = BUF_INIT;
    if (hub_is_commit(k->name.revision)) return 0;
    (void)buf_addf(&path, "%s/refs/%s", k->dir.data, k->name.revision);
    (void)buf_addf(&draft, "%s/refs/%s.%d", k->dir.data, k->name.revision, (int)getpid());
    int r = buf_status(&path) < 0 ? buf_status(&path) : buf_status(&draft);
    if (r == 0) r = make_dirs(buf_cstr(&path), err);
    FILE *f = r == 0 ? fopen(buf_cstr(&draft), "we") : NULL;
    if (r == 0 && !f) r = -errno;
    if (f) {
        const bool wrote = fputs(k->commit, f) >= 0;
        if (fclose(f) != 0 || !wrote || rename(buf_cstr(&draft), buf_cstr(&path)) < 0) r = -errno;
        if (r < 0) (void)unlink(buf_cstr(&draft));
    }
    if (r < 0 && err->code == 0) (void)cannot("write", buf_cstr(&path), r, err);
    buf_fini(&path);
    buf_fini(&draft);
    return r;
}

/* ---- blobs ---- */

/* A hash that begins as e's does: git's has a head. */
static int digest_begin(struct blob *b)
{
    const bool git = strlen(b->e->hash) == SHA1_DIGITS;
    char head[40];
    const int n = snprintf(head, sizeof head, "blob %" PRIu64, b->e->size);
    if (EVP_DigestInit_ex(b->md, git ? EVP_sha1() : EVP_sha256(), NULL) != 1) return -EIO;
    return git && EVP_DigestUpdate(b->md, head, (size_t)n + 1) != 1 ? -EIO : 0;
}

static bool digest_fits(struct blob *b)
{
    unsigned char d[EVP_MAX_MD_SIZE];
    char text[2 * EVP_MAX_MD_SIZE + 1] = "";
    unsigned n = 0;
    if (EVP_DigestFinal_ex(b->md, d, &n) != 1) return false;
    for (unsigned i = 0; i < n; i++)
        (void)snprintf(text + 2 * i, 3, "%02x", d[i]);
    return strcmp(text, b->e->hash) == 0;
}

static void show(struct pull *k, const char *file)
{
    k->at.file = file;
    if (k->p->progress) k->p->progress(k->p->ctx, &k->at);
}

/* Nothing of it is there any more. */
static int blob_again(void *ctx)
{
    struct blob *b = ctx;
    struct stat st;
    if (fstat(b->fd, &st) < 0 || ftruncate(b->fd, 0) < 0) return -errno;
    b->k->at.done -= (uint64_t)st.st_size;
    return digest_begin(b);
}

static int blob_data(void *ctx, const char *p, size_t n)
{
    struct blob *b = ctx;
    struct pull *k = b->k;
    if (EVP_DigestUpdate(b->md, p, n) != 1) return -EIO;
    for (size_t at = 0; at < n;) {
        const ssize_t w = write(b->fd, p + at, n - at);
        if (w < 0 && errno != EINTR) return -errno;
        at += w > 0 ? (size_t)w : 0;
        k->at.done += w > 0 ? (uint64_t)w : 0;
        k->at.fetched += w > 0 ? (uint64_t)w : 0;
    }
    show(k, b->e->path);
    return 0;
}

/* What an earlier download left, into the hash; its length, with the file's place behind it. */
static int take_part(struct blob *b, uint64_t *ret)
{
    enum { BLOCK = 1 << 18 };
    struct stat st;
    uint64_t at = 0;
    int r = digest_begin(b);
    if (fstat(b->fd, &st) < 0) return -errno;
    if (r == 0 && (uint64_t)st.st_size > b->e->size) r = ftruncate(b->fd, 0) < 0 ? -errno : 0;
    char *block = r == 0 ? mem_alloc(BLOCK) : NULL;
    if (r == 0 && !block) r = -ENOMEM;
    for (ssize_t n = 1; r == 0 && n > 0; at += (uint64_t)n) {
        n = pread(b->fd, block, BLOCK, (off_t)at);
        if (n < 0 || (n > 0 && EVP_DigestUpdate(b->md, block, (size_t)n) != 1)) r = -EIO;
        if (r < 0) break;
    }
    mem_free(block);
    if (r < 0) return r;
    b->k->at.done += at;
    *ret = at;
    return 0;
}

/* Into its file, and whole. */
static int fill_blob(struct blob *b, const char *part, struct err *err)
{
    struct pull *k = b->k;
    struct buf target = BUF_INIT;
    struct err why = {0};
    struct hub_get g = {.size = b->e->size, .again = blob_again, .data = blob_data, .ctx = b};
    (void)buf_addf(&target, "/%s/resolve/%s/", k->name.repo, k->commit);
    add_escaped(&target, b->e->path, "/");
    g.target = buf_cstr(&target);
    int r = buf_status(&target);
    if (r == 0) r = take_part(b, &g.at);
    if (r == 0 && g.at < g.size) r = hub_get(k->http, &g, &why);
    buf_fini(&target);
    if (r < 0 && why.code) return err_set(err, r, "%.100s: %s", b->e->path, why.msg);
    if (r < 0) return cannot("write", part, r, err);
    if (!digest_fits(b)) {
        (void)unlink(part);
        return err_set(err, -EBADMSG, "%.100s is not what the hub says it is (hash %s); removed",
                       b->e->path, b->e->hash);
    }
    return fsync(b->fd) < 0 ? cannot("write", part, -errno, err) : 0;
}

static int open_locked(const struct pull *k, const struct entry *e, int *ret, struct err *err)
{
    struct buf path = BUF_INIT;
    int r = buf_addf(&path, "%s/%s.lock", k->locks.data, e->hash);
    if (r == 0) r = make_dirs(buf_cstr(&path), err);
    const int fd = r == 0 ? open(buf_cstr(&path), O_RDWR | O_CREAT | O_CLOEXEC, 0664) : -1;
    if (r == 0 && (fd < 0 || flock(fd, LOCK_EX) < 0))
        r = cannot("lock", buf_cstr(&path), -errno, err);
    buf_fini(&path);
    if (r < 0 && fd >= 0) (void)close(fd);
    if (r == 0) *ret = fd;
    return r;
}

static bool is_there(const char *blob, const struct entry *e)
{
    struct stat st;
    return stat(blob, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size == e->size;
}

/* The caller holds its lock. */
static int download(struct pull *k, const struct entry *e, const char *blob, struct err *err)
{
    struct blob b = {.k = k, .e = e, .fd = -1, .md = EVP_MD_CTX_new()};
    struct buf part = BUF_INIT;
    int r = b.md ? buf_addf(&part, "%s.incomplete", blob) : -ENOMEM;
    if (r == 0) r = make_dirs(blob, err);
    if (r == 0) {
        b.fd = open(buf_cstr(&part), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (b.fd < 0) r = cannot("write", buf_cstr(&part), -errno, err);
    }
    if (r == 0) r = fill_blob(&b, buf_cstr(&part), err);
    if (r == 0 && rename(buf_cstr(&part), blob) < 0) r = cannot("write", blob, -errno, err);
    if (b.fd >= 0) (void)close(b.fd);
    EVP_MD_CTX_free(b.md);
    buf_fini(&part);
    return r;
}

static int get_file(struct pull *k, const struct entry *e, struct err *err)
{
    struct buf blob = BUF_INIT;
    int lock = -1;
    int r = buf_addf(&blob, "%s/blobs/%s", k->dir.data, e->hash);
    k->at.i++;
    show(k, e->path);
    if (r == 0) r = open_locked(k, e, &lock, err);
    if (r == 0 && is_there(buf_cstr(&blob), e))
        k->at.done += e->size;
    else if (r == 0)
        r = download(k, e, buf_cstr(&blob), err);
    if (r == 0) r = link_file(k, e, err);
    if (lock >= 0) (void)close(lock); /* which unlocks */
    show(k, e->path);
    buf_fini(&blob);
    return r;
}

/* Before the first byte: is there room for what is not there yet? */
static int check_room(const struct pull *k, struct err *err)
{
    struct statvfs fs;
    struct buf path = BUF_INIT;
    uint64_t need = 0;
    for (size_t i = 0; i < k->files.n; i++) {
        const struct entry *e = &k->entry[i];
        struct stat st = {0};
        if (!e->wanted) continue;
        buf_clear(&path);
        (void)buf_addf(&path, "%s/blobs/%s", k->dir.data, e->hash);
        if (buf_cstr(&path) && is_there(path.data, e)) continue;
        (void)buf_adds(&path, ".incomplete");
        if (buf_cstr(&path) && stat(path.data, &st) == 0 && (uint64_t)st.st_size <= e->size)
            need -= (uint64_t)st.st_size;
        need += e->size;
    }
    const int r = buf_status(&path);
    buf_fini(&path);
    if (r < 0) return no_memory(err);
    if (statvfs(k->cache.data, &fs) < 0) return cannot("use", k->cache.data, -errno, err);
    const uint64_t room = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (need <= room) return 0;
    return err_set(err, -ENOSPC, "%s needs %" PRIu64 " MiB more, %.100s has room for %" PRIu64,
                   k->name.repo, need >> 20, k->cache.data, room >> 20);
}

/* The folders' names, and that of all models made. */
static int begin(struct pull *k, struct err *err)
{
    int r = hub_cache_dir(&k->cache, err);
    if (r == 0) r = hub_repo_dir(&k->name, &k->dir, err);
    if (r == 0) (void)buf_adds(&k->cache, "/");
    if (r == 0 && !buf_cstr(&k->cache)) r = -ENOMEM;
    if (r == 0) r = make_dirs(buf_cstr(&k->cache), err);
    if (r < 0) return r;
    (void)buf_addf(&k->locks, "%s.locks%s", k->cache.data, strrchr(buf_cstr(&k->dir), '/'));
    return buf_status(&k->locks);
}

int hub_pull(const struct hub_pull *p, struct buf *out, struct err *err)
{
    struct pull k = {.p = p};
    struct err why = {0};
    int r = hub_name_parse(p->name, &k.name);
    if (r != 1)
        return err_set(
            err, -EINVAL,
            "\"%.100s\" is no model's name: expected ORG/NAME[@REVISION][:FILE or QUANT]", p->name);
    r = hub_http_create(p->endpoint, p->token, &k.http, &why);
    if (r == 0) r = begin(&k, &why);
    if (r == 0) r = ask_list(&k, &why);
    if (r == 0) r = choose_files(&k, &why);
    if (r == 0) r = check_room(&k, &why);
    for (size_t i = 0; r == 0 && i < k.files.n; i++)
        if (k.entry[i].wanted) r = get_file(&k, &k.entry[i], &why);
    if (r == 0) r = write_ref(&k, &why);
    if (r == 0) {
        (void)buf_addf(out, "%s/snapshots/%s", k.dir.data, k.commit);
        r = k.picked ? buf_addf(out, "/%s", k.picked) : buf_status(out);
    }
    if (r < 0) r = err_set(err, r, "%s", why.code ? why.msg : strerror(-r));
    hub_http_destroy(k.http);
    hub_files_fini(&k.files);
    mem_free(k.entry);
    buf_fini(&k.cache);
    buf_fini(&k.dir);
    buf_fini(&k.locks);
    return r;
}
